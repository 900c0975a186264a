"""Collectives in kernels: rounds of a team, and copies between its members' memory.

Data that fit a box are sent in one round (`rounds`), from each member to each, and read from the
boxes when all members have arrived. No member accesses another one's arrays, so no other round is
needed.

Larger data move between the arrays themselves, between two rounds: after the first, all members
have called, so their `src` can be read and their `dst` written; after the second, all have
finished. A reduction has one part per member, which reads that part of every `src`, tile by tile,
combines it in its cache, and writes it to every `dst`. Each byte of `src` is read once and each
byte of `dst` written once; in shared memory no ring or tree does better.
"""

from __future__ import annotations

from typing import Any

from numba import types

from gpushmem.backends.cpu.operations.access import (
    MOST,
    address_of,
    array_at,
    as_world,
    check_strides,
    check_symmetric,
    copy_large,
    copy_strided,
    itemsize_of,
    size_of,
)
from gpushmem.backends.cpu.sync.barrier import (
    as_line,
    as_team,
    box,
    box_at,
    line,
    pe_of,
    post,
    rank_of,
    say,
)
from gpushmem.backends.cpu.sync.host_barrier import BYTES, DTYPE, KINDS, dtype_number
from gpushmem.backends.cpu.sync.world import TEAM
from gpushmem.backends.operation_errors import (
    BAD_ROOT,
    BAD_TEAM,
    ELSEWHERE,
    ENDED,
    MISMATCH,
    NO_ROOM,
    NOT_DIVISIBLE,
)
from gpushmem.backends.reductions import COMBINE
from gpushmem.diagnosis.pe_state import MEMBER
from gpushmem.job.board import PE
from gpushmem.native.memory import copy_bytes, full_fence, intrinsic, load_acquire, store_release
from gpushmem.simt.functions import device, outlined
from gpushmem.simt.thread import (
    LOOKS,
    alone,
    begin_wait,
    end_wait,
    fail_if,
    fail_with,
    pause,
    text_word,
    user_word,
)

__all__ = ["BODIES", "REDUCING", "TEAM_BYTES", "team_at"]

TEAM_BYTES, PE_BYTES = TEAM.itemsize, PE.itemsize
BARRIER, SYNC, BROADCAST, FCOLLECT, COLLECT, ALLTOALL, ALLTOALLS = (
    KINDS.index(what)
    for what in ("barrier", "sync", "broadcast", "fcollect", "collect", "alltoall", "alltoalls")
)
PART = 64  # elements; parts of a reduction begin at multiples of it


# --- teams


@device
def team_at(team):
    """Address of this PE's record of a team."""
    world = as_world(user_word())
    fail_if(team < 0 or team >= world.max_teams, BAD_TEAM, team, 0, 0, 0)
    address = world.teams + team * TEAM_BYTES
    fail_if(as_team(address).n_pes == 0, BAD_TEAM, team, 0, 0, 0)
    return address


def team_my_pe(team):
    return as_team(team_at(team)).my_pe if team != -1 else -1


def team_n_pes(team):
    return as_team(team_at(team)).n_pes if team != -1 else -1


def team_translate_pe(src_team, src_pe, dst_team):
    if src_team == -1 or dst_team == -1:
        return -1
    source, target = team_at(src_team), team_at(dst_team)
    if src_pe < 0 or src_pe >= as_team(source).n_pes:
        return -1
    return rank_of(target, pe_of(source, src_pe))


# --- rounds


@outlined
def await_member(what, team, number, rank, compares):
    """Wait until member `rank` is in round `number`; if asked, fail if its call differs."""
    own = line(team, number, rank)
    pe = pe_of(team, rank)
    world = as_world(user_word())
    if load_acquire(own) < number:
        begin_wait(what, own, MEMBER, pe, 8)
        turns = 0
        while load_acquire(own) < number:
            turns += 1
            if turns % LOOKS == 0 or not alone():
                ended = load_acquire(world.pes + pe * PE_BYTES)
                fail_if(ended != 0 and load_acquire(own) < number, ENDED, pe, 0, 0, 0)
                pause()
        end_wait()
    if compares:
        compare(team, own, pe)


@device
def compare(team, own, pe):
    """Fail if another member's line describes another call than this PE's."""
    ours, theirs = as_team(team).said, as_line(own).said
    index = (team - as_world(user_word()).teams) // TEAM_BYTES
    calls = (pe, theirs[0], ours[0], index, theirs[1], ours[1])
    fail_with(theirs[0] != ours[0] or theirs[1] != ours[1], MISMATCH, calls)
    for k in range(2):
        at, place = theirs[2 + k], ours[2 + k]
        fail_if(at != place, ELSEWHERE, pe, at, place, k)


@outlined
def await_all(what, team, number, compares):
    """Wait until all members are in round `number`; if asked, fail if a call differs."""
    record = as_team(team)
    for rank in range(record.n_pes):
        if rank != record.my_pe:
            await_member(what, team, number, rank, compares)


@outlined
def begin(what, team):
    """Begin a round and return its number: all have read what was sent in the last but one."""
    record = as_team(team)
    number, unchecked = record.round, record.unchecked != 0
    record.unchecked = 0
    await_all(what, team, number, unchecked)
    record.round = number + 1
    return number + 1


@device
def begin_with(what, team, kind, detail, dst, src):
    """`begin` for the first round of a call, in which all members' descriptions must agree."""
    number = begin(what, team)
    say(team, kind, detail, dst, src)
    return number


@outlined
def post_all(team, number):
    record = as_team(team)
    for rank in range(record.n_pes):
        if rank != record.my_pe:
            post(team, number, rank)


@outlined
def meet_again(what, team):
    """A later round of a call, in which nothing is sent."""
    number = begin(what, team)
    post_all(team, number)
    await_all(what, team, number, True)


@outlined
def meet(what, team, kind):
    """A call of one round in which nothing is sent."""
    number = begin_with(what, team, kind, 0, 0, 0)
    post_all(team, number)
    await_all(what, team, number, True)


@device
def tell_word(what, team, number, word):
    """A round that sends all members a word; after it, their arrays may be used."""
    record = as_team(team)
    for rank in range(record.n_pes):
        if rank != record.my_pe:
            store_release(box_at(team, number, rank, 8), word)
            post(team, number, rank)
    await_all(what, team, number, True)


@device
def open_arrays(what, team, number):
    """A round after which the members' arrays may be used."""
    post_all(team, number)
    await_all(what, team, number, True)


@device
def place_of(array):
    """Heap offset of an array that must be at the same offset on all members."""
    return address_of(array) - as_world(user_word()).heap


@device
def send(team, number, rank, source, nbytes):
    """Send `nbytes` to member `rank`'s box, and be in round `number` for it."""
    copy_bytes(box_at(team, number, rank, nbytes), source, nbytes)
    post(team, number, rank)


def barrier(team):
    # No fence: copies are stored before the round's number, which is stored with release order.
    meet(text_word("barrier"), team_at(team), BARRIER)


def barrier_all():
    meet(text_word("barrier_all"), team_at(0), BARRIER)


def sync(team):
    meet(text_word("sync"), team_at(team), SYNC)


def sync_all():
    meet(text_word("sync_all"), team_at(0), SYNC)


# --- copies


@intrinsic
def dtype_of(typingctx: Any, array: Any) -> Any:
    """The number of an array's dtype."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return context.get_constant(types.intp, dtype_number(str(array.dtype)))

    return types.intp(array), codegen


@device
def kind_of(code, src, nbytes):
    """The call of a member as one number; see `meeting.KINDS`."""
    return code + dtype_of(src) * DTYPE + nbytes * BYTES


@device
def need(dst, n, src):
    """Fail unless `dst` has room for `n` elements, and both arrays are symmetric."""
    fail_if(size_of(dst) < n, NO_ROOM, size_of(dst), n, address_of(dst), 0)
    check_symmetric(address_of(dst), n * itemsize_of(dst))
    check_symmetric(address_of(src), size_of(src) * itemsize_of(src))


@device
def on_member(team, address, rank):
    """Address on member `rank` of the heap memory that is at `address` on this PE."""
    return address + (pe_of(team, rank) - as_team(team).world_pe) * as_world(user_word()).stride


@device
def after(team, k):
    """The member `k` places after this PE, cyclically."""
    record = as_team(team)
    rank = record.my_pe + k
    return rank if rank < record.n_pes else rank - record.n_pes


@device
def part_of(src, team):
    """Elements of a part of `src`, one for each member."""
    n = as_team(team).n_pes
    fail_if(size_of(src) % n != 0, NOT_DIVISIBLE, size_of(src), n, 0, 0)
    return size_of(src) // n


def broadcast(team, dst, src, root=0):
    what, team = text_word("broadcast"), team_at(team)
    record = as_team(team)
    fail_if(root < 0 or root >= record.n_pes, BAD_ROOT, root, record.n_pes - 1, 0, 0)
    need(dst, size_of(src), src)
    nbytes = size_of(src) * itemsize_of(src)
    kind = kind_of(BROADCAST, src, nbytes)
    source, target = address_of(src), address_of(dst)
    number = begin_with(what, team, kind, root, place_of(dst), place_of(src))
    if nbytes > record.box_bytes:
        open_arrays(what, team, number)
        copy_large(target, on_member(team, source, root), nbytes, (record.n_pes + 1) * nbytes)
        full_fence()
        meet_again(what, team)
    else:
        if record.my_pe == root:
            for k in range(1, record.n_pes):
                send(team, number, after(team, k), source, nbytes)
            copy_bytes(target, source, nbytes)
        else:
            post_all(team, number)
            await_member(what, team, number, root, True)
            copy_bytes(target, box(team, number, root, nbytes), nbytes)
        record.unchecked = 1  # the root has not waited, the others only for the root


@device
def exchange(what, team, kind, dst, src, step, nbytes):
    """Member k gets `nbytes` of `src`, at byte `k * step`; what it sends goes to the k-th place."""
    record = as_team(team)
    n, me = record.n_pes, record.my_pe
    target, source = address_of(dst), address_of(src)
    number = begin_with(what, team, kind, 0, place_of(dst), 0)
    if nbytes > record.box_bytes:
        open_arrays(what, team, number)
        for k in range(n):
            rank = after(team, k)
            place = on_member(team, target + me * nbytes, rank)
            copy_large(place, source + rank * step, nbytes, n * (n + 1) * nbytes)
        full_fence()
        meet_again(what, team)
        return
    for k in range(1, n):
        rank = after(team, k)
        send(team, number, rank, source + rank * step, nbytes)
    copy_bytes(target + me * nbytes, source + me * step, nbytes)
    for k in range(1, n):
        rank = after(team, k)
        await_member(what, team, number, rank, True)
        copy_bytes(target + rank * nbytes, box(team, number, rank, nbytes), nbytes)


def fcollect(team, dst, src):
    team = team_at(team)
    need(dst, as_team(team).n_pes * size_of(src), src)
    nbytes = size_of(src) * itemsize_of(src)
    exchange(text_word("fcollect"), team, kind_of(FCOLLECT, src, nbytes), dst, src, 0, nbytes)


def alltoall(team, dst, src):
    team = team_at(team)
    nbytes = part_of(src, team) * itemsize_of(src)
    need(dst, size_of(src), src)
    kind = kind_of(ALLTOALL, src, nbytes)
    exchange(text_word("alltoall"), team, kind, dst, src, nbytes, nbytes)


def collect(team, dst, src):
    what, team = text_word("collect"), team_at(team)
    record = as_team(team)
    need(dst, 0, src)
    number = begin_with(what, team, kind_of(COLLECT, src, 0), 0, place_of(dst), 0)
    tell_word(what, team, number, size_of(src))
    first = total = 0
    for rank in range(record.n_pes):
        if rank == record.my_pe:
            first = total
            total += size_of(src)
        else:
            total += load_acquire(box(team, number, rank, 8))
    need(dst, total, src)
    size = itemsize_of(src)
    for k in range(record.n_pes):
        target = on_member(team, address_of(dst) + first * size, after(team, k))
        copy_large(target, address_of(src), size_of(src) * size, record.n_pes * total * size)
    full_fence()
    meet_again(what, team)


def alltoalls(team, dst, src, dst_stride, src_stride, nelems):
    what, team = text_word("alltoalls"), team_at(team)
    record = as_team(team)
    whole = min(nelems, MOST // record.n_pes) * record.n_pes
    check_strides(dst, src, dst_stride, src_stride, whole)
    need(dst, size_of(dst), src)
    size = itemsize_of(src)
    kind, strides = kind_of(ALLTOALLS, src, nelems * size), dst_stride << 32 | src_stride
    open_arrays(what, team, begin_with(what, team, kind, strides, place_of(dst), 0))
    mine = address_of(dst) + record.my_pe * nelems * dst_stride * size
    for k in range(record.n_pes):
        rank = after(team, k)
        source = address_of(src) + rank * nelems * src_stride * size
        copy_strided(dst, on_member(team, mine, rank), dst_stride, source, src_stride, nelems)
    meet_again(what, team)


# --- reductions


def _folder(op: str) -> Any:
    """Make two functions that combine arrays: those in boxes, and those of a team's members.

    Boxes are `step` bytes apart, from `base` on; `place` is where an array of a member is here.
    """
    combine = device(COMBINE[op])

    def two(like, target, first, second, count):
        out = array_at(like, target, count)
        a, b = array_at(like, first, count), array_at(like, second, count)
        for i in range(count):
            out[i] = combine(a[i], b[i])

    two = outlined(two, f"{__name__}.two({op})")

    @device
    def fold(like, target, base, step, n, count):
        if n == 1:
            copy_bytes(target, base, count * itemsize_of(like))
        else:
            two(like, target, base, base + step, count)
        for k in range(2, n):
            two(like, target, target, base + k * step, count)

    @device
    def fold_members(like, target, team, place, count):
        n, first = as_team(team).n_pes, on_member(team, place, 0)
        if n == 1:
            copy_bytes(target, first, count * itemsize_of(like))
        else:
            two(like, target, first, on_member(team, place, 1), count)
        for k in range(2, n):
            two(like, target, target, on_member(team, place, k), count)

    return fold, fold_members


def _reducing(name: str, op: str) -> Any:
    fold, fold_members = _folder(op)
    code, scatters = KINDS.index(f"{name}({op})"), name == "reducescatter"

    def reducing(team, dst, src):
        what, team = text_word(name), team_at(team)
        record = as_team(team)
        n, me, size = record.n_pes, record.my_pe, itemsize_of(src)
        count = part_of(src, team) if scatters else size_of(src)
        need(dst, count, src)
        nbytes = count * size
        kind = kind_of(code, src, nbytes)
        source, target = address_of(src), address_of(dst)
        stride = nbytes if scatters else 0  # from one member's part to the next one's
        place = 0 if scatters else place_of(dst)  # each writes its own, maybe its part of `src`
        number = begin_with(what, team, kind, 0, place, place_of(src))
        if nbytes <= record.box_bytes:
            for k in range(1, n):
                rank = after(team, k)
                send(team, number, rank, source + rank * stride, nbytes)
            base = box(team, number, 0, nbytes)
            step = box(team, number, 1, nbytes) - base
            copy_bytes(base + me * step, source + me * stride, nbytes)
            await_all(what, team, number, True)
            fold(dst, target, base, step, n, count)
            return
        open_arrays(what, team, number)
        # This PE's part, tile by tile: combined in a box of its own, then written where it belongs.
        part = count if scatters else ((count + n - 1) // n + PART - 1) // PART * PART
        first = 0 if scatters else me * part
        tile, touched = record.box_bytes // size, 2 * n * nbytes
        scratch = box(team, record.round, me, record.box_bytes)
        base = source + me * stride
        for at in range(first, min(first + part, count), tile):
            length = min(tile, count - at, first + part - at)
            fold_members(dst, scratch, team, base + at * size, length)
            if scatters:
                copy_large(target + at * size, scratch, length * size, touched)
            else:
                for k in range(n):
                    place = on_member(team, target + at * size, after(team, k))
                    copy_large(place, scratch, length * size, touched)
        full_fence()
        meet_again(what, team)

    return reducing


BODIES = {
    f.__name__: f
    for f in (
        team_my_pe, team_n_pes, team_translate_pe, barrier, barrier_all, sync, sync_all, broadcast,
        fcollect, collect, alltoall, alltoalls,
    )
}  # fmt: skip
# Of these there is one for each value of `op`, the last argument.
REDUCING = {
    name: {op: _reducing(name, op) for op in COMBINE} for name in ("reduce", "reducescatter")
}
