"""What operations take in kernels, as Numba types: all backends refuse the rest in these words.

The checks run when a kernel is compiled. They raise `NumbaTypeError`, which Numba shows with the
user's line.
"""

from __future__ import annotations

from typing import Any

from numba.cuda import types
from numba.cuda.core.errors import NumbaTypeError

__all__ = [
    "ATOMIC",
    "MULTIPLIED",
    "REDUCTIONS",
    "WAITED",
    "arrays",
    "atomic",
    "atomic_refusal",
    "awaited",
    "chosen",
    "gemm",
    "reduction",
    "signalling",
    "strided",
    "timeout",
]

Array = types.Array


def arrays(name: str, dst: Any, src: Any) -> None:
    """Both contiguous, of one dtype."""
    for what, typ in (("dst", dst), ("src", src)):
        if not isinstance(typ, Array):
            raise NumbaTypeError(f"{name}: {what} must be an array, not {typ}")
        if typ.layout != "C":
            raise NumbaTypeError(
                f"{name}: {what} is not contiguous ({typ}): give the array it is part of to "
                "iput or iget, or copy it to an array that is"
            )
    if dst.dtype != src.dtype:
        raise NumbaTypeError(
            f"{name}: dst is an array of {dst.dtype}, src of {src.dtype}; "
            "they must have the same dtype"
        )


MULTIPLIED = ("float16", "float32", "float64")


def gemm(dst: Any, a: Any, b: Any) -> None:
    """Three matrices of one dtype."""
    for what, typ in (("dst", dst), ("a", a), ("b", b)):
        if not isinstance(typ, Array) or typ.ndim != 2:
            raise NumbaTypeError(f"gemm_block: {what} must be an array of 2 axes, not {typ}")
        if str(typ.dtype) not in MULTIPLIED or typ.dtype != dst.dtype:
            raise NumbaTypeError(
                f"gemm_block: dst is of {dst.dtype}, {what} of {typ.dtype}; they must be of one "
                f"dtype: {', '.join(MULTIPLIED)}"
            )


def strided(name: str, array: Any) -> None:
    """An array without other memory in its gaps."""
    if not isinstance(array, Array):
        raise NumbaTypeError(f"{name}: array must be an array, not {array}")
    if array.layout == "A":
        raise NumbaTypeError(
            f"{name}: array is not contiguous ({array}): give the array it is part of, and slice "
            "the result"
        )


def signalling(signal: Any, value: Any) -> None:
    """What `signal_op` takes."""
    if not isinstance(signal, Array) or signal.dtype != types.uint64:
        raise NumbaTypeError(f"signal_op: signal must be an array of uint64, not {signal}")
    if not isinstance(value, types.Integer):
        raise NumbaTypeError(f"signal_op: value must be an integer, not {value}")


# --- atomics

BITS = ("int32", "int64", "uint32", "uint64")
NUMBERS = (*BITS, "float32", "float64")
ATOMIC = {
    **dict.fromkeys(("fetch", "set", "swap", "add", "fetch_add"), NUMBERS),
    **dict.fromkeys(("compare_swap", "inc", "fetch_inc"), BITS),
    **{form + op: BITS for op in ("and", "or", "xor") for form in ("", "fetch_")},
}


def atomic(op: str, dst: Any) -> None:
    """An array of a dtype that has the atomic operation `op`."""
    if not isinstance(dst, Array) or str(dst.dtype) not in ATOMIC[op]:
        raise NumbaTypeError(atomic_refusal(op, dst))


def atomic_refusal(op: str, got: Any) -> str:
    """What is said of a target that has not the atomic operation `op`."""
    return f"atomic_{op}: dst must be an array of {', '.join(ATOMIC[op])}, not {got}"


# --- waiting

WAITED = ("int16", "int32", "int64", "uint16", "uint32", "uint64")


def awaited(
    name: str, ivars: Any, indices: Any, status: Any, value: Any, dtypes: tuple[str, ...] = WAITED
) -> None:
    """What waits and tests take; `indices` and `status` may be None."""
    _flat(name, "signal" if "signal" in name else "ivar", ivars, dtypes)
    for what, typ in (("indices", indices), ("status", status)):
        if not isinstance(typ, types.NoneType):
            _flat(name, what, typ)
    if name.endswith("_vector"):
        _flat(name, "value", value)
    elif not isinstance(value, types.Integer):
        raise NumbaTypeError(f"{name}: value must be an integer, not {value}")


def _flat(name: str, what: str, typ: Any, dtypes: tuple[str, ...] = ()) -> None:
    if not isinstance(typ, Array) or not isinstance(typ.dtype, types.Integer):
        raise NumbaTypeError(f"{name}: {what} must be an array of integers, not {typ}")
    if dtypes and str(typ.dtype) not in dtypes:
        raise NumbaTypeError(f"{name}: {what} must be of {', '.join(dtypes)}, not {typ.dtype}")
    if typ.layout != "C":
        raise NumbaTypeError(f"{name}: {what} is not contiguous ({typ})")


def timeout(name: str, timeout_ns: Any) -> None:
    """An integer, or None."""
    if not isinstance(timeout_ns, types.Integer | types.NoneType):
        raise NumbaTypeError(
            f"{name}: timeout_ns must be an integer of nanoseconds or None, not {timeout_ns}"
        )


# --- reductions


def _is_number(*kinds: type) -> Any:
    return lambda typ: isinstance(typ, kinds) and not isinstance(typ, types.Boolean)


real = (types.Integer, types.Float, type(types.bfloat16))


def _is_pair(typ: Any) -> bool:
    fields = list(typ.fields.values()) if isinstance(typ, types.Record) else []
    return len(fields) == 2 and all(isinstance(field.type, real) for field in fields)


# Which dtypes an operation is for, and what they are called.
REDUCTIONS = {
    "sum": (_is_number(*real, types.Complex), "numbers"),
    "prod": (_is_number(*real, types.Complex), "numbers"),
    "min": (_is_number(*real), "integers or floats"),
    "max": (_is_number(*real), "integers or floats"),
    "and": (_is_number(types.Integer), "integers"),
    "or": (_is_number(types.Integer), "integers"),
    "xor": (_is_number(types.Integer), "integers"),
    "maxloc": (_is_pair, "records of two numbers"),
}


def chosen(name: str, op: Any) -> str:
    """The reduction that the argument `op` names."""
    value = getattr(op, "literal_value", None)
    if value not in REDUCTIONS:
        raise NumbaTypeError(
            f"{name}: op must be one of {', '.join(map(repr, REDUCTIONS))}, written in the "
            f"call, not {op if value is None else repr(value)}"
        )
    return str(value)


def reduction(name: str, op: str, dst: Any, src: Any) -> None:
    """Arrays of a dtype that has the reduction `op`."""
    arrays(name, dst, src)
    takes, called = REDUCTIONS[op]
    if not takes(src.dtype):
        raise NumbaTypeError(f'{name}: "{op}" is of {called}, not of {src.dtype}')
