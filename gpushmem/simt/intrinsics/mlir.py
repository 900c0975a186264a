"""What only numba-cuda-mlir has, where a CPU can give it a meaning: its vectors.

A vector there is a value of any number of elements, which `cuda.vector.load` makes and arithmetic
takes. Here it is numba-cuda's vector type of that name (`float32x4`), and one made in its likeness
if numba-cuda has none. The rows go to `twins.own`, by name: numba-cuda-mlir is not imported.
"""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
from numba.cuda import cgutils, stubs, types, vector_types
from numba.cuda.core.errors import NumbaTypeError
from numba.cuda.datamodel.models import OpaqueModel
from numba.cuda.extending import (
    infer_getattr,
    lower_builtin,
    lower_cast,
    overload,
    register_model,
)
from numba.cuda.typing import signature
from numba.cuda.typing.templates import AbstractTemplate, AttributeTemplate
from numba.cuda.vector_types import VectorType

from gpushmem.artifacts.compile_time_name import KernelName
from gpushmem.artifacts.mlir_aliases import ROOT, own, reverse, theirs_of
from gpushmem.native.memory import i64, intrinsic
from gpushmem.simt.compiler.target import bind

__all__ = ["vector_of"]

MOST_ELEMENTS = 16
NAMES = "x", "y", "z", "w"


known: dict[str, Any] = {**vector_types.vector_types}  # numba-cuda's, and those made here


@cache
def vector_of(element: Any, shape: Any) -> Any:
    """The vector type of `shape` elements: a number, or one for each dimension."""
    shape = shape if isinstance(shape, tuple) else (shape,)
    n = math.prod(shape)
    if not 0 < n <= MOST_ELEMENTS:
        raise NumbaTypeError(f"a vector of {n} elements; at most {MOST_ELEMENTS} are supported")
    name = "x".join(map(str, (element, *shape)))
    if name not in known:
        stub = type(name, (stubs.Stub,), {"_description_": f"<{name}>", "aliases": ()})
        names = NAMES[:n] if n <= len(NAMES) else tuple(f"s{i}" for i in range(n))
        known[name] = vector_types.make_vector_type(name, element, names, stub)
        known[name].shape = shape
    return known[name]


def shape_of(vector: Any) -> tuple[int, ...]:
    """How many elements a vector type has in each dimension."""
    return getattr(vector, "shape", (vector.num_elements,))


def _read(builder: Any, vector: Any, value: Any) -> list[Any]:
    return [builder.extract_value(value, k) for k in range(vector.num_elements)]


def _made(context: Any, builder: Any, vector: Any, elements: list[Any]) -> Any:
    made = cgutils.create_struct_proxy(vector)(context, builder)
    for name, element in zip(vector.attr_names, elements, strict=True):
        setattr(made, name, element)
    return made._getvalue()


# --- names, which make vectors and are dtypes of arrays

PARTS = types.Integer, types.Float, types.Boolean


class VectorName(KernelName, types.Callable, types.DTypeSpec):
    """Type of a vector's name, `cuda.float32x4`.

    It is called with numbers and vectors that have its elements together, with one number for all
    of them, or with a complex number for two.
    """

    def __init__(self, vector: Any) -> None:
        self.vector = vector
        super().__init__(f"class({vector})")

    @property
    def dtype(self) -> Any:
        """The elements' type of an array that is made with this name."""
        return self.vector

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        """Check the number of elements; they are converted as by an assignment."""
        n, parts = 0, tuple(map(types.unliteral, args))
        for part in parts:
            if isinstance(part, VectorType):
                n += part.num_elements
            elif isinstance(part, types.Complex) and len(parts) == 1:
                n = 2
            elif isinstance(part, PARTS):
                n += 1
            else:
                raise NumbaTypeError(f"{self.vector} is made of numbers and vectors, not {part}")
        one = len(parts) == 1 and isinstance(parts[0], PARTS)
        if kws or not (one or n == self.vector.num_elements):
            raise NumbaTypeError(
                f"{self.vector} has {self.vector.num_elements} elements, and is given {n}"
            )
        return signature(self.vector, *parts)

    def get_call_signatures(self) -> Any:
        """The signatures that Numba lists in errors: none."""
        return [], True

    def get_impl_key(self, sig: Any) -> Any:
        """The key by which Numba finds the code of a call."""
        return VectorName


register_model(VectorName)(OpaqueModel)


@lower_builtin(VectorName, types.VarArg(types.Any))
def _construct(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    vector, elements = sig.return_type, []
    for typ, value in zip(sig.args, args, strict=True):
        if isinstance(typ, VectorType):
            parts, element = _read(builder, typ, value), typ.base_type
        elif isinstance(typ, types.Complex):
            number = context.make_complex(builder, typ, value=value)
            parts, element = [number.real, number.imag], typ.underlying_float
        else:
            parts, element = [value], typ
        elements += [context.cast(builder, part, element, vector.base_type) for part in parts]
    if len(elements) == 1:
        elements *= vector.num_elements
    return _made(context, builder, vector, elements)


for _n in range(1, 5):
    vector_of(types.float16, _n)
for _type in known.values():
    bind(_type.user_facing_object, VectorName(_type))
    own[f"{ROOT}.type_defs.vector_types", _type.name] = _type


def _theirs(vector: Any) -> Any:
    made = importlib.import_module(f"{ROOT}.type_defs.vector_types").VectorType
    return made(theirs_of(vector.base_type), shape_of(vector))


reverse[VectorType] = _theirs


# --- vectors as complex numbers, and from them


@lower_cast(VectorType, types.Complex)
def _cast(context: Any, builder: Any, vector: Any, target: Any, value: Any) -> Any:
    number = context.make_complex(builder, target)
    number.real, number.imag = (
        context.cast(builder, part, vector.base_type, target.underlying_float)
        for part in _read(builder, vector, value)
    )
    return number._getvalue()


@intrinsic
def as_complex(typingctx: Any, vector: Any) -> Any:
    """The complex number of a vector of two elements."""
    element = vector.base_type
    small = element.bitwidth <= (32 if isinstance(element, types.Float) else 16)
    made = types.complex64 if small else types.complex128

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return context.cast(builder, args[0], vector, made)

    return made(vector), codegen


def _is_pair(typ: Any) -> bool:
    return isinstance(typ, VectorType) and typ.num_elements == 2


@overload(complex)
def _complex(real: Any = 0, imag: Any = 0) -> Any:
    def number(real: Any = 0, imag: Any = 0) -> Any:
        return as_complex(real)

    return number if _is_pair(real) and imag == 0 else None


@overload(operator.setitem)
def _set(a: Any, i: Any, v: Any) -> Any:
    """Store a vector of two as a complex number in an array, or the other way round."""
    if not isinstance(a, types.Array):
        return None
    if isinstance(a.dtype, types.Complex) and _is_pair(v):

        def put(a: Any, i: Any, v: Any) -> None:
            a[i] = as_complex(v)

        return put
    if _is_pair(a.dtype) and isinstance(v, types.Complex):
        of = a.dtype.user_facing_object

        def put_pair(a: Any, i: Any, v: Any) -> None:
            a[i] = of(v)

        return put_pair
    return None


def _complex_class(number: Any) -> None:
    """Let `np.complex64` and the like be called with a vector or two numbers, too."""

    class OfTwo(AbstractTemplate):  # type: ignore[misc]
        key = number

        def generic(self, args: Any, kws: Any) -> Any:
            parts = tuple(map(types.unliteral, args))
            pair = len(parts) == 1 and _is_pair(parts[0])
            two = len(parts) == 2 and all(isinstance(part, PARTS) for part in parts)
            return signature(number, *parts) if pair or two else None

    @infer_getattr
    class Called(AttributeTemplate):  # type: ignore[misc]
        key = types.NumberClass(number)

        def generic_resolve(self, typ: Any, attr: str) -> Any:
            of_classes = (self.context._attributes.get(cls, ()) for cls in type(typ).__mro__)
            each = (template.resolve(typ, attr) for of in of_classes for template in of)
            found = next((found for found in each if found is not None), None)
            if attr != "__call__" or found is None:
                return found
            return types.Function([OfTwo, *found.templates])


@lower_builtin(types.NumberClass, types.Any, types.Any)
def _of_two(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    number = context.make_complex(builder, sig.return_type)
    number.real, number.imag = (
        context.cast(builder, value, typ, sig.return_type.underlying_float)
        for typ, value in zip(sig.args, args, strict=True)
    )
    return number._getvalue()


for _type in types.complex64, types.complex128:
    _complex_class(_type)


# --- loads and stores


def _get(a: Any, i: Any) -> Any:
    return a[i]


def _get_flat(a: Any, i: Any) -> Any:
    return a.flat[i]


def _put(a: Any, i: Any, value: Any) -> None:
    a[i] = value


def _put_flat(a: Any, i: Any, value: Any) -> None:
    a.flat[i] = value


def _indices(array: Any, index: Any, shape: tuple[int, ...]) -> tuple[Any, Callable[..., Any]]:
    """The type of an element's index, and what generates those of all elements of a vector.

    The vector lies along the array's last axes. Of an array with several, one number is the place
    among all its elements.
    """
    several = isinstance(index, types.BaseTuple)
    numbers = tuple(index) if several else (index,)
    n = len(numbers)
    if not isinstance(array, types.Array):
        raise NumbaTypeError(f"a vector is loaded from an array, or stored in one, not {array}")
    if not all(isinstance(number, types.Integer) for number in numbers):
        raise NumbaTypeError(f"a vector's index is an integer, or several, not {index}")
    if several and n != array.ndim:
        raise NumbaTypeError(f"a vector's index has {n} numbers, and the array {array.ndim} axes")
    if len(shape) > n:
        raise NumbaTypeError(f"a vector of {len(shape)} dimensions has an index of {n} numbers")
    flat = array.ndim > n
    typ = types.int64 if flat else types.UniTuple(types.int64, n)

    def generate(context: Any, builder: Any, value: Any) -> Iterator[Any]:
        parts = cgutils.unpack_tuple(builder, value, n) if several else [value]
        begin = [
            context.cast(builder, part, number, types.int64)
            for part, number in zip(parts, numbers, strict=True)
        ]
        for offsets in np.ndindex(shape):
            steps = (0,) * (n - len(shape)) + offsets
            at = [builder.add(part, i64(step)) for part, step in zip(begin, steps, strict=True)]
            yield at[0] if flat else context.make_tuple(builder, typ, at)

    return typ, generate


@intrinsic(prefer_literal=True)
def load(typingctx: Any, array: Any, indices: Any, shape: Any, alignment: Any = None) -> Any:
    """The vector of the `shape` elements from `indices` on, along the last axes."""
    sizes = tuple(shape.types) if isinstance(shape, types.BaseTuple) else (shape,)
    if not all(isinstance(size, types.IntegerLiteral) for size in sizes):
        raise NumbaTypeError(f"the shape of a vector is one literal, or several, not {shape}")
    vector = vector_of(array.dtype, tuple(size.literal_value for size in sizes))
    place, places = _indices(array, indices, shape_of(vector))

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        step = signature(array.dtype, array, place)
        get = _get_flat if place == types.int64 else _get
        elements = [
            context.compile_internal(builder, get, step, [args[0], at])
            for at in places(context, builder, args[1])
        ]
        return _made(context, builder, vector, elements)

    return vector(array, types.unliteral(indices), shape, _given(alignment)), codegen


@intrinsic(prefer_literal=True)
def store(typingctx: Any, array: Any, index: Any, vector: Any, alignment: Any = None) -> Any:
    """Store a vector's elements from `index` on, along the last axes."""
    if not isinstance(vector, VectorType):
        raise NumbaTypeError(f"cuda.vector.store stores a vector, not {vector}")
    place, places = _indices(array, index, shape_of(vector))

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        step = signature(types.none, array, place, vector.base_type)
        put = _put_flat if place == types.int64 else _put
        elements = _read(builder, vector, args[2])
        for at, element in zip(places(context, builder, args[1]), elements, strict=True):
            context.compile_internal(builder, put, step, [args[0], at, element])
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
# Those of two vectors; the others have a number as one operand, in numba-cuda-mlir.
OF_TWO = BINARY[operator.add], BINARY[operator.sub]


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
        if len(vectors) == 2 and of_elements not in OF_TWO:
            return None
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
