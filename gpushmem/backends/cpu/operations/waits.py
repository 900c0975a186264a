"""Waits for writes of other PEs: signals, `wait_until` and `test`, and their families.

All read with acquire loads: what a PE wrote before the value waited for (and ordered before it, see
docs/memory-model.md) is visible when the wait is over. A wait keeps a record of what it waits for;
a test yields once to the launch's other threads, so that a loop around it lets them run.
"""

from __future__ import annotations

from typing import Any

from numba import types

from gpushmem.backends.cpu.operations.access import (
    address_of,
    aligned,
    as_world,
    check_symmetric,
    itemsize_of,
    nothing,
    size_of,
)
from gpushmem.backends.cpu.operations.hook import has_paused, will_pause
from gpushmem.backends.operation_errors import BAD_COMPARISON, BAD_TIMEOUT, EMPTY, TOO_SHORT
from gpushmem.native.memory import intrinsic, monotonic_ns
from gpushmem.ops import CMP_EQ, CMP_GE, CMP_GT, CMP_LE, CMP_LT, CMP_NE, OPS
from gpushmem.simt.functions import device
from gpushmem.simt.thread import (
    LOOKS,
    alone,
    begin_wait,
    end_wait,
    enter_timed,
    fail_if,
    leave_timed,
    pause,
    poll,
    text_word,
    user_word,
)

__all__ = [
    "BODIES",
    "NO_CANDIDATE",
    "element_at",
    "excluded",
    "holds",
    "looking_for_any",
    "looking_once",
    "waiting",
    "wanted_at",
]

NO_CANDIDATE = -(1 << 62)  # all elements are excluded
LONGEST = (1 << 63) - 1  # nanoseconds


# --- comparisons


def _place(context: Any, builder: Any, typ: Any, array: Any, index: Any) -> Any:
    """Pointer to an element of a contiguous array, in a code generator."""
    return builder.gep(context.make_array(typ)(context, builder, array).data, [index])


@intrinsic
def element_at(typingctx: Any, array: Any, index: Any) -> Any:
    """Element of a contiguous array, read in one piece; later accesses stay after it."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = _place(context, builder, array, *args)
        return builder.load_atomic(place, "acquire", array.dtype.bitwidth // 8)

    return array.dtype(array, types.intp), codegen


@intrinsic
def wanted_at(typingctx: Any, array: Any, value: Any, index: Any) -> Any:
    """What element `index` of `array` is compared with: `value`, or an element of it."""
    if not isinstance(value, types.Array):

        def scalar(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return args[1]

        return array.dtype(array, array.dtype, types.intp), scalar

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        found = builder.load(_place(context, builder, value, *args[1:]))
        return context.cast(builder, found, value.dtype, array.dtype)

    return array.dtype(array, value, types.intp), codegen


@intrinsic
def excluded(typingctx: Any, status: Any, index: Any) -> Any:
    """Whether `status`, an array or None, says that element `index` does not count."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if not isinstance(status, types.Array):
            return context.get_constant(types.boolean, False)
        found = builder.load(_place(context, builder, status, *args))
        return context.cast(builder, found, status.dtype, types.boolean)

    return types.boolean(status, types.intp), codegen


@intrinsic
def length_of(typingctx: Any, values: Any, otherwise: Any) -> Any:
    """Number of elements of an array; `otherwise` for other values."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if not isinstance(values, types.Array):
            return args[1]
        return context.make_array(values)(context, builder, args[0]).nitems

    return types.intp(values, types.intp), codegen


@intrinsic
def width_of(typingctx: Any, array: Any) -> Any:
    """Bytes of an element, negative if it is signed: how a report has to read it."""
    bytes_ = array.dtype.bitwidth // 8

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return context.get_constant(types.intp, -bytes_ if array.dtype.signed else bytes_)

    return types.intp(array), codegen


@device
def holds(seen, cmp, wanted):
    if cmp == CMP_EQ:
        return seen == wanted
    if cmp == CMP_NE:
        return seen != wanted
    if cmp == CMP_GT:
        return seen > wanted
    if cmp == CMP_LE:
        return seen <= wanted
    if cmp == CMP_LT:
        return seen < wanted
    fail_if(cmp != CMP_GE, BAD_COMPARISON, cmp, 0, 0, 0)
    return seen >= wanted


@device
def place_of(array, index):
    return address_of(array) + index * itemsize_of(array)


@device
def own(array, least):
    """Fail unless `array` is symmetric, aligned, and has at least so many elements."""
    fail_if(size_of(array) < least, EMPTY, address_of(array), 0, 0, 0)
    aligned(address_of(array), itemsize_of(array))
    check_symmetric(address_of(array), size_of(array) * itemsize_of(array))


@device
def ready(ivars, indices, status, value):
    """Fail unless the arguments fit each other."""
    own(ivars, 0)
    n = size_of(ivars)
    length = min(length_of(indices, n), length_of(status, n), length_of(value, n))
    fail_if(length < n, TOO_SHORT, n, length, 0, 0)


@device
def look(what, address, width):
    """`poll`, in a call."""
    will_pause()
    poll(what, address, width)
    has_paused()


# --- timeouts. `limit` is None for a wait without one; then these generate no code, as Numba prunes
# comparisons of None with None.


@intrinsic
def limit_of(typingctx: Any, timeout_ns: Any) -> Any:
    """Nanoseconds as int64, or None."""
    if isinstance(timeout_ns, types.NoneType):
        return types.none(timeout_ns), nothing

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word = context.cast(builder, args[0], timeout_ns, types.intp)
        if not getattr(timeout_ns, "signed", True):
            negative = builder.icmp_signed("<", word, word.type(0))  # 292 years and more
            word = builder.select(negative, word.type(LONGEST), word)
        return word

    return types.intp(timeout_ns), codegen


@device
def check_limit(limit):
    if limit is not None:
        fail_if(limit < 0, BAD_TIMEOUT, limit, 0, 0, 0)


@device
def begin_timed(limit):
    """Record, after `begin_wait`, that this wait has a limit; returns what the clock shows."""
    if limit is None:
        return 0
    enter_timed()
    return monotonic_ns()


@device
def is_late(limit, began):
    if limit is None:
        return False
    return monotonic_ns() - began >= limit  # the sum may overflow


@device
def end_timed(limit, held):
    if limit is not None:
        leave_timed(held)


@intrinsic
def either(typingctx: Any, limit: Any, forever: Any, timed: Any) -> Any:
    """What a wait returns: `forever` if it has no limit, else `timed`."""
    index = 1 if isinstance(limit, types.NoneType) else 2

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return args[index]

    return (limit, forever, timed)[index](limit, forever, timed), codegen


# --- comparing several elements. The answer is 0 or more, or -1 - index of the first element to
# wait for: one that counts and does not compare.


@device
def look_for_all(ivars, indices, status, cmp, value):
    """Answers 1 if all that count compare."""
    for i in range(size_of(ivars)):
        wanted = wanted_at(ivars, value, i)
        if not excluded(status, i) and not holds(element_at(ivars, i), cmp, wanted):
            return -1 - i
    return 1


def looking_for_any(first: Any) -> Any:
    """How to look for any: each time from the index `first()` on, taken modulo their number."""

    @device
    def look_for_any(ivars, indices, status, cmp, value):
        """Answers the index of one that counts and compares; NO_CANDIDATE if none counts."""
        n, answer = size_of(ivars), NO_CANDIDATE
        i = first() % max(n, 1)
        for _ in range(n):
            if not excluded(status, i):
                if holds(element_at(ivars, i), cmp, wanted_at(ivars, value, i)):
                    return i
                answer = max(answer, -1 - i)
            i = i + 1 if i + 1 < n else 0
        return answer

    return look_for_any


@device
def turn():
    """One more in each call of this PE, as NVSHMEM begins; threads at once may have the same."""
    world = as_world(user_word())
    world.turn += 1
    return world.turn - 1


@device
def look_for_some(ivars, indices, status, cmp, value):
    """Answers how many count and compare, their `indices` written; NO_CANDIDATE if none counts."""
    found, answer = 0, NO_CANDIDATE
    for i in range(size_of(ivars)):
        if not excluded(status, i):
            if holds(element_at(ivars, i), cmp, wanted_at(ivars, value, i)):
                indices[found] = i
                found += 1
            answer = max(answer, -1 - i)
    return found if found > 0 else answer


# --- the operations


def signal_fetch(signal):
    own(signal, 1)
    look(text_word("signal_fetch"), address_of(signal), width_of(signal))
    return element_at(signal, 0)


@device
def await_first(what, array, cmp, wanted, limit):
    """Wait until element 0 compares; returns it, or with a limit whether it does."""
    own(array, 1)
    check_limit(limit)
    seen = element_at(array, 0)
    turns, recorded, late, began = 0, False, False, 0
    while not holds(seen, cmp, wanted):
        turns += 1
        if turns % LOOKS == 0 or not alone():
            if not recorded:
                recorded = True
                begin_wait(what, address_of(array), cmp, types.intp(wanted), width_of(array))
                began = begin_timed(limit)
            elif is_late(limit, began):
                late = True
                break
            will_pause()
            pause()
            has_paused()
        seen = element_at(array, 0)
    if recorded:
        end_wait()
        end_timed(limit, not late)
    return either(limit, seen, not late)


def signal_wait_until(signal, cmp, value, timeout_ns=None):
    what, limit = text_word("signal_wait_until"), limit_of(timeout_ns)
    return await_first(what, signal, cmp, wanted_at(signal, value, 0), limit)


def wait_until(ivar, cmp, value, timeout_ns=None):
    what, limit = text_word("wait_until"), limit_of(timeout_ns)
    return either(limit, None, await_first(what, ivar, cmp, wanted_at(ivar, value, 0), limit))


def test(ivar, cmp, value):
    own(ivar, 1)
    look(text_word("test"), address_of(ivar), width_of(ivar))
    return holds(element_at(ivar, 0), cmp, wanted_at(ivar, value, 0))


@device
def all_hold(limit, answer):
    return either(limit, None, answer == 1)


@device
def index(limit, answer):
    return max(answer, -1)


@device
def count(limit, answer):
    return max(answer, 0)


# Of each family: how to look, what a wait returns, what a test returns.
FAMILIES = {
    "all": (look_for_all, all_hold, device(lambda answer: answer == 1)),
    "any": (looking_for_any(turn), index, device(lambda answer: max(answer, -1))),
    "some": (look_for_some, count, device(lambda answer: max(answer, 0))),
}


def waiting(name: str, look: Any = None) -> Any:
    """The body of a wait for several elements; `look` at them as its family does, or so."""
    usual, result, _ = FAMILIES[_family(name)]
    look = look or usual

    @device
    def wait(ivars, indices, status, cmp, value, timeout_ns):
        ready(ivars, indices, status, value)
        limit = limit_of(timeout_ns)
        check_limit(limit)
        recorded, began = 0, 0
        answer = look(ivars, indices, status, cmp, value)
        while NO_CANDIDATE < answer < 0:
            if recorded < 0 and is_late(limit, began):
                break
            if answer != recorded:
                first, recorded, i = recorded == 0, answer, -1 - answer
                wanted = types.intp(wanted_at(ivars, value, i))
                begin_wait(text_word(name), place_of(ivars, i), cmp, wanted, width_of(ivars))
                if first:
                    began = begin_timed(limit)
            will_pause()
            pause()
            has_paused()
            answer = look(ivars, indices, status, cmp, value)
        if recorded < 0:
            end_wait()
            end_timed(limit, answer >= 0)
        return result(limit, answer)

    def plain(ivars, status, cmp, value, timeout_ns=None):
        return wait(ivars, None, status, cmp, value, timeout_ns)

    def writing(ivars, indices, status, cmp, value, timeout_ns=None):
        return wait(ivars, indices, status, cmp, value, timeout_ns)

    return writing if "indices" in OPS[name].params else plain


def looking_once(name: str, look: Any = None) -> Any:
    """The body of a test of several elements."""
    usual, _, result = FAMILIES[_family(name)]
    look = look or usual

    @device
    def look_once(ivars, indices, status, cmp, value):
        ready(ivars, indices, status, value)
        poll(text_word(name), address_of(ivars), width_of(ivars))
        return result(look(ivars, indices, status, cmp, value))

    def plain(ivars, status, cmp, value):
        return look_once(ivars, None, status, cmp, value)

    def writing(ivars, indices, status, cmp, value):
        return look_once(ivars, indices, status, cmp, value)

    return writing if "indices" in OPS[name].params else plain


def _family(name: str) -> str:
    return name.removesuffix("_vector").rpartition("_")[2]


BODIES: dict[str, Any] = {
    f.__name__: f for f in (signal_fetch, signal_wait_until, wait_until, test)
}
for name in OPS:
    if name.startswith("wait_until_"):
        BODIES[name] = waiting(name)
    elif name.startswith("test_"):
        BODIES[name] = looking_once(name)
