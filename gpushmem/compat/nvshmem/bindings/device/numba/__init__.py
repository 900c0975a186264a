"""NVSHMEM's C functions in kernels, by their names without `nvshmem_`: on pointers.

A table: an operation, the dtypes that are part of the name, and the scopes. Each function makes
arrays of its pointers, as long as its last arguments say, and calls the operation. Arrays are taken
where pointers are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any

from numba.cuda import types

from gpushmem.compat.lowering import bound, name, pointed
from gpushmem.compat.nvshmem.bindings.device.numba import bodies
from gpushmem.ops import OPS

__all__ = ["nvshmemx_smem_amount_t"]


class nvshmemx_smem_amount_t(IntEnum):
    """How much shared memory a block gives."""

    NVSHMEMX_SMEM_RECOMMENDED = 0
    NVSHMEMX_SMEM_MINIMUM = 1
    NVSHMEMX_SMEM_BARRIERS_ONLY = 2
    NVSHMEMX_SMEM_AMOUNT_MAX = 2**31 - 1


# C's names of types -> Numba's.
TYPES = {
    "bfloat16": types.bfloat16, "half": types.float16, "float": types.float32,
    "double": types.float64, "char": types.int8, "schar": types.int8, "short": types.int16,
    "int": types.int32, "long": types.int64, "longlong": types.int64, "uchar": types.uint8,
    "ushort": types.uint16, "uint": types.uint32, "ulong": types.uint64,
    "ulonglong": types.uint64, "int8": types.int8, "int16": types.int16, "int32": types.int32,
    "int64": types.int64, "uint8": types.uint8, "uint16": types.uint16, "uint32": types.uint32,
    "uint64": types.uint64, "size": types.uint64, "ptrdiff": types.int64,
}  # fmt: skip
# What makes arrays of pointers to anything: functions that are named by bits, and by `mem`.
SIZES = {
    bits: pointed(dtype, any=True)
    for bits, dtype in (
        (8, types.uint8), (16, types.uint16), (32, types.uint32), (64, types.uint64),
        (128, types.complex128),
    )
}  # fmt: skip
MEMORY = bodies.anything
REDUCED = set(TYPES) - {"ptrdiff"}
UNSIGNED = {"uint", "ulong", "ulonglong", "uint32", "uint64"}
BITS = REDUCED - {
    "bfloat16", "half", "float", "double", "char", "schar", "short", "int", "long", "longlong",
}  # fmt: skip
SWAPPED = UNSIGNED | {"int", "long", "longlong", "size", "ptrdiff", "int32", "int64"}
FLOATS = {"float", "double"}
ADDED = UNSIGNED | {"int", "long", "size", "int32"}
WAITED = SWAPPED | {"short", "ushort"}
# Atomic operation -> the types that it is named by, and what it does.
ATOMICS = {
    "fetch": (SWAPPED | FLOATS, bodies.g),
    **dict.fromkeys(("set", "swap"), (SWAPPED | FLOATS, bodies.atomic)),
    "compare_swap": (SWAPPED, bodies.atomic_compare_swap),
    **dict.fromkeys(("inc", "fetch_inc"), (ADDED, bodies.g)),
    **dict.fromkeys(("add", "fetch_add"), (ADDED | FLOATS, bodies.atomic)),
    **{
        f"{fetch}{what}": (UNSIGNED | {"int32", "int64"}, bodies.atomic)
        for fetch in ("", "fetch_") for what in ("and", "or", "xor")
    },
}  # fmt: skip
MOVED = {"put": bodies.copy, "get": bodies.copy, "put_signal": bodies.put_signal}
COLLECTIVES = {
    "alltoall": bodies.alltoall, "fcollect": bodies.fcollect, "broadcast": bodies.broadcast,
}  # fmt: skip
SCOPES = "", "_warp", "_block"
# Operations by their own names -> C's names of their arguments.
SAME = {
    **dict.fromkeys(("my_pe", "n_pes", "fence", "quiet", "release_smem"), ""),
    **{f"flush{scope}": "" for scope in SCOPES},
    **dict.fromkeys(("team_my_pe", "team_n_pes"), "team"),
    "team_translate_pe": "src_team src_pe dest_team", "ask_smem": "flag",
}  # fmt: skip
FORMS = [f"{nbi}{scope}" for nbi in ("", "_nbi") for scope in SCOPES]
WAITS = [f"wait_until{kind}" for kind in ("_all", "_any", "_all_vector", "_any_vector")]
TESTS = [f"test{kind}" for kind in ("_all", "_any", "_all_vector", "_any_vector")]
SOME = [f"{what}_some{form}" for what in ("wait_until", "test") for form in ("", "_vector")]
REDUCTIONS = {
    **dict.fromkeys(("min", "max", "sum", "prod"), REDUCED),
    **dict.fromkeys(("and", "or", "xor"), BITS),
}
_bodies: dict[str, Callable[..., Any]] = {}


def _add(called: str, body: Callable[..., Any]) -> None:
    _bodies[called] = body
    __all__.append(called)


def __getattr__(called: str) -> Any:
    """Make a function when it is first asked for: there are thousands."""
    if called not in _bodies:
        raise AttributeError(f"nvshmem.bindings.device.numba has no {called} on the CPU")
    body = _bodies[called]
    code = body.__code__
    parameters = ", ".join(code.co_varnames[: code.co_argcount])
    made = bound(name(called, parameters, f"{called}({parameters}), in kernels"), body)
    return globals().setdefault(called, made)


def _operation(op: str) -> Any:
    found = OPS[op].function
    return bodies.on_qp(found) if op.startswith("qp_") else found


def _typed(pattern: str, names: Iterable[str], body: Callable[[Any, Any], Any], op: str) -> None:
    for each in sorted(names):
        _add(pattern.format(each), body(_operation(op), pointed(TYPES[each])))


for _qp in ("", "qp_"):
    _typed(f"{_qp}{{}}_p", TYPES, bodies.p, f"{_qp}p")
    _typed(f"{_qp}{{}}_g", TYPES, bodies.g, f"{_qp}g")
    for _form in FORMS:
        for _base, _body in MOVED.items():
            _typed(f"{_qp}{{}}_{_base}{_form}", TYPES, _body, f"{_qp}{_base}{_form}")
for _form in FORMS:
    for _base in ("put", "get"):
        _function = OPS[f"{_base}{_form}"].function
        _add(f"{_base}mem{_form}", bodies.copy(_function, MEMORY))
        for _bits, _at in SIZES.items():
            _add(f"{_base}{_bits}{_form}", bodies.copy(_function, _at))
    _function = OPS[f"put_signal{_form}"].function
    _add(f"putmem_signal{_form}", bodies.put_signal(_function, MEMORY))
    for _bits, _at in SIZES.items():
        _add(f"put{_bits}_signal{_form}", bodies.put_signal(_function, _at))
for _scope in SCOPES:
    for _base in ("iput", "iget"):
        _typed(f"{{}}_{_base}{_scope}", TYPES, bodies.strided, f"{_base}{_scope}")
        for _bits, _at in SIZES.items():
            _add(f"{_base}{_bits}{_scope}", bodies.strided(OPS[f"{_base}{_scope}"].function, _at))
    for _coll, _body in COLLECTIVES.items():
        _typed(f"{{}}_{_coll}{_scope}", TYPES, _body, f"{_coll}{_scope}")
        _add(f"{_coll}mem{_scope}", _body(OPS[f"{_coll}{_scope}"].function, MEMORY))
    for _which, _types in REDUCTIONS.items():
        for _coll in ("reduce", "reducescatter"):
            _typed(
                f"{{}}_{_which}_{_coll}{_scope}", _types,
                bodies.reducing(_coll, _which), f"{_coll}{_scope}",
            )  # fmt: skip
    for _called in ("barrier", "barrier_all", "sync_all"):
        _add(f"{_called}{_scope}", bodies.meeting(OPS[f"{_called}{_scope}"].function, _called))
    _add(f"team_sync{_scope}", bodies.meeting(OPS[f"sync{_scope}"].function, "sync"))
    for _called in ("qp_fence", "qp_quiet"):
        _add(f"{_called}{_scope}", bodies.on_qps(OPS[f"{_called}{_scope}"].function))
for _called, (_types, _body) in ATOMICS.items():
    _typed(f"{{}}_atomic_{_called}", _types, _body, f"atomic_{_called}")
_typed("{}_wait_until", WAITED, bodies.wait_until, "wait_until")
_typed("{}_test", WAITED, bodies.test, "test")
for _called in WAITS + TESTS:
    _typed(f"{{}}_{_called}", WAITED, bodies.several(_called), _called)
for _called in SOME:
    _typed(f"{{}}_{_called}", WAITED, bodies.some(_called), _called)
for _called, _names in SAME.items():
    _add(_called, bodies.same(OPS[_called].function, _names))
for _called in ("signal_op", "qp_signal_op"):
    _add(_called, bodies.signal_op(_operation(_called)))
_add("signal_fetch", bodies.signal_fetch(OPS["signal_fetch"].function))
_add("signal_wait_until", bodies.signal_wait_until(OPS["signal_wait_until"].function))
_add("give_smem", bodies.give_smem(OPS["give_smem"].function))
_add("mc_ptr", bodies.mc_ptr())
