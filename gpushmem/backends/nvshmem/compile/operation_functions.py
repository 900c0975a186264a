"""Operations as functions of their own, which kernels of another compiler call.

A call of an operation with arguments of certain types becomes a C function of 64-bit words, whose
body is what numba-cuda makes of that call in a kernel (`lowering`): LTO-IR, which the linker puts
into the kernel as it does NVSHMEM's. So every row has one meaning, whichever compiler a kernel has.

An array is passed as its address, extents and strides in bytes; an integer as it is; any other
value by its address. A result that is no integer is left at an address that is passed first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.descriptor import cuda_target
from numba.cuda.extending import _Intrinsic as Intrinsic
from numba.cuda.np.arrayobj import populate_array

from gpushmem.artifacts.compile_errors import Refused
from gpushmem.backends.nvshmem.operations import lowering
from gpushmem.backends.nvshmem.operations.device_calls import itemsize_of
from gpushmem.ops.roles import Groups, Vector, VectorSize
from gpushmem.ops.row import Op

__all__ = ["PREFIX", "Outlined", "outline"]

PREFIX = "gpushmem_op_"
WORD = types.int64
Given = dict[str, Any]  # parameter -> numba-cuda's type of what is given


class Outlined(NamedTuple):
    """The C function for a call: its name, its Python code, and what it takes and returns."""

    name: str
    function: Callable[..., Any]
    words: int
    result: Any  # the type of the operation's result
    by_address: bool  # of the result


def outline(op: Op, given: Given) -> Outlined:
    """The function for a call of an operation; raises Numba's errors if there can be none."""
    lowering.install()
    if any(map(op.named, (Vector, VectorSize, Groups))):  # texts with defaults, tuples, literals
        raise _refused(op)
    context = cuda_target.typing_context
    positional, named = _split(op, given)
    context.refresh()
    callee = context.resolve_value_type(op.function)
    result = context.resolve_function_type(callee, positional, named).return_type
    by_address = result != types.void and not isinstance(result, types.Integer | types.Boolean)
    if by_address and not isinstance(result, types.Array) and not _is_plain(result):
        raise _refused(op)
    text, scope, n = _source(op, given, result, by_address)
    digest = blake2b(repr((op.name, *map(str, given.items()))).encode(), digest_size=8)
    name = f"{PREFIX}{op.name}_{digest.hexdigest()}"
    exec(text, scope)  # noqa: S102
    return Outlined(name, scope[op.name], n, result, by_address)


def _refused(op: Op) -> Refused:
    return Refused(
        f"{op.name} cannot be called in kernels of numba-cuda-mlir: compile this one with "
        "GPUSHMEM_COMPILER=numba-cuda"
    )


def _is_plain(typ: Any) -> bool:
    return isinstance(typ, types.Number | types.Record | type(types.bfloat16)) or not hasattr(
        typ, "array"
    )


def _split(op: Op, given: Given) -> tuple[tuple[Any, ...], Given]:
    """Arguments by position as long as none is missing, then by name."""
    first = next((k for k, name in enumerate(op.params) if name not in given), len(op.params))
    named = {name: given[name] for name in op.params[first:] if name in given}
    return tuple(given[name] for name in op.params[:first]), named


def _source(op: Op, given: Given, result: Any, by_address: bool) -> tuple[str, Given, int]:
    """The text of the function, what it mentions, and the number of its words."""
    scope: Given = {"operation": op.function, "__name__": __name__}
    n, arguments, (positional, _) = int(by_address), {}, _split(op, given)
    for name, typ in given.items():
        if isinstance(typ, types.NoneType):
            arguments[name] = "None"
        elif isinstance(typ, types.StringLiteral):
            arguments[name] = repr(typ.literal_value)
        else:
            words = 1 + 2 * typ.ndim if isinstance(typ, types.Array) else 1
            scope[f"take_{name}"] = _taking(types.unliteral(typ))
            arguments[name] = f"take_{name}(({', '.join(f'w{n + k}' for k in range(words))},))"
            n += words
    ordered = [name for name in op.params if name in given]
    call = ", ".join(
        arguments[name] if k < len(positional) else f"{name}={arguments[name]}"
        for k, name in enumerate(ordered)
    )
    body = f"operation({call})"
    if by_address:
        scope["leave"] = _leaving(result)
        body = f"leave(w0, {body})"
    elif result != types.void:
        body = f"return int({body})"
    parameters = ", ".join(f"w{k}" for k in range(n))
    return f"def {op.name}({parameters}):\n    {body}\n    return 0\n", scope, n


def _taking(typ: Any) -> Any:
    """An intrinsic that makes a value of a type of words."""

    def take(typingctx: Any, words: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return _value(context, builder, typ, cgutils.unpack_tuple(builder, args[0]))

        return typ(words), codegen

    return _registered(Intrinsic("take", take))


def _value(context: Any, builder: Any, typ: Any, words: Sequence[Any]) -> Any:
    if isinstance(typ, types.Array):
        array = context.make_array(typ)(context, builder)
        data = builder.inttoptr(words[0], array.data.type)
        extents, strides = list(words[1 : 1 + typ.ndim]), list(words[1 + typ.ndim :])
        size = context.get_constant(types.intp, itemsize_of(typ))
        populate_array(array, data, extents, strides, size, None)
        return array._getvalue()
    if isinstance(typ, types.Boolean):
        return builder.icmp_unsigned("!=", words[0], words[0].type(0))
    if isinstance(typ, types.Integer):
        return context.cast(builder, words[0], WORD, typ)
    kind = context.get_data_type(typ).as_pointer()
    return context.unpack_value(builder, typ, builder.inttoptr(words[0], kind))


def _leaving(typ: Any) -> Any:
    """An intrinsic that leaves a result at an address; of an array, its own address."""

    def leave(typingctx: Any, where: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            if isinstance(typ, types.Array):
                data = context.make_array(typ)(context, builder, args[1]).data
                word = builder.ptrtoint(data, ir.IntType(64))
                builder.store(word, builder.inttoptr(args[0], word.type.as_pointer()))
            else:
                kind = context.get_data_type(typ).as_pointer()
                context.pack_value(builder, typ, args[1], builder.inttoptr(args[0], kind))
            return context.get_dummy_value()

        return types.void(where, typ), codegen

    return _registered(Intrinsic("leave", leave))


def _registered(made: Any) -> Any:
    made._register()
    return made
