"""Kernels compiled by numba-cuda-mlir, without a GPU or a driver.

All code that depends on numba-cuda-mlir's internals is in this file, for the versions that
`versions.MLIR` names. It compiles the kernel to LTO-IR. An operation in it is a call of a C
function, which `operation_functions` has for the types of the call; the linker gets those, and
NVSHMEM's, with the kernel.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from numba.cuda import types as numba_types
from numba.cuda.core.errors import TypingError as NumbaTypingError
from numba.cuda.np import numpy_support as numba_numpy
from numba_cuda_mlir import cuda, mlir_compiler, mlir_optimization, tools, types
from numba_cuda_mlir._mlir import ir
from numba_cuda_mlir._mlir.dialects import builtin, func, llvm, memref
from numba_cuda_mlir._mlir.extras import types as mlir_types
from numba_cuda_mlir.extending import (
    lowering_registry,
    refresh_registries,
    typeof_impl,
    typing_registry,
)
from numba_cuda_mlir.lowering_utilities import (
    convert,
    get_or_insert_function,
    memref_data_pointer,
    memref_descriptor_type,
)
from numba_cuda_mlir.numba_cuda.core.errors import TypingError
from numba_cuda_mlir.numba_cuda.np import numpy_support
from numba_cuda_mlir.numba_cuda.types.ext_types import bfloat16
from numba_cuda_mlir.numba_cuda.typing import signature
from numba_cuda_mlir.numba_cuda.typing.templates import AbstractTemplate

from gpushmem.artifacts.compile_errors import as_kernel_error
from gpushmem.artifacts.compiler_choice import MLIR, NUMBA_CUDA
from gpushmem.backends.nvshmem.compile import numba_cuda
from gpushmem.backends.nvshmem.compile.linking import (
    Arch,
    Compiled,
    Part,
    grid_sync,
    linked_file,
)
from gpushmem.backends.nvshmem.compile.operation_functions import PREFIX, Outlined, outline
from gpushmem.errors import ArgumentError
from gpushmem.ops import OPS
from gpushmem.ops.row import Op
from gpushmem.ops.team import Team

__all__ = ["compile_kernel", "to_mlir"]

NOT_YET = f"compile the kernel with GPUSHMEM_COMPILER={NUMBA_CUDA}"
ENTRY = re.compile(r'llvm\.func @"?([\w.$]+)"?\([^\n]*nvvm\.kernel')
HANDED_ON = "fastmath", "launch_bounds", "lineinfo"  # options of `jit`
CALLED = re.compile(rf"@({PREFIX}\w+)")


def compile_kernel(
    py_func: Callable[..., Any], argtypes: tuple[Any, ...], options: dict[str, Any],
    arch: Arch, traced: bool,
) -> Compiled:  # fmt: skip
    """Compile a kernel for arguments of numba-cuda's types.

    Raises Numba's errors, and `ArgumentError` for what this compiler is not used for.
    """
    for name, asked in (("traced", traced), ("debug=True", options.get("debug"))):
        if asked:
            raise ArgumentError(
                f"kernel {py_func.__name__}: {name} is not available with {MLIR}: {NOT_YET}"
            )
    _install()
    given = tuple(map(to_mlir, argtypes))
    with _compiling_for(arch), numba_cuda.typing_for(arch):
        try:
            made = _compile(py_func, given, options, arch)
        except TypingError as error:
            raise as_kernel_error(error, py_func) from None
    text = made.metadata["mlir_module_optimized"]
    calls = sorted(set(CALLED.findall(text)))
    functions = [_function(name, arch) for name in calls]
    own = Part("ltoir", made.metadata["ltoir"])
    parts = [own, *_other_parts(made.metadata, str(arch))]
    parts += [part for function in functions for part in function.parts]
    none: frozenset[str] = frozenset()
    cooperative = bool(made.metadata.get("use_cooperative"))
    return Compiled(
        _entry(text), tuple(dict.fromkeys(parts)),
        none.union(*(f.shims for f in functions)), none.union(*(f.products for f in functions)),
        cooperative or any(f.cooperative for f in functions), arch,
        options.get("max_registers"), None,
    )  # fmt: skip


def _entry(text: str) -> str:
    """The kernel's name in its code; 0.6.0 tells another if an argument is None."""
    found = ENTRY.search(text)
    assert found is not None, text
    return found[1]


def _compile(
    py_func: Callable[..., Any], argtypes: tuple[Any, ...], options: dict[str, Any],
    arch: Arch,
) -> Any:  # fmt: skip
    """Compile the kernel in the steps of the compiler's own, but for the last: it is not linked."""
    opt = bool(options.get("opt", True))
    chosen = {name: options[name] for name in HANDED_ON if options.get(name)}
    chosen |= {"opt": opt, "chip": str(arch), "lto": True}
    dispatcher = cuda.jit(py_func, **chosen)
    target = {**dispatcher.targetoptions, "_compile_output": "ltoir", "opt_level": 3 if opt else 0}
    made = mlir_compiler.compile_mlir(py_func, types.void, argtypes, targetoptions=target)
    made.metadata["linker"] = _Unlinked(made.metadata["linker"])
    mlir_optimization.optimize(made)
    return made


class _Unlinked:
    """Stands for the compiler's linker: gpushmem links, with what this one has collected."""

    code = b""

    def __init__(self, linker: Any) -> None:
        self.objects = list(getattr(linker, "_object_codes", []))

    def recreate_with_lto(self, **options: Any) -> _Unlinked:
        """The same, whatever the options."""
        return self

    def complete(self) -> _Unlinked:
        """The object with the code: none."""
        return self


def _other_parts(metadata: dict[str, Any], arch: str) -> Iterator[Part]:
    """The files that a kernel's declarations of device functions link."""
    for file in metadata.get("linked_external_link_items", ()):
        if isinstance(file, str) and Path(file).name.startswith("libcudadevrt"):
            yield grid_sync(arch)
        else:
            yield linked_file(file, arch)


@contextmanager
def _compiling_for(arch: Arch) -> Iterator[None]:
    """The compiler asks for the current device's capability; there may be no device."""
    before, tools._cached_cc = tools._cached_cc, arch.capability
    try:
        yield
    finally:
        tools._cached_cc = before


# --- operations

_outlined: dict[str, Outlined] = {}  # all that this process has asked for, by name
_of_calls: dict[tuple[Any, ...], Outlined] = {}
NUMBER = types.int64


def _outline(op: Op, given: dict[str, Any]) -> Outlined:
    """The function for a call with arguments of numba-cuda-mlir's types."""
    key = op.name, *given.items()
    if key not in _of_calls:
        made = outline(op, {name: to_numba(typ) for name, typ in given.items()})
        _of_calls[key] = _outlined[made.name] = made
    return _of_calls[key]


@cache
def _function(name: str, arch: Arch) -> Compiled:
    made = _outlined[name]
    return numba_cuda.compile_function(made.function, made.words, name, arch)


@cache
def _install() -> None:
    """Give every row of the operation table its meaning in kernels of this compiler."""
    for op in OPS.values():
        if op.kernel:
            template = type(op.name, (Called,), {"key": op.function, "op": op})
            typing_registry.register(template)
            typing_registry.register_global(op.function, types.Function(template))
            lowering_registry.lower(op.function, types.VarArg(types.Any))(_lowering(op))
    refresh_registries()


class Called(AbstractTemplate):
    """The type of an operation's name."""

    op: Op
    prefer_literal = True

    def generic(self, args: Any, kws: Any) -> Any:
        """The signature of a call; raises as numba-cuda does."""
        given = _bound(self.op, args, kws)
        try:
            result = _outline(self.op, given).result
        except NumbaTypingError as error:
            raise TypingError(str(error)) from None
        return signature(to_mlir(result), *args, *kws.values())


def _bound(op: Op, args: Any, kws: Any) -> dict[str, Any]:
    """What is given by parameter, in the order of the parameters."""
    parameters = inspect.signature(op.function).parameters.values()
    wanted = inspect.Signature([p for p in parameters if p.name in op.params])
    try:
        return dict(wanted.bind(*args, **dict(kws)).arguments)
    except TypeError as error:
        raise TypingError(f"{op.name}: {error}") from None


def _lowering(op: Op) -> Callable[..., Any]:
    def lower(builder: Any, target: Any, args: Any, kws: Any) -> None:
        given = _bound(op, args, kws)
        made = _outline(op, {name: builder.get_numba_type(v.name) for name, v in given.items()})
        words, where = [], None
        if made.by_address:
            result = to_mlir(made.result)
            is_array = isinstance(result, types.Array)
            kind = mlir_types.i64() if is_array else _kind_of(builder, result)
            where = builder.alloca(kind)
            words.append(_word(where))
        for variable in given.values():
            words += _words(builder, variable)
        word = mlir_types.i64()
        kind_of_call = ir.FunctionType.get([word] * len(words), [word])
        callee = get_or_insert_function(made.name, kind_of_call, builder.mlir_gpu_module)
        returned = func.call(result=[word], callee=callee.name.value, operands_=words)
        if made.result == numba_types.void:
            builder.store_var(target, None)
        elif not made.by_address:
            to = builder.get_mlir_type(to_mlir(made.result))
            builder.store_var(target, convert(returned, to))
        elif is_array:
            moved = builder.load_var(next(iter(given.values())))
            address = llvm.load(res=word, addr=where)
            builder.store_var(target, _moved(moved, address))
        else:
            stored = _as(builder.get_storage_type(result), llvm.load(kind, where))
            builder.store_var(target, builder.from_storage(result, stored))

    return lower


def _word(pointer: Any) -> Any:
    return llvm.ptrtoint(res=mlir_types.i64(), arg=pointer)


def _words(builder: Any, variable: Any) -> list[Any]:
    """The words that a value is passed as: see `operation_functions`."""
    typ, word = builder.get_numba_type(variable.name), mlir_types.i64()
    if isinstance(typ, types.NoneType | types.StringLiteral):
        return []
    value = builder.load_var(variable)
    if isinstance(typ, types.Array):
        return [_word(memref_data_pointer(value)), *_layout(value, typ)]
    if isinstance(typ, types.Integer | types.Boolean | types.IntEnumMember):
        number = int(value) if isinstance(value, Team) else value
        return [convert(number, word, signed=bool(getattr(typ, "signed", False)))]
    typ = getattr(typ, "literal_type", typ)
    kind = _kind_of(builder, typ)
    place = builder.alloca(kind)
    value = convert(value, builder.get_mlir_type(typ))
    llvm.store(value=_as(kind, builder.as_storage(typ, value)), addr=place)
    return [_word(place)]


def _kind_of(builder: Any, typ: Any) -> Any:
    """What LLVM has in memory for a type: for a complex number, a structure of two numbers."""
    kind = builder.get_storage_type(typ)
    if not isinstance(kind, ir.ComplexType):
        return kind
    part = kind.element_type
    return llvm.StructType.get_literal([part, part])


def _as(kind: Any, value: Any) -> Any:
    """A value of the type that LLVM has for its own, or the other way round."""
    if value.type == kind:
        return value
    return builtin.unrealized_conversion_cast([kind], [value])


def _layout(array: Any, typ: Any) -> list[Any]:
    """Extents, and strides in bytes, which the compiler counts in elements."""
    word, kind = mlir_types.i64(), memref_descriptor_type(typ.ndim)
    if not typ.ndim:
        return []
    plain = ir.MemRefType(array.type)
    if plain.memory_space is not None:
        general = ir.MemRefType.get(plain.shape, plain.element_type, plain.layout)
        array = memref.memory_space_cast(dest=general, source=array)
    described = builtin.unrealized_conversion_cast([kind], [array])
    size = convert(itemsize_of(typ.dtype), word)
    extents = [llvm.extractvalue(word, described, [3, k]) for k in range(typ.ndim)]
    strides = [llvm.extractvalue(word, described, [4, k]) for k in range(typ.ndim)]
    return extents + [llvm.mul(s, size, _no_flags()) for s in strides]


def _no_flags() -> Any:
    return ir.Attribute.parse("#llvm.overflow<none>")


def _moved(array: Any, address: Any) -> Any:
    """An array of the same extents and strides at an address."""
    described = builtin.unrealized_conversion_cast(
        [memref_descriptor_type(ir.MemRefType(array.type).rank)], [array]
    )
    pointer = llvm.inttoptr(res=llvm.PointerType.get(), arg=address)
    for place, value in ((0, pointer), (1, pointer), (2, convert(0, mlir_types.i64()))):
        described = llvm.insertvalue(described, value, [place])
    return builtin.unrealized_conversion_cast([array.type], [described])


@typeof_impl.register(Team)
def _(team: Team, context: Any) -> Any:
    return NUMBER


# --- types, which are the same in both packages, but not the same objects


def itemsize_of(dtype: Any) -> int:
    """Bytes of an array's element of numba-cuda-mlir's dtype."""
    from gpushmem.backends.nvshmem.operations.device_calls import itemsize_of as of_array  # noqa: PLC0415

    return of_array(numba_types.Array(to_numba(dtype), 1, "C"))


def to_mlir(typ: Any) -> Any:
    """numba-cuda's type as numba-cuda-mlir's; raises `ArgumentError` if that has none."""
    return _converted(typ, numba_types, types, numba_numpy.as_dtype, numpy_support.from_dtype)


def to_numba(typ: Any) -> Any:
    """numba-cuda-mlir's type as numba-cuda's; raises `ArgumentError` if that has none."""
    return _converted(typ, types, numba_types, numpy_support.as_dtype, numba_numpy.from_dtype)


def _converted(typ: Any, old: Any, new: Any, as_dtype: Any, from_dtype: Any) -> Any:
    def again(inner: Any) -> Any:
        return _converted(inner, old, new, as_dtype, from_dtype)

    if isinstance(typ, old.Array):
        return new.Array(
            again(typ.dtype), typ.ndim, typ.layout, readonly=not typ.mutable, aligned=typ.aligned
        )
    if isinstance(typ, old.StringLiteral):
        return new.StringLiteral(typ.literal_value)
    if isinstance(typ, old.IntegerLiteral | old.BooleanLiteral):
        return again(typ.literal_type)
    if isinstance(typ, old.Omitted):
        return new.Omitted(typ.value)
    if isinstance(typ, old.NoneType):
        return new.none
    if isinstance(typ, old.IntEnumMember | old.EnumMember):
        return getattr(new, type(typ).__name__)(typ.instance_class, again(typ.dtype))
    if isinstance(typ, old.BaseTuple):
        return new.Tuple.from_types(tuple(map(again, typ.types)))
    if isinstance(typ, old.CPointer):
        return new.CPointer(again(typ.dtype))
    if isinstance(typ, old.Boolean):
        return new.boolean
    if str(typ) in SMALL:
        return SMALL[str(typ)][new is types]
    if isinstance(typ, old.Number):
        return getattr(new, typ.name)
    if isinstance(typ, old.Record | old.NPDatetime | old.NPTimedelta):
        return from_dtype(as_dtype(typ))
    raise ArgumentError(f"{MLIR} has no type {typ}: {NOT_YET}")


def _small() -> dict[str, tuple[Any, Any]]:
    from gpushmem.artifacts.floats import FLOAT8  # noqa: PLC0415

    found = {str(typ): (typ, getattr(types, f"_type_{typ}")) for typ in FLOAT8}
    return found | {str(bfloat16): (numba_types.bfloat16, bfloat16)}


SMALL = _small()
