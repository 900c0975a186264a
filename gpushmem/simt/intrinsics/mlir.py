"""What only numba-cuda-mlir has, where a CPU can give it a meaning: its vectors.

A vector there is a value of any number of elements, which `cuda.vector.load` makes and arithmetic
takes. Here it is numba-cuda's vector type of that name (`float32x4`), and one made in its likeness
if numba-cuda has none. The rows go to `twins.own`, by name: numba-cuda-mlir is not imported.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable
from functools import cache
from typing import Any

from numba.cuda import cgutils, stubs, types, vector_types
from numba.cuda.core.errors import NumbaTypeError
from numba.cuda.extending import overload
from numba.cuda.typing import signature
from numba.cuda.vector_types import VectorType

from gpushmem.artifacts.twins import ROOT, own, reverse, theirs_of
from gpushmem.simt.base.native import i64, intrinsic
from gpushmem.simt.compiler.target import bind

__all__ = ["vector_of"]

MOST_ELEMENTS = 16
NAMES = "x", "y", "z", "w"


@cache
def vector_of(element: Any, n: int) -> Any:
    """The vector type of `n` elements."""
    known = vector_types.vector_types
    if n > MOST_ELEMENTS:
        raise NumbaTypeError(f"a vector of {n} elements; at most {MOST_ELEMENTS} are supported")
    name = f"{element}x{n}"
    if name not in known:
        stub = type(name, (stubs.Stub,), {"_description_": f"<{name}>", "aliases": ()})
        names = NAMES[:n] if n <= len(NAMES) else tuple(f"s{i}" for i in range(n))
        known[name] = vector_types.make_vector_type(name, element, names, stub)
    return known[name]


for _n in range(1, 5):
    vector_of(types.float16, _n)
for _n in range(1, 5):
    _lists: list[Any] = []
    _type = vector_types.vector_types[f"float16x{_n}"]
    vector_types.build_constructor_overloads(types.float16, _type.name, _n, _lists, [])
    vector_types.enable_vector_type_ctor(_type, _lists)
    bind(_type.user_facing_object, _type.user_facing_object)
for _type in vector_types.vector_types.values():
    own[f"{ROOT}.type_defs.vector_types", _type.name] = _type


def _theirs(vector: Any) -> Any:
    made = importlib.import_module(f"{ROOT}.type_defs.vector_types").VectorType
    return made(theirs_of(vector.base_type), vector.num_elements)


reverse[VectorType] = _theirs


# --- loads and stores

# The element k places after the one of an index, by how many numbers the index has.
GET: dict[int, Callable[..., Any]] = {
    0: lambda a, i, k: a[i + k],
    1: lambda a, i, k: a[i[0] + k],
    2: lambda a, i, k: a[i[0], i[1] + k],
    3: lambda a, i, k: a[i[0], i[1], i[2] + k],
}


def _set_0(a: Any, i: Any, k: int, value: Any) -> None:
    a[i + k] = value


def _set_1(a: Any, i: Any, k: int, value: Any) -> None:
    a[i[0] + k] = value


def _set_2(a: Any, i: Any, k: int, value: Any) -> None:
    a[i[0], i[1] + k] = value


def _set_3(a: Any, i: Any, k: int, value: Any) -> None:
    a[i[0], i[1], i[2] + k] = value


SET: dict[int, Callable[..., Any]] = {0: _set_0, 1: _set_1, 2: _set_2, 3: _set_3}


def _numbers(index: Any) -> int:
    several = isinstance(index, types.BaseTuple)
    numbers = tuple(index) if several else (index,)
    if not all(isinstance(n, types.Integer) for n in numbers) or len(numbers) not in GET:
        raise NumbaTypeError(f"a vector's index is an integer, or 1 to 3 of them, not {index}")
    return len(numbers) if several else 0


def _read(builder: Any, vector: Any, value: Any) -> list[Any]:
    return [builder.extract_value(value, k) for k in range(vector.num_elements)]


def _made(context: Any, builder: Any, vector: Any, elements: list[Any]) -> Any:
    made = cgutils.create_struct_proxy(vector)(context, builder)
    for name, element in zip(vector.attr_names, elements, strict=True):
        setattr(made, name, element)
    return made._getvalue()


@intrinsic(prefer_literal=True)
def load(typingctx: Any, array: Any, indices: Any, shape: Any, alignment: Any = None) -> Any:
    """The vector of the `shape` elements from `indices` on, along the last axis."""
    one = shape.types[0] if isinstance(shape, types.BaseTuple) and len(shape) == 1 else shape
    if not isinstance(one, types.IntegerLiteral):
        raise NumbaTypeError(f"the shape of a vector is one literal, not {shape}")
    vector, get = vector_of(array.dtype, one.literal_value), GET[_numbers(indices)]

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        step = signature(array.dtype, array, sig.args[1], types.int64)
        elements = [
            context.compile_internal(builder, get, step, [*args[:2], i64(k)])
            for k in range(vector.num_elements)
        ]
        return _made(context, builder, vector, elements)

    return vector(array, types.unliteral(indices), shape, _given(alignment)), codegen


@intrinsic(prefer_literal=True)
def store(typingctx: Any, array: Any, index: Any, vector: Any, alignment: Any = None) -> Any:
    """Store a vector's elements from `index` on, along the last axis."""
    put = SET[_numbers(index)]
    if not isinstance(vector, VectorType):
        raise NumbaTypeError(f"cuda.vector.store stores a vector, not {vector}")

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        step = signature(types.none, array, sig.args[1], types.int64, vector.base_type)
        for k, element in enumerate(_read(builder, vector, args[2])):
            context.compile_internal(builder, put, step, [*args[:2], i64(k), element])
        return context.get_dummy_value()

    return types.none(array, types.unliteral(index), vector, _given(alignment)), codegen


def _given(alignment: Any) -> Any:
    return types.Omitted(None) if alignment is None else alignment


own[f"{ROOT}.cuda.vector", "load"], own[f"{ROOT}.cuda.vector", "store"] = load, store


# --- arithmetic, of each element

UNARY: dict[Any, Callable[..., Any]] = {operator.neg: lambda a: -a, abs: lambda a: abs(a)}  # noqa: PLW0108
BINARY: dict[Any, Callable[..., Any]] = {
    operator.add: lambda a, b: a + b,
    operator.sub: lambda a, b: a - b,
    operator.mul: lambda a, b: a * b,
    operator.truediv: lambda a, b: a / b,
    operator.floordiv: lambda a, b: a // b,
    operator.mod: lambda a, b: a % b,
}


def _elementwise(of_elements: Callable[..., Any]) -> Any:
    """An intrinsic that applies a function to the elements of vectors, and to numbers as they are.

    The result's elements are of the type that its operands unify to; of a division of integers, of
    a float.
    """

    def apply(typingctx: Any, *operands: Any) -> Any:
        elements = [getattr(t, "base_type", t) for t in operands]
        made = typingctx.unify_types(*map(types.unliteral, elements))
        if of_elements is BINARY[operator.truediv] and isinstance(made, types.Integer):
            made = types.float64 if made.bitwidth > 32 else types.float32
        n = next(t.num_elements for t in operands if isinstance(t, VectorType))
        vector = vector_of(made, n)

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            columns = [
                [
                    context.cast(builder, value, element, made)
                    for value in (
                        _read(builder, typ, arg) if isinstance(typ, VectorType) else [arg] * n
                    )
                ]
                for typ, element, arg in zip(sig.args, elements, args, strict=True)
            ]
            step = signature(made, *[made] * len(args))
            results = [
                context.compile_internal(builder, of_elements, step, row)
                for row in map(list, zip(*columns, strict=True))
            ]
            return _made(context, builder, vector, results)

        return vector(*operands), codegen

    return apply


def _unary(op: Any, of_elements: Callable[..., Any]) -> None:
    apply = _elementwise(of_elements)
    call = intrinsic(lambda typingctx, a: apply(typingctx, a))  # noqa: PLW0108  (its parameters)

    def of_vector(a: Any) -> Any:
        return call(a)

    @overload(op)
    def chosen(a: Any) -> Any:
        return of_vector if isinstance(a, VectorType) else None


def _binary(op: Any, of_elements: Callable[..., Any]) -> None:
    apply = _elementwise(of_elements)
    call = intrinsic(lambda typingctx, a, b: apply(typingctx, a, b))  # noqa: PLW0108

    def of_vectors(a: Any, b: Any) -> Any:
        return call(a, b)

    @overload(op)
    def chosen(a: Any, b: Any) -> Any:
        vectors = [t for t in (a, b) if isinstance(t, VectorType)]
        if not vectors or not all(isinstance(t, VectorType | types.Number) for t in (a, b)):
            return None
        if len(vectors) == 2 and a.num_elements != b.num_elements:
            return None
        return of_vectors


for _op, _function in UNARY.items():
    _unary(_op, _function)
for _op, _function in BINARY.items():
    _binary(_op, _function)
    _binary(getattr(operator, f"i{_op.__name__}"), _function)
