"""What the names of numba.cuda mean in a kernel that is interpreted: one table, `MEANINGS`."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda import cache_hints, cg, stubs

from gpushmem.artifacts.gpu_model import LANES, modelled
from gpushmem.errors import KernelError
from gpushmem.simt.interpret.arrays import fresh, in_kernel, looked_at
from gpushmem.simt.interpret.numbers import (
    READ,
    UNSIGNED,
    Cast,
    dtype_of,
    fitted,
    numba_type,
    number,
)
from gpushmem.simt.interpret.threads import FULL, Thread, caller, current

__all__ = ["BUILTINS", "MEANINGS", "means"]

# id of an object that a kernel refers to -> the object, and what it means in a kernel
MEANINGS: dict[int, tuple[Any, Any]] = {}
BUILTINS: dict[str, Any] = {}  # the same for names of Python's
u32, getitem = UNSIGNED[32], np.ndarray.__getitem__


def means(original: Any, meaning: Any) -> Any:
    """Enter a meaning in the table."""
    MEANINGS[id(original)] = original, meaning
    return meaning


def implements(*originals: Any) -> Callable[[Any], Any]:
    """Enter a function in the table."""

    def enter(function: Any) -> Any:
        for original in originals:
            means(original, function)
        return function

    return enter


# --- special registers


class Register:
    """`threadIdx` and the like."""

    def __init__(self, name: str, read: Callable[[Thread], tuple[int, int, int]]) -> None:
        self._name, self._read = name, read

    x = property(lambda self: self._read(current())[0])
    y = property(lambda self: self._read(current())[1])
    z = property(lambda self: self._read(current())[2])

    def __repr__(self) -> str:
        return f"{self._name}{self._read(current())}"


for _stub, _read in (
    (cuda.threadIdx, lambda t: t.tid),
    (cuda.blockIdx, lambda t: t.block.bid),
    (cuda.blockDim, lambda t: t.block.grid.shape.block),
    (cuda.gridDim, lambda t: t.block.grid.shape.grid),
):
    means(_stub, Register(_stub.__name__, _read))


class Lane:
    """`laneid`, an integer that is another one in each thread."""

    def __index__(self) -> int:
        return current().lane

    __int__ = __index__

    def __repr__(self) -> str:
        return str(int(self))


for _name in (
    "add", "sub", "mul", "floordiv", "truediv", "mod", "pow", "and_", "or_", "xor", "lshift",
    "rshift", "lt", "le", "gt", "ge", "eq", "ne",
):  # fmt: skip
    _op, _plain = getattr(operator, _name), _name.rstrip("_")
    setattr(Lane, f"__{_plain}__", lambda self, other, op=_op: op(int(self), other))
    setattr(Lane, f"__r{_plain}__", lambda self, other, op=_op: op(other, int(self)))

means(cuda.laneid, Lane())
means(cuda.warpsize, LANES)


@implements(cuda.lanemask_lt)
def lanemask_lt() -> int:
    return u32((1 << current().lane) - 1)


def _per_axis(of_axis: Callable[[Thread, int], int], n: int) -> Any:
    if n not in (1, 2, 3):
        raise ValueError(f"ndim must be 1, 2 or 3, not {n}")
    thread = current()
    return of_axis(thread, 0) if n == 1 else tuple(of_axis(thread, k) for k in range(n))


@implements(cuda.grid)
def grid(ndim: int) -> Any:
    return _per_axis(
        lambda t, k: t.block.bid[k] * t.block.grid.shape.block[k] + t.tid[k], int(ndim)
    )


@implements(cuda.gridsize)
def gridsize(ndim: int) -> Any:
    return _per_axis(
        lambda t, k: t.block.grid.shape.grid[k] * t.block.grid.shape.block[k], int(ndim)
    )


# --- memory


def _bytes_of(shape: Any, dtype: np.dtype[Any]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


@implements(stubs.shared.array)
def shared_array(shape: Any, dtype: Any, alignment: int | None = None) -> Any:
    """An array of the block: the same one for each place in the code."""
    block, dtype = current().block, dtype_of(dtype)
    if isinstance(shape, int | np.integer) and shape == 0:
        if block.dynamic is None:
            block.dynamic = fresh(block.grid.shape.dynamic_shared, np.dtype(np.uint8))
        whole = block.dynamic.nbytes // dtype.itemsize * dtype.itemsize
        return in_kernel(block.dynamic.view(np.ndarray)[:whole].view(dtype))
    frame = caller()
    key = frame.f_code, frame.f_lasti, dtype
    if key not in block.shared:
        block.shared_bytes += _bytes_of(shape, dtype)
        most = modelled().limits.max_shared
        if block.shared_bytes > most:
            raise KernelError(
                f"kernel {block.grid.name} needs {block.shared_bytes} bytes of shared memory per "
                f"block, {block.grid.shape.dynamic_shared} of them dynamic; {most} are "
                "possible"
            )
        block.shared[key] = fresh(shape, dtype)
    return block.shared[key]


@implements(stubs.local.array)
def local_array(shape: Any, dtype: Any, alignment: int | None = None) -> Any:
    return fresh(shape, dtype_of(dtype))


@implements(stubs.const.array_like)
def const_array_like(array: Any) -> Any:
    return in_kernel(np.asarray(array))


for _name in ("ldca", "ldcg", "ldcs", "ldlu", "ldcv"):
    means(getattr(cache_hints, _name), lambda array, index: array[index])
for _name in ("stcg", "stcs", "stwb", "stwt"):
    means(getattr(cache_hints, _name), lambda array, index, value: array.__setitem__(index, value))
for _name in ("threadfence", "threadfence_block", "threadfence_system"):
    means(getattr(cuda, _name), lambda: None)


# --- barriers


@implements(cuda.syncthreads)
def syncthreads() -> None:
    thread = current()
    thread.block.meet(thread, "syncthreads")


def _counting(name: str, result: Callable[[int, int], int]) -> None:
    @implements(getattr(cuda, name))
    def counting(predicate: Any) -> int:
        thread = current()
        return result(*thread.block.meet(thread, name, predicate))


_counting("syncthreads_count", lambda votes, living: votes)
_counting("syncthreads_and", lambda votes, living: int(votes == living))
_counting("syncthreads_or", lambda votes, living: int(votes > 0))


class GridGroup:
    """The grid."""

    def sync(self) -> int:
        thread = current()
        thread.block.grid.meet(thread)
        return 0


means(cg.this_grid, GridGroup)


@implements(cuda.nanosleep)
def nanosleep(ns: int) -> None:
    current().give_way()


# --- warps


@implements(cuda.syncwarp)
def syncwarp(mask: int = FULL) -> None:
    current().meet("syncwarp", mask, None, lambda lanes: None)


def _signed(bits: int) -> Any:
    return READ[np.int32](bits - (bits >> 31 << 32))


def _bits(lanes: list[Thread], holds: Callable[[Any], Any] = bool) -> int:
    return sum(1 << t.lane for t in lanes if holds(t.value))


def _give_all(lanes: list[Thread], result: Any) -> None:
    for lane in lanes:
        lane.result = result


def _vote(name: str, result: Callable[[int, int], Any]) -> None:
    def give(lanes: list[Thread]) -> None:
        _give_all(lanes, result(_bits(lanes), _bits(lanes, lambda value: True)))

    @implements(getattr(cuda, name))
    def vote(mask: int, predicate: Any) -> Any:
        return current().meet(name, mask, predicate, give)


_vote("all_sync", lambda bits, lanes: bits == lanes)
_vote("any_sync", lambda bits, lanes: bits != 0)
_vote("eq_sync", lambda bits, lanes: bits in (lanes, 0))
_vote("ballot_sync", lambda bits, lanes: _signed(bits))


def _match_any(lanes: list[Thread]) -> None:
    for lane in lanes:
        lane.result = _signed(_bits(lanes, partial(operator.eq, lane.value)))


def _match_all(lanes: list[Thread]) -> None:
    same = all(t.value == lanes[0].value for t in lanes)
    _give_all(lanes, (_signed(_bits(lanes, lambda value: True)) if same else 0, same))


@implements(cuda.match_any_sync)
def match_any_sync(mask: int, value: Any) -> Any:
    return current().meet("match_any_sync", mask, value, _match_any)


@implements(cuda.match_all_sync)
def match_all_sync(mask: int, value: Any) -> Any:
    return current().meet("match_all_sync", mask, value, _match_all)


@implements(cuda.activemask)
def activemask() -> int:
    return u32(current().active())


def _shuffle(name: str, source: Callable[[int, int], int]) -> None:
    """`source(lane, argument)` is the lane whose value a lane gets; its own if there is none."""

    def give(lanes: list[Thread]) -> None:
        values = {t.lane: t.value[0] for t in lanes}
        for lane in lanes:
            value, argument = lane.value
            lane.result = values.get(source(lane.lane, argument), value)

    @implements(getattr(cuda, name))
    def shuffle(mask: int, value: Any, argument: int) -> Any:
        return current().meet(name, mask, (value, int(argument)), give)


_shuffle("shfl_sync", lambda lane, source: source % LANES)
_shuffle("shfl_up_sync", operator.sub)
_shuffle("shfl_down_sync", operator.add)
_shuffle("shfl_xor_sync", operator.xor)


# --- atomics


def _atomic(name: str, new: Callable[[Any, Any], Any]) -> None:
    """`new(old, value)` is what is stored."""

    @implements(getattr(stubs.atomic, name))
    def change(array: Any, index: Any, value: Any) -> Any:
        old = getitem(array, index)
        array[index] = new(old, fitted(value, array.dtype))
        looked_at(array, index)
        return number(old)


def _inc(old: Any, value: Any) -> Any:
    return 0 if old >= value else old + 1


def _dec(old: Any, value: Any) -> Any:
    return value if old == 0 or old > value else old - 1


CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "and_": operator.and_, "or_": operator.or_,
    "xor": operator.xor, "exch": lambda old, value: value, "inc": _inc, "dec": _dec,
    "max": max, "min": min,  # a NaN on either side changes nothing
    "nanmax": np.fmax, "nanmin": np.fmin,
}  # fmt: skip
for _name, _new in CHANGES.items():
    _atomic(_name, _new)


@implements(stubs.atomic.cas)
def cas(array: Any, index: Any, old: Any, value: Any) -> Any:
    found = getitem(array, index)
    if found == fitted(old, array.dtype):
        array[index] = value
    else:
        current().give_way()  # to the thread that has the lock
    return number(found)


@implements(stubs.atomic.compare_and_swap)
def compare_and_swap(array: Any, old: Any, value: Any) -> Any:
    return cas(array, (0,) * array.ndim, old, value)


# --- integers and floats


def _word(value: Any, least: int = 8) -> tuple[int, int]:
    """The bits of an integer, and how many they are."""
    width = max(least, numba_type(value).bitwidth)
    return int(value) & (1 << width) - 1, width


@implements(cuda.popc)
def popc(value: Any) -> int:
    return _word(value)[0].bit_count()


@implements(cuda.clz)
def clz(value: Any) -> int:
    bits, width = _word(value)
    return width - bits.bit_length()


@implements(cuda.ffs)
def ffs(value: Any) -> int:
    bits, _ = _word(value)
    return (bits & -bits).bit_length()


@implements(cuda.brev)
def brev(value: Any) -> Any:
    bits, width = _word(value, 32)
    return UNSIGNED[width](int(f"{bits:0{width}b}"[::-1], 2))


@implements(cuda.selp)
def selp(condition: Any, first: Any, second: Any) -> Any:
    return first if condition else second


# --- vector types


class Vector:
    """A value of a vector type, such as `float32x4`."""

    def __init__(self, name: str, values: list[Any]) -> None:
        self._name, self._values = name, values

    x = property(lambda self: self._values[0])
    y = property(lambda self: self._values[1])
    z = property(lambda self: self._values[2])
    w = property(lambda self: self._values[3])

    def __repr__(self) -> str:
        return f"{self._name}({', '.join(map(str, self._values))})"


def _vector(stub: Any) -> None:
    name, count = stub.__name__[:-2], int(stub.__name__[-1])
    cast = Cast(np.dtype(name).type)

    @implements(stub)
    def make(*parts: Any) -> Vector:
        values: list[Any] = []
        for part in parts:
            values += part._values if isinstance(part, Vector) else [part]
        if len(values) != count:
            raise TypeError(f"{stub.__name__} takes {count} values, got {len(values)}")
        return Vector(stub.__name__, [cast(value) for value in values])


for _value in vars(cuda).values():
    if isinstance(_value, type) and issubclass(_value, stubs.Stub) and hasattr(_value, "aliases"):
        _vector(_value)


# --- Python's and NumPy's functions

for _code in "?bhilqBHILQefdFD":
    _scalar = np.dtype(_code).type
    means(_scalar, Cast(_scalar))
for _name in (
    "boolean", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128", "intp", "uintp", "intc", "uintc",
):  # fmt: skip
    _type = getattr(cuda.types, _name)
    means(_type, Cast(_type))


def _of_floats(ufunc: Any) -> Callable[..., Any]:
    """NumPy's function as one of `math`: of floats, and of integers as floats."""

    def function(*values: Any) -> Any:
        return ufunc(*(v if isinstance(v, np.inexact) else np.float64(v) for v in values))

    return function


for _name in (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "sin", "sinh",
    "tan", "tanh", "copysign", "degrees", "radians", "exp", "exp2", "expm1", "fabs", "fmod",
    "hypot", "ldexp", "log", "log10", "log1p", "log2", "pow", "sqrt", "isnan", "isinf", "isfinite",
):  # fmt: skip
    _numpys = {"pow": "power"}.get(_name, _name.replace("acos", "arccos").replace("asin", "arcsin"))
    _numpys = _numpys.replace("atan", "arctan")
    if hasattr(math, _name) and _name != "ldexp":
        means(getattr(math, _name), _of_floats(getattr(np, _numpys)))


@implements(math.trunc)
def trunc(value: Any) -> int:
    return int(value)


@implements(math.remainder)
def remainder(x: Any, y: Any) -> float:
    try:
        return math.remainder(x, y)
    except ValueError:  # of infinity, or by zero
        return math.nan


def text_of(value: Any) -> str:
    """A value as a GPU prints it."""
    if isinstance(value, float | np.floating):
        return f"{value:f}"
    return str(value)


def printed(*values: Any, **options: Any) -> None:
    """Print, as a GPU does."""
    print(*map(text_of, values), **options)


BUILTINS |= {"print": printed, "float": Cast(np.float64)}
