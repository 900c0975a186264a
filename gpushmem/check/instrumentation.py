"""What is recorded in kernels: code that is compiled into them when they are checked.

A thread's *clock* says how far it has come: how often its block has met, in barriers and in calls
of the whole block, times 2**32, plus how many events of its own there have been. Every event first
advances the clock, so an access with a smaller clock was made before it.

Plain accesses are recorded in runs. Each load and store of the program has a place in its launch
(`PLACE`), with the run that it is in: either of one thread, at addresses a stride apart, or of
consecutive threads with one access each. What does not continue the run is the first of another.
Runs that are alike and begin at one pitch are rows of one record. The access that continues a run
is known by a `key`, its address plus multiples of the thread's number and clock, modulo 2**64: two
accesses of a place that nothing else tells apart have the same one once in 2**64 times.
"""

from __future__ import annotations

import ctypes
from errno import EINTR
from functools import cache
from typing import Any

import numpy as np
from numba import types

from gpushmem.check import log, turns
from gpushmem.check.log import (
    ACCESS,
    ARRIVED,
    CALL_OF_WARP,
    CONTENTS,
    DIVERGED,
    DONE,
    EFFECT,
    HEADER,
    LEFT,
    LOG,
    MET,
    NO_INTEGER,
    OP,
    PIECE,
    RECORD,
    THREADFENCE,
    UPDATE,
)
from gpushmem.native.c_function import c_function
from gpushmem.native.memory import (
    atomic_add_word,
    compare_swap_word,
    copy_bytes,
    i64,
    load_acquire,
    posix_fallocate,
    usleep,
)
from gpushmem.native.structs import offset, view
from gpushmem.ops import OPS, Op
from gpushmem.ops.roles import QueuePairs, UnitFlag, Value
from gpushmem.ops.row import BLOCK, WARP
from gpushmem.ops.row import THREAD as THREAD_SCOPE
from gpushmem.simt.functions import device, inlined, kept
from gpushmem.simt.layout import BLOCK as BLOCK_RECORD
from gpushmem.simt.layout import FIBER, LAUNCH, SPREAD, THREAD
from gpushmem.simt.observe import ADD, AND, CAS, LOAD, OR, PLACE_BYTES, SET, VALUED, Observer
from gpushmem.simt.thread import fiber_word, launch_word, pause, site_word, thread_word

__all__ = [
    "COMPARED",
    "OBSERVER",
    "PLACE",
    "adder",
    "generate",
    "generate_after",
    "group_called",
    "reserver",
]

# The `key` of the access that continues a run, what that of the next one is more, and how many may
# come, of how many; then its first access. Of an update: the last that did nothing, with what was
# there as `value`.
RUN = np.dtype(
    [
        (name, "i8")
        for name in (
            "next", "more", "left", "most", "address", "thread", "clock", "stride", "step",
            "nbytes", "how", "value", "site", "stamp",
        )
    ]
)  # fmt: skip
# The run that goes on; the first of those before it, how many these are, and how far apart.
PLACE = np.dtype(
    {
        "names": ["run", "first", "rows", "pitch", "turn"],
        "formats": [RUN, RUN, "i8", "i8", "i8"],
        "itemsize": PLACE_BYTES,
    }
)
FIRST = offset(PLACE, "first")
as_log, as_record, as_run, as_place = map(view, (LOG, RECORD, RUN, PLACE))
as_fiber, as_launch, as_thread, as_block = map(view, (FIBER, LAUNCH, THREAD, BLOCK_RECORD))
begin_turn, counted, end_turn = turns.begin, turns.counted, turns.end
schedule_word = turns.schedule_word
RECORD_BYTES, RUN_BYTES = RECORD.itemsize, RUN.itemsize

SHARED, BLOCK_BITS, PHASE, ROWS, HOW = (
    log.SHARED, log.BLOCK_BITS, log.PHASE, log.ROWS, log.HOW,
)  # fmt: skip
NAP = 1000  # microseconds
FAR = 1 << 20  # bytes between accesses of one run, less: it is in one memory
FOREVER = 1 << 62
OF_CLOCK = -0x3D4D51C2D82B14B1  # odd; THREAD.mark is `number` * SPREAD + `clock` * OF_CLOCK
SCOPES = {BLOCK: 2, WARP: 1}  # of a call, in its record; 0: of a thread
# Words of a DONE: its turn; of a poll how many records its call has, and the poll before it, or 0:
# the number of its DONE plus 1.
TURN, RECORDS, BEFORE = 3, 4, 5
MOST_POLLS = 64  # of other words, between two that are compared
EVENTS_OF_CALL = 2  # its clock advances at the call, and at the return
# Operations that change nothing if what they return is, or is not, this argument, or has its bits.
CHANGES_NOTHING = {
    "atomic_compare_swap": ("cond", "!="), "atomic_swap": ("value", "=="),
    "atomic_fetch_or": ("value", "|"), "atomic_fetch_and": ("value", "&"),
}  # fmt: skip
# Arguments of which an operation has one at most, if a number.
COMPARED = "cmp", "cond", "op", "n", "count", "nbytes", "parity"
KIND_OF = {name: k for k, name in enumerate(OPS)}


def add(address: int, value: int) -> int:
    return atomic_add_word(address, value)


@cache
def adder() -> Any:
    """`f(address, value)` for Python: adds atomically, returns what was there."""
    made = c_function(types.intp(types.intp, types.intp), add)
    return made.callable(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


@device
def clock():
    """The calling thread's clock; a thread without a fiber has no events."""
    fiber = fiber_word()
    return as_fiber(fiber).clock if fiber != 0 else 0


@inlined
def later(by):
    """Advance the calling thread's clock."""
    as_fiber(fiber_word()).clock += by
    as_thread(thread_word()).mark += by * OF_CLOCK


@device
def advance():
    """Begin an event of the calling thread."""
    later(1)
    if as_fiber(fiber_word()).clock < 0:  # never: but the threads of this kernel are fibers now
        pause()


@inlined
def key(address):
    """A number that tells apart who accesses what between which events; modulo 2**64."""
    return address + as_thread(thread_word()).mark


@device
def thread_number():
    """The number of the calling thread in its launch."""
    return as_thread(thread_word()).number


@device
def threads_of_block():
    """How many threads a block has."""
    bdim = as_thread(thread_word()).bdim
    return types.intp(bdim[0] * bdim[1] * bdim[2])


@device
def threads_to_come(thread):
    """How many threads its block has from this one on."""
    threads = threads_of_block()
    return threads - thread % threads


STACK, ABOVE = 1 << 18, 4096  # bytes that are the thread's own in any case


@device
def on_stack(address):
    """Whether an address is on the calling thread's stack, where its local arrays are.

    Without a fiber that is a worker's, with the THREAD among the kernel's variables.
    """
    here, local = thread_word(), as_launch(launch_word()).local_bytes
    fiber = fiber_word()
    if fiber != 0:
        top = as_fiber(fiber).stack_top
        return top - local - STACK <= address < top
    return here - STACK - local < address < here + local + ABOVE


# --- the log


def reserve(log, end):
    """Have room on the disk for the records before `end`, or for no more than there is now.

    Threads that come at once ask for the same room, or for more. If the log is full, wait until
    who follows it has removed some.
    """
    here = as_log(log)
    while end > here.most and here.followed != 0:
        usleep(NAP)
    reserved, wanted = here.reserved, min(-(-end // PIECE) * PIECE, here.most)
    if wanted > reserved:
        start, nbytes = HEADER + reserved * RECORD_BYTES, (wanted - reserved) * RECORD_BYTES
        error = posix_fallocate(here.fd, start, nbytes)
        while error == EINTR:
            error = posix_fallocate(here.fd, start, nbytes)
        if error != 0:
            here.most = reserved
        else:
            here.reserved = max(wanted, here.reserved)


@cache
def reserver() -> Any:
    """`reserve` for Python."""
    made = c_function(types.void(types.intp, types.intp), reserve)
    return made.callable(None, ctypes.c_int64, ctypes.c_int64)


reserve_room = device(reserve)


@device
def append(kind, site):
    """The address of a new record, 0 if there is no room; all but its words is set."""
    log = as_launch(launch_word()).log
    if log == 0:  # of a program of numba.cuda
        return 0
    here = as_log(log)
    index = atomic_add_word(log, 1)
    if index >= here.reserved:
        reserve_room(log, index + 1)
    if index >= here.most:
        return 0
    address = here.records + index * RECORD_BYTES
    record = as_record(address)
    record.kind, record.site = kind, site
    record.launch = as_launch(launch_word()).number
    return address


@device
def event(kind, a, b, c, d, e, f):
    """Record an event of the calling thread."""
    address = append(kind, site_word())
    if address != 0:
        record = as_record(address)
        record.stamp = atomic_add_word(as_log(as_launch(launch_word()).log).stamp, 1)
        record.thread, record.clock = thread_number(), clock()
        words = record.words
        words[0], words[1], words[2], words[3], words[4], words[5] = a, b, c, d, e, f


@device
def whole(address):
    """An address that says of shared memory whose it is."""
    here = as_thread(thread_word())
    if 0 <= address - here.shared < as_launch(launch_word()).shared_bytes:
        return (
            address + SHARED - here.shared + (thread_number() // threads_of_block() << BLOCK_BITS)
        )
    return address


@device
def stamp_of_run(how):
    """The stamp of a run that begins; only those that write have one of their own."""
    log = as_launch(launch_word()).log
    if log == 0:
        return 0
    stamp = as_log(log).stamp
    return load_acquire(stamp) if how % VALUED == LOAD else atomic_add_word(stamp, 1)


@kept(forceinline=True)
def access(place, address, nbytes, how, value):
    run = as_run(place)
    if key(address) == run.next and run.left != 0:
        run.left -= 1
        run.next += run.more
        if how >= VALUED and value != run.value:
            run.how = how - VALUED
    else:
        turn(place, address, nbytes, how, value)


@device
def turn(place, address, nbytes, how, value):
    """An access that is the second of a run, which says how it goes on, or the first of another."""
    run = as_run(place)
    thread, now, there, this = thread_number(), clock(), whole(address), key(address)
    if run.most == 1 and now == run.clock:
        step, more, most = thread - run.thread, this - run.next, FOREVER
        stride = more - step * SPREAD
        if step == 1 and there != address:  # the next block has another memory there
            most = threads_to_come(run.thread)
        one_memory = there - run.address == stride
        if 0 <= step <= 1 and -FAR < stride < FAR and one_memory and most > 1:
            run.most, run.left, run.step, run.stride = most, most - 2, step, stride
            run.next, run.more = this + more, more
            if how >= VALUED and value != run.value:
                run.how = how - VALUED
            return
    if on_stack(address):
        return
    if run.most > 0:
        end_run(place)
    run.thread, run.clock, run.address, run.value = thread, now, there, value
    run.next, run.left, run.most = this, 0, 1
    run.stride, run.step, run.nbytes, run.how, run.site = 0, 0, nbytes, how, site_word()
    run.stamp = stamp_of_run(how)


@device
def end_run(place):
    """The run is one more row of those before it, or the first of others."""
    run, first, rows = as_run(place), as_run(place + FIRST), as_place(place)
    pitch, turn = run.address - first.address, run.thread - first.thread
    if rows.rows > 0 and are_alike(place, place + FIRST):
        if rows.rows == 1 and 0 <= turn <= 1 and -FAR < pitch < FAR:
            rows.pitch, rows.turn, rows.rows = pitch, turn, 2
            return
        if rows.rows > 1 and pitch == rows.rows * rows.pitch and turn == rows.rows * rows.turn:
            rows.rows += 1
            return
    end_rows(place)
    copy_bytes(place + FIRST, place, RUN_BYTES)
    rows.rows = 1


@device
def are_alike(one, other):
    """Whether two runs differ in where they begin, and in who accesses, at most."""
    run, first = as_run(one), as_run(other)
    same = run.most - run.left == first.most - first.left and run.clock == first.clock
    same = same and run.stride == first.stride and run.step == first.step
    same = same and run.how == first.how and run.site == first.site
    return same and run.nbytes == first.nbytes and (run.how < VALUED or run.value == first.value)


@device
def end_rows(place):
    run, rows = as_run(place + FIRST), as_place(place)
    address = append(ACCESS, run.site) if rows.rows > 0 else 0
    if address != 0:
        record = as_record(address)
        record.stamp, record.thread, record.clock = run.stamp, run.thread, run.clock
        words = record.words
        words[0], words[1], words[2] = run.address, run.stride, run.most - run.left
        words[3] = rows.rows << ROWS | run.nbytes << 2 | rows.turn << 1 | run.step
        words[4], words[5] = rows.pitch << HOW | run.how, run.value


@kept
def updated(place, address, what, operand, expected, old, used):
    if on_stack(address):
        end_turn(0)
        return
    nothing = (
        (what == CAS and old != expected)
        or (what == ADD and operand == 0)
        or (what == SET and operand == old)
        or (what == OR and operand | old == old)
        or (what == AND and operand & old == old)
    )
    if nothing:
        # A loop that polls sees the same many times, and a failure that nobody looks at is nothing.
        if used == 0 and schedule_word() == 0:
            return
        run, thread, now = as_run(place), thread_number(), clock()
        if (
            run.thread == thread + 1
            and run.clock == now
            and run.address == address
            and run.value == old
        ):
            end_turn(0)
            return
        run.thread, run.address, run.value = thread + 1, address, old
    advance()
    if nothing:
        as_run(place).clock = clock()
    turn = counted(0, types.intp(nothing), old)
    event(UPDATE, whole(address), what | used << 8, operand, expected, old, turn)
    end_turn(0)


@kept
def updates():
    begin_turn(0)


@kept
def fences(scope):
    advance()
    event(THREADFENCE, scope, 0, 0, 0, 0, 0)


@kept
def block_met():
    block = as_block(as_fiber(fiber_word()).block)
    met = clock() >> PHASE
    later(1 << PHASE)
    if block.phase == met:  # the first to go on
        block.phase = met + 1
        block.met_at, block.met_by = site_word(), thread_number()
        event(MET, block.index, met + 1, 0, 0, 0, 0)
    elif block.phase == met + 1 and block.met_at != 0 and block.met_at != site_word():
        event(DIVERGED, block.met_at, block.met_by, 0, 0, 0, 0)
        block.met_at = 0  # once for a meeting


@kept
def warp_meets(mask):
    advance()
    event(ARRIVED, 0, mask, 0, 0, 0, 0)


@kept
def warp_met(mask):
    advance()
    event(LEFT, 0, mask, 0, 0, 0, 0)


@kept
def grid_meets():
    advance()
    event(ARRIVED, 1, 0, 0, 0, 0, 0)


@kept
def grid_met():
    advance()
    event(LEFT, 1, 0, 0, 0, 0, 0)


OBSERVER = Observer(
    "check",
    fences,
    block_met,
    warp_meets,
    warp_met,
    grid_meets,
    grid_met,
    access=access,
    updated=updated,
    updates=updates,
)


# --- operations

CONTENTS_OF = "value", "status", "indices"  # arrays of numbers that say what a wait waits for
as_1, as_2, as_4, as_8 = (view(np.dtype([("v", f"i{n}")])) for n in (1, 2, 4, 8))


@device
def contents(which, address, count, itemsize):
    for k in range(count):
        place = address + k * itemsize
        number = 0
        if itemsize == 8:
            number = as_8(place).v
        elif itemsize == 4:
            number = as_4(place).v
        elif itemsize == 2:
            number = as_2(place).v
        else:
            number = as_1(place).v
        event(CONTENTS, which, k, number, 0, 0, 0)


@device
def set_of(address, count):
    """The set of the queue pairs in an array: a bit for each number modulo 64."""
    found = 0
    for k in range(count):
        found |= 1 << (as_4(address + 4 * k).v & 63)
    return found


@device
def whole_block_called():
    """After a call of the whole block: what follows has another clock."""
    block = as_block(as_fiber(fiber_word()).block)
    met = clock() >> PHASE
    later(1 << PHASE)
    if block.phase == met:
        block.phase = met + 1


@device
def own_event():
    advance()


@device
def warp_called():
    """After a call of the whole warp: from here on a lane knows of it."""
    advance()
    event(LEFT, CALL_OF_WARP, 0, 0, 0, 0, 0)


@device
def may_be_repeated():
    """A call begins that may change nothing."""
    here = as_launch(launch_word()).log
    as_fiber(fiber_word()).call = as_log(here).n if here != 0 else 0


@device
def forget_repeated(changes_nothing):
    """A call that changes nothing, and sees what an earlier one saw, has not been.

    Its records are at the end of the log, unless another thread has appended some. A loop that
    polls with such calls would fill the log: this way each value that it sees is there once, or
    once more for each that it sees of another word. A thread's *polls* are those of its calls since
    its last event of another kind. One is *news* if no poll before has been the same call, or the
    last such call saw something else. A poll is forgotten if one that is the same, and saw the
    same, comes after the last news:

    - It orders nothing more. The writes to the word that the one before must have seen, its thread
      knows. It has heard of nothing since, so for all it knows none has come between the two.
    - It is in no race that the one before is not in. Another thread knows of a poll by what its
      thread writes, or by a meeting; that is an event of another kind, and comes after both.

    What was seen before the last news is looked at once more: by what is known now, the same value
    may be one that was written again.
    """
    place, fiber = as_launch(launch_word()).log, as_fiber(fiber_word())
    before, now = fiber.poll, clock()
    fiber.poll = 0
    if place == 0 or changes_nothing == 0:
        return
    here, first = as_log(place), fiber.call
    end, records = here.n, here.records
    if end > here.most or not are_own(records, first, end):
        return
    if before != 0:
        poll = as_record(records + (before - 1) * RECORD_BYTES)
        if poll.clock != now - EVENTS_OF_CALL:  # there were other events
            before = 0
    last, again = before, 0
    for _ in range(MOST_POLLS):
        if last == 0 or again != 0:
            break
        poll = as_record(records + (last - 1) * RECORD_BYTES)
        again = is_again(records, last - poll.words[RECORDS], first, end)
        if again == 1 and poll.clock > fiber.news and compare_swap_word(place, end, first) == end:
            later(-EVENTS_OF_CALL)
            fiber.poll = before
            return
        last = poll.words[BEFORE]
    if again != 1:
        fiber.news = now - 1
    poll = as_record(records + (end - 1) * RECORD_BYTES)
    poll.words[RECORDS], poll.words[BEFORE] = end - first, before
    fiber.poll = end


@device
def are_own(records, first, end):
    """Whether all these records are of the calling thread."""
    me, launch = thread_number(), as_launch(launch_word()).number
    for k in range(first, end):
        record = as_record(records + k * RECORD_BYTES)
        if record.thread != me or record.launch != launch:
            return False
    return True


@device
def is_again(records, old, new, end):
    """Whether the records of two calls are the same, but for when: 1; -1: they saw something else.

    0 if the calls differ.
    """
    for j in range(end - new):
        one = as_record(records + (old + j) * RECORD_BYTES)
        other = as_record(records + (new + j) * RECORD_BYTES)
        same, seen = one.kind == other.kind and one.site == other.site, other.kind == DONE
        for k in range(TURN if seen else 6):
            same = same and one.words[k] == other.words[k]
        if not same:
            return -1 if seen or other.kind == CONTENTS else 0
    return 1


def polls(op: Op) -> bool:
    """Whether calls of an operation may change nothing, so that a loop may repeat them."""
    given = op.scope == THREAD_SCOPE and op.returns.dtype is not None and not op.waits
    return given and (turns.only_reads(op) or op.base in CHANGES_NOTHING)


def group_called(op: Op) -> Any:
    """What each thread does after a call of its group: what follows has another clock."""
    return whole_block_called if op.scope == BLOCK else warp_called


def generate(call: Any) -> None:
    """Record a call of an operation, with its effects, before it is performed."""
    op, zero = call.op, i64(0)
    scope = SCOPES.get(op.scope, 0)
    if turns.takes_turns(op):
        call.run(begin_turn, i64(scope))
    if polls(op):
        call.run(may_be_repeated)
    call.run(own_event)
    pe = call.integer("pe") if "pe" in call.values else i64(-1)
    # The place of a team, or of a queue pair.
    team = next((call.integer(name) for name in ("team", "qp") if name in call.values), i64(-1))
    compare = zero
    for name in COMPARED:
        if isinstance(call.argtypes.get(name), types.Integer):
            compare = call.integer(name)
    value = zero
    given = call.argtypes["dst"].dtype if op.named(Value) else call.argtypes.get("value")
    if isinstance(given, types.Integer):
        value = call.integer("value")
    elif op.named(UnitFlag):
        value = call.builder.and_(call.integer("flag"), i64(0xFFFFFFFF))
    elif op.named(Value):
        scope |= NO_INTEGER
    elif op.named(QueuePairs):
        words = (call.address("qps"), call.count("qps"))
        value = call.run(set_of, *words, returns=types.intp)
    seen = [
        (k, effect)
        for k, effect in enumerate(op.facts.effects)
        if isinstance(call.argtypes[effect.array], types.Array)
    ]
    scope += len(seen) << 8
    call.run(event, i64(OP), i64(KIND_OF[op.name]), i64(scope), pe, team, compare, value)
    for k, effect in seen:
        number, item = i64(k), call.itemsize(effect.array)
        nbytes, stride, pitch = call.nbytes(effect), call.stride(effect), zero
        matrix = call.rows(effect)
        if matrix is not None:
            rows, pitch, columns, stride = matrix
            number = call.builder.add(number, call.builder.shl(rows, i64(8)))
            empty = call.builder.icmp_signed("==", rows, zero)
            nbytes = call.builder.select(empty, zero, call.builder.mul(columns, item))
        place = call.run(whole, call.address(effect.array), returns=types.intp)
        call.run(event, i64(EFFECT), number, place, nbytes, stride, item, pitch)
    for which, name in enumerate(CONTENTS_OF):
        if isinstance(call.argtypes.get(name), types.Array) and name != "indices":
            call.run(
                contents, i64(which), call.address(name), call.count(name), call.itemsize(name)
            )


def _changes_nothing(call: Any, result: Any, name: str, how: str) -> Any:
    """Whether a call has changed nothing, as an int64; see CHANGES_NOTHING."""
    builder, argument = call.builder, call.integer(name)
    if how in ("|", "&"):
        combine, how = {"|": builder.or_, "&": builder.and_}[how], "=="
        argument = combine(result, argument)
    return builder.zext(builder.icmp_signed(how, result, argument), i64(0).type)


def generate_after(call: Any, result: Any, kind: int, _: Any) -> None:
    """Record that it has been performed; `kind` of result: 0 a number, 1 a truth, 2 neither."""
    call.run(own_event)
    if "indices" in call.values:
        which, place = i64(CONTENTS_OF.index("indices")), call.address("indices")
        call.run(contents, which, place, result, call.itemsize("indices"))
    nothing, turn, scope = i64(0), i64(0), i64(SCOPES.get(call.op.scope, 0))
    if polls(call.op):
        nothing, wanted = i64(1), CHANGES_NOTHING.get(call.op.base)
        if wanted is not None:
            name, how = wanted
            integer = isinstance(call.argtypes[name], types.Integer)
            nothing = _changes_nothing(call, result, name, how) if integer else i64(0)
    if turns.takes_turns(call.op):
        turn = call.run(counted, scope, nothing, result, returns=types.intp)
    words = i64(KIND_OF[call.op.name]), result, i64(kind), turn, i64(0), i64(0)
    call.run(event, i64(DONE), *words)
    if polls(call.op):
        call.run(forget_repeated, call.builder.select(
            call.builder.icmp_signed("==", turn, i64(0)), nothing, i64(0)
        ))  # fmt: skip
    if turns.takes_turns(call.op):
        call.run(end_turn, scope)
