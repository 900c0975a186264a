"""The operations in kernels: each row of the table is a call of NVSHMEM's device function.

`CALLS` has the function's name and arguments. In the name, `{form}` is the scope and the completion
mode, `{unit}` the width in bits of the counted units, `{ctype}` NVSHMEM's name of the dtype, `{op}`
the reduction. An argument is one of the operation's (of an array, the address), one computed from
it, or, in upper case, one of `gpushmem.ops.constants`. Nothing is checked or converted when a
kernel runs: the machine code is that of the bindings called by hand, but for what `ordering` adds.
Operations without such a function are written in Python, in `composed`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from llvmlite import ir
from numba.cuda import types
from numba.cuda.core.errors import NumbaTypeError
from numba.cuda.cudadecl import registry
from numba.cuda.extending import _Intrinsic as Intrinsic
from numba.cuda.extending import overload

from gpushmem.backends import argument_types
from gpushmem.backends.codegen import with_signature
from gpushmem.backends.nvshmem.operations import (
    accesses,
    composed,
    elements,
    mbarriers,
    multimem,
    ordering,
)
from gpushmem.backends.nvshmem.operations.device_calls import (
    Value,
    call,
    function_for,
    itemsize_of,
    signature_of,
    unit_of,
)
from gpushmem.backends.nvshmem.trace import ranges
from gpushmem.backends.nvshmem.trace.instrumentation import TracedOperation
from gpushmem.ops import OPS, constants, roles
from gpushmem.ops.row import BLOCK, Op

__all__ = ["CALLS", "CORE", "check", "install", "meanings"]


class Call(NamedTuple):
    """A device function and its arguments."""

    name: str
    arguments: str = ""


def _words(op: Op, given: dict[str, Any]) -> None:
    """Check arrays that NVSHMEM reads and writes as C integers of one width."""
    for name, taken in (("status", STATUS), ("indices", INDICES)):
        typ = given.get(name)
        if isinstance(typ, types.Array) and typ.dtype not in taken:
            raise NumbaTypeError(
                f"{op.name}: {name} must be an array of {' or '.join(map(str, taken))} on GPUs, "
                f"not of {typ.dtype}"
            )


STATUS = (types.int32, types.uint32)  # int
INDICES = (types.int64, types.uint64)  # size_t
WORD, SIZE = types.intp, types.uint64
SEVERAL = "ivars size(ivars) status cmp value"
WRITING = "ivars size(ivars) indices status cmp value"
PART = "team dst src part(src)"
BY_TMA = ("put", "get", "put_signal")  # what it may do, if the block has given shared memory

CALLS = {
    "my_pe": Call("my_pe"),
    "n_pes": Call("n_pes"),
    "put": Call("put{unit}{form}", "dst src count(src) pe"),
    "get": Call("get{unit}{form}", "dst src count(dst) pe"),
    "iput": Call("iput{width}{form}", "dst src dst_stride src_stride nelems pe"),
    "iget": Call("iget{width}{form}", "dst src dst_stride src_stride nelems pe"),
    "put_signal": Call(
        "put{unit}_signal{form}", "dst src count(src) signal value op pe"
    ),
    "qp_put": Call("qp_uint{unit}_put{form}", "dst src count(src) pe qp"),
    "qp_get": Call("qp_uint{unit}_get{form}", "dst src count(dst) pe qp"),
    "qp_put_signal": Call(
        "qp_uint{unit}_put_signal{form}", "dst src count(src) signal value op pe qp"
    ),
    "qp_signal_op": Call("qp_signal_op", "signal value op pe qp"),
    "qp_fence": Call("qp_fence{form}", "pe qps size(qps)"),
    "qp_quiet": Call("gpushmem_qp_quiet{form}", "pe qps size(qps)"),
    "signal_op": Call("signal_op", "signal value op pe"),
    "signal_fetch": Call("signal_fetch", "signal"),
    "signal_wait_until": Call("signal_wait_until", "signal cmp value"),
    "wait_until": Call("{ctype}_wait_until", "ivar cmp value"),
    "test": Call("{ctype}_test", "ivar cmp value"),
    "fence": Call("fence"),
    "flush": Call("flush{form}"),
    "quiet": Call("quiet"),
    "give_smem": Call("give_smem", "smem bytes(smem)"),
    "release_smem": Call("gpushmem_release_smem"),
    "team_my_pe": Call("team_my_pe", "team"),
    "team_n_pes": Call("team_n_pes", "team"),
    "team_translate_pe": Call("team_translate_pe", "src_team src_pe dst_team"),
    "barrier": Call("barrier{form}", "team"),
    "barrier_all": Call("barrier_all{form}"),
    "sync": Call("team_sync{form}", "team"),
    "sync_all": Call("sync_all{form}"),
    "broadcast": Call("broadcastmem{form}", "team dst src bytes(src) root"),
    "fcollect": Call("fcollectmem{form}", "team dst src bytes(src)"),
    "alltoall": Call("alltoallmem{form}", "team dst src partbytes(src)"),
    "reduce": Call("{ctype}_{op}_reduce{form}", "team dst src size(src)"),
    "reducescatter": Call("{ctype}_{op}_reducescatter{form}", PART),
} | {
    name: Call(f"{{ctype}}_{name}", " ".join(op.params))
    for name, op in OPS.items() if name.startswith("atomic_") and name not in composed.CHOICES
} | {
    f"{verb}_{family}{form}": Call(
        f"{{ctype}}_{verb}_{family}{form}", WRITING if family == "some" else SEVERAL
    )
    for verb in ("wait_until", "test") for family in ("all", "any", "some")
    for form in ("", "_vector")
}  # fmt: skip


# --- names


def _name(op: Op, row: Call, given: dict[str, Any]) -> str:
    """The device function for arguments of these types; raises `NumbaTypeError`."""
    arrays = [typ for typ in given.values() if isinstance(typ, types.Array)]
    words = {"form": op.form}
    pattern = row.name
    if "{op}" in pattern:
        words["op"] = which = argument_types.literal_reduction(op, given["op"])
        pattern = _reduction(op, which, arrays[0], pattern)
    if "{unit}" in pattern:
        words["unit"] = str(8 * unit_of(itemsize_of(arrays[0])))
    if "{width}" in pattern:
        words["width"] = str(8 * itemsize_of(arrays[0]))
    if "{ctype}" in pattern:
        dtype = getattr(arrays[0].dtype, "underlying_float", arrays[0].dtype)
        rest = pattern.replace("{ctype}", "{{ctype}}").format(**words)
        return function_for(op.name, dtype, rest)
    name = pattern.format(**words)
    if signature_of(name) is None:
        raise NumbaTypeError(
            f"{op.name}: NVSHMEM has no {name}, which arrays of {arrays[0].dtype} need on GPUs"
        )
    return name


def _reduction(op: Op, which: str, array: Any, pattern: str) -> str:
    """Complex numbers are summed as pairs; of pairs NVSHMEM has one reduction, in blocks."""
    if isinstance(array.dtype, types.Complex) and which != "sum":
        raise NumbaTypeError(f'{op.name}: NVSHMEM has "{which}" not of {array.dtype} on GPUs')
    if which != "maxloc":
        return pattern
    fields = [field.type for field in array.dtype.fields.values()]
    if op.base != "reduce" or op.scope != BLOCK or fields != [types.float64, types.float64]:
        raise NumbaTypeError(
            f'{op.name}: on GPUs NVSHMEM has "maxloc" in reduce_block only, of records of two '
            "float64"
        )
    return "double2_maxloc_reduce_block"


# --- arguments


class Site:
    """One call of an operation in a kernel: the code of its arguments."""

    def __init__(self, context: Any, builder: Any, values: dict[str, Value]) -> None:
        self.context, self.builder, self.values = context, builder, values

    def argument(self, text: str) -> Value:
        """The value of an argument as `CALLS` writes it."""
        made = re.fullmatch(r"(\w+)\((\w+)\)", text)
        if made is None and text.isupper():
            kind = self.context.get_value_type(WORD)
            return Value(WORD, ir.Constant(kind, int(getattr(constants, text))))
        if made is None:
            return self.values[text]
        return Value(SIZE, getattr(self, f"_{made[1]}")(self.values[made[2]]))

    def _array(self, value: Value) -> Any:
        return self.context.make_array(value.type)(self.context, self.builder, value.code)

    def _size(self, value: Value) -> Any:
        pairs = 2 if isinstance(value.type.dtype, types.Complex) else 1
        return self._times(self._array(value).nitems, pairs)

    def _bytes(self, value: Value) -> Any:
        return self._times(self._array(value).nitems, itemsize_of(value.type))

    def _count(self, value: Value) -> Any:
        itemsize = itemsize_of(value.type)
        return self._times(self._array(value).nitems, itemsize // unit_of(itemsize))

    def _part(self, value: Value) -> Any:
        return self.builder.udiv(self._size(value), self._members())

    def _partbytes(self, value: Value) -> Any:
        return self.builder.udiv(self._bytes(value), self._members())

    def _members(self) -> Any:
        n = call(self.context, self.builder, "team_n_pes", [self.values["team"]])
        return self.builder.zext(n, self.context.get_value_type(SIZE))

    def _times(self, code: Any, factor: int) -> Any:
        return code if factor == 1 else self.builder.mul(code, code.type(factor))


def _code(op: Op, row: Call, name: str, result: Any) -> Callable[..., Any]:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        given = map(Value, sig.args, args)
        values = dict(zip(op.params, given, strict=False))
        site = Site(context, builder, values)
        taken = [site.argument(text) for text in row.arguments.split()]
        if op.plain in BY_TMA:
            call(context, builder, "gpushmem_before_tma", [])
        elif op.facts.orders == "barrier":
            call(context, builder, "gpushmem_after_tma", [])
        with ordering.around(builder, op):
            returned = call(context, builder, name, taken)
        if result == types.void:
            return context.get_dummy_value()
        return context.cast(builder, returned, signature_of(name).return_type, result)

    return codegen


# --- rows


def _type_of(op: Op, param: str, given: Any, taken: dict[str, Any]) -> Any:
    """The type that an argument is converted to; that of the element for values."""
    if isinstance(given, types.Array | types.NoneType | types.StringLiteral):
        return given
    if issubclass(op.roles[param], roles.SignalValue):
        return SIZE
    if issubclass(op.roles[param], roles.Value | roles.Wanted):
        return next(t for t in taken.values() if isinstance(t, types.Array)).dtype
    return types.unliteral(given) if isinstance(given, types.Integer) else WORD


def _definition(op: Op, row: Call) -> Any:
    """The definition of the operation's intrinsic: types of a call, and its code."""

    def define(typingctx: Any, *args: Any) -> Any:
        given = dict(zip(op.params, args, strict=False))
        name = _name(op, row, given)
        result = _result(op, given)
        taken = [_type_of(op, param, typ, given) for param, typ in given.items()]
        return result(*taken), _code(op, row, name, result)

    names = [name for name, role in op.roles.items() if role is not roles.Timeout]
    return with_signature(op.name, ["typingctx", *names], lambda given: define(*given))


RESULTS = {None: types.void, "int64": WORD, "uint64": SIZE, "bool": types.boolean}


def _result(op: Op, given: dict[str, Any]) -> Any:
    dtype = op.result()
    return given[next(iter(op.arrays))].dtype if dtype == "element" else RESULTS[dtype]


# Names of rows -> the intrinsics made here, which `composed` calls.
CORE: dict[str, Any] = {}


def install() -> None:
    """Give every row of the operation table its meaning in kernels on GPUs."""
    if not _installed:
        _installed.append(True)
        for name, meaning in meanings().items():
            op = OPS[name]
            operation = TracedOperation(op, partial(_same, meaning), check)
            registry.register_global(op.function, operation)


_installed: list[bool] = []


def meanings() -> dict[str, Any]:
    """What Numba is to call for each row of the operation table."""
    rows = [op for op in OPS.values() if op.kernel]
    for op in rows if not CORE else ():
        if op.base in CALLS:
            row = CALLS[op.base]
            CORE[op.name] = _intrinsic(op, _definition(op, row), "{op}" in row.name)
        elif op.base in elements.DEFINITIONS:
            CORE[op.name] = _intrinsic(op, elements.DEFINITIONS[op.base])
        elif op.base in accesses.DEFINITIONS:
            CORE[op.name] = _intrinsic(op, accesses.DEFINITIONS[op.base], prefer_literal=True)
        elif op.base in multimem.NAMES:
            CORE[op.name] = _intrinsic(op, multimem.definition(op), prefer_literal=True)
        elif op.base in ranges.DEFINITIONS:
            CORE[op.name] = _intrinsic(op, ranges.DEFINITIONS[op.base](op), prefer_literal=True)
    return {op.name: _overloaded(op) if _is_composed(op) else CORE[op.name] for op in rows}


def _is_composed(op: Op) -> bool:
    """Whether a row is a function in Python: intrinsics cannot have optional numbers."""
    if op.base in composed.CHOICES:
        return True
    if op.base in accesses.DEFINITIONS:
        return False
    parameters = inspect.signature(op.function).parameters
    optional = any(parameters[name].default is not inspect.Parameter.empty for name in op.params)
    return optional or op.name not in CORE


def _same(meaning: Any) -> Any:
    return meaning


def check(op: Op, given: dict[str, Any]) -> None:
    """Raise for calls that NVSHMEM, or the GPU, has no function for."""
    _words(op, given)
    mbarriers.check(op)
    if op.base in CALLS and "timeout_ns" not in given:
        _name(op, CALLS[op.base], given)


def _intrinsic(op: Op, definition: Any, prefer_literal: bool = False) -> Any:
    made = Intrinsic(op.name, definition, prefer_literal)
    made._register()
    return made


def _overloaded(op: Op) -> Any:
    """A new function that is overloaded with the one from `composed`."""

    def meaning(*args: Any) -> None:
        pass

    overload(meaning)(composed.body_of(op, CORE))
    return meaning
