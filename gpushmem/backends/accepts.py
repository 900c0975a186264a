"""What operations take in kernels, as Numba types: all backends refuse the rest in these words.

`call` looks at a whole call, by its row: the parameters' annotations say what each must be, `RULES`
what they must be together. It runs when a kernel is compiled, and raises `NumbaTypeError`, which
the user gets with the line of the call (`calls`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from numba.cuda import types
from numba.cuda.core.errors import NumbaTypeError

from gpushmem.ops import Op

__all__ = [
    "ATOMIC",
    "MULTIPLIED",
    "REDUCTIONS",
    "WAITED",
    "atomic_refusal",
    "call",
    "chosen",
    "fit",
]

Array = types.Array
Given = dict[str, Any]  # parameter -> type of what is given


def call(op: Op, args: tuple[Any, ...], kws: Given, converts: Callable[[Any, Any], bool]) -> Given:
    """Refuse a call that the row does not allow; returns what is given to which parameter.

    `converts` says whether a value of one type can be made one of another.
    """
    given = _bound(op, args, kws)
    fit(op, given)
    for name in [name for name in given if _kind_of(op, name) is SCALAR]:
        dtype = given["dst"].dtype
        if not converts(given[name], dtype):
            hint = "; to write several elements use put" if op.base == "p" else ""
            raise NumbaTypeError(
                f"{op.name}: {name} must be one value for an array of {dtype}, not "
                f"{described(given[name])}{hint}"
            )
    return given


def fit(op: Op, given: Given) -> None:
    """Refuse types that the row's parameters do not take, or that do not fit each other."""
    for name, typ in given.items():
        kind = _kind_of(op, name)
        if not kind.takes(typ):
            raise NumbaTypeError(f"{op.name}: {name} must be {kind.words}, not {described(typ)}")
    for rule in _rules_of(op.base):
        rule(op.name, given)


def described(typ: Any) -> str:
    """A type in a message; what is written in the call as it is written."""
    if isinstance(typ, types.Literal):
        return repr(typ.literal_value)
    if isinstance(typ, Array):
        return f"an array of {typ.dtype}"
    return "None" if isinstance(typ, types.NoneType) else str(typ)


def _bound(op: Op, args: tuple[Any, ...], kws: Given) -> Given:
    signature = _signature(op)
    shown = ", ".join(str(p.replace(annotation=p.empty)) for p in signature.parameters.values())
    for name in [name for name in kws if name not in signature.parameters]:
        raise NumbaTypeError(f"{op.name}({shown}) has no argument {name!r} in kernels")
    try:
        return dict(signature.bind(*args, **kws).arguments)
    except TypeError as error:
        raise NumbaTypeError(f"{op.name}({shown}): {error}") from None


@cache
def _signature(op: Op) -> inspect.Signature:
    """What a kernel calls: without `stream`."""
    signature = inspect.signature(op.function)
    parameters = [p for p in signature.parameters.values() if p.name in op.params]
    return signature.replace(parameters=parameters)


# --- one argument


class Kind(NamedTuple):
    """What a parameter takes."""

    words: str
    takes: Callable[[Any], bool]


def _is_array(typ: Any) -> bool:
    return isinstance(typ, Array)


def _is_integer(typ: Any) -> bool:
    if isinstance(typ, types.Optional):
        typ = typ.type
    return isinstance(typ, types.Integer | types.Boolean | types.IntEnumMember)


def _are_integers(typ: Any) -> bool:
    return isinstance(typ, Array) and isinstance(typ.dtype, types.Integer)


def _or_none(takes: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda typ: isinstance(typ, types.NoneType | types.Omitted) or takes(typ)


INTEGERS = Kind("an array of integers", _are_integers)
SCALAR = Kind("one value for the array", lambda _: True)  # `call` asks whether it can be converted
# How a declaration annotates a parameter -> what it takes.
KINDS = {
    "Symmetric": Kind("an array", _is_array),
    "Array": Kind("an array", _is_array),
    "Array | None": Kind("an array of integers, or None", _or_none(_are_integers)),
    "Scalar": SCALAR,
    "int": Kind("an integer", _is_integer),
    "int | None": Kind(
        "an integer of nanoseconds or None", _or_none(lambda typ: isinstance(typ, types.Integer))
    ),
    "Team": Kind("a team, which is an integer in kernels", _is_integer),
    "bool": Kind("True or False", _is_integer),
    "str": Kind("a text written in the call", lambda _: True),  # see `chosen`
}


@cache
def _kind_of(op: Op, name: str) -> Kind:
    if name == "indices" or (name == "value" and op.base.endswith("_vector")):
        return INTEGERS
    return KINDS[_signature(op).parameters[name].annotation]


# --- several arguments


def _arrays(name: str, given: Given) -> None:
    """Both contiguous, of one dtype."""
    dst, src = given["dst"], given["src"]
    for what, typ in (("dst", dst), ("src", src)):
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


def _gemm(name: str, given: Given) -> None:
    """Three matrices of one dtype."""
    dst = given["dst"]
    for what in ("dst", "a", "b"):
        typ = given[what]
        if typ.ndim != 2:
            raise NumbaTypeError(f"{name}: {what} must be an array of 2 axes, not {typ}")
        if str(typ.dtype) not in MULTIPLIED or typ.dtype != dst.dtype:
            raise NumbaTypeError(
                f"{name}: dst is of {dst.dtype}, {what} of {typ.dtype}; they must be of one "
                f"dtype: {', '.join(MULTIPLIED)}"
            )


def _strided(name: str, given: Given) -> None:
    """An array without other memory in its gaps."""
    array = given["array"]
    if array.layout == "A":
        raise NumbaTypeError(
            f"{name}: array is not contiguous ({array}): give the array it is part of, and slice "
            "the result"
        )


def _signal(name: str, given: Given) -> None:
    if given["signal"].dtype != types.uint64:
        raise NumbaTypeError(
            f"{name}: signal must be an array of uint64, not {described(given['signal'])}"
        )


# --- atomics

BITS = ("int32", "int64", "uint32", "uint64")
NUMBERS = (*BITS, "float32", "float64")
ATOMIC = {
    **dict.fromkeys(("fetch", "set", "swap", "add", "fetch_add"), NUMBERS),
    **dict.fromkeys(("compare_swap", "inc", "fetch_inc"), BITS),
    **{form + op: BITS for op in ("and", "or", "xor") for form in ("", "fetch_")},
}


def _atomic(name: str, given: Given) -> None:
    op, dst = name.removeprefix("atomic_"), given["dst"]
    if str(dst.dtype) not in ATOMIC[op]:
        raise NumbaTypeError(atomic_refusal(op, dst.dtype))


def atomic_refusal(op: str, dtype: Any) -> str:
    """What is said of an array of a dtype that has not the atomic operation `op`."""
    return f"atomic_{op}: dst must be an array of {', '.join(ATOMIC[op])}, not of {dtype}"


# --- waiting

WAITED = ("int16", "int32", "int64", "uint16", "uint32", "uint64")


def _awaited(name: str, given: Given) -> None:
    """What waits and tests take; the first parameter is what is looked at."""
    first = next(iter(given))
    dtypes = ("uint64",) if first == "signal" else WAITED
    typ = given[first]
    if str(typ.dtype) not in dtypes:
        raise NumbaTypeError(
            f"{name}: {first} must be an array of {', '.join(dtypes)}, not {described(typ)}"
        )
    for what in (first, "indices", "status", "value"):
        typ = given.get(what)
        if isinstance(typ, Array) and typ.layout != "C":
            raise NumbaTypeError(f"{name}: {what} is not contiguous ({typ})")


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
            f"call, not {described(op)}"
        )
    return str(value)


def _reduced(name: str, given: Given) -> None:
    """Arrays of a dtype that has the reduction."""
    op, dtype = chosen(name, given["op"]), given["src"].dtype
    _arrays(name, given)
    takes, called = REDUCTIONS[op]
    if not takes(dtype):
        raise NumbaTypeError(f'{name}: "{op}" is of {called}, not of {dtype}')


# --- which rules are whose

Rule = Callable[[str, Given], None]
COPIES = ("put", "get", "iput", "iget", "broadcast", "fcollect", "collect", "alltoall", "alltoalls")
RULES: dict[str, tuple[Rule, ...]] = {
    **dict.fromkeys(COPIES, (_arrays,)),
    "put_signal": (_arrays, _signal),
    "signal_op": (_signal,),
    "signal_fetch": (_awaited,),
    "signal_wait_until": (_awaited,),
    "reduce": (_reduced,),
    "reducescatter": (_reduced,),
    "peer_array": (_strided,),
    "multicast_array": (_strided,),
    "gemm": (_gemm,),
}
FAMILIES: dict[str, tuple[Rule, ...]] = {
    "atomic_": (_atomic,), "wait_until": (_awaited,), "test": (_awaited,),
}  # fmt: skip


@cache
def _rules_of(base: str) -> tuple[Rule, ...]:
    families = (rules for start, rules in FAMILIES.items() if base.startswith(start))
    return RULES.get(base) or next(families, ())
