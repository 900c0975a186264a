"""8-bit floats in kernels: the dtypes of ml_dtypes as numba-cuda's types, and conversions to them.

numba-cuda has the types, with C++'s constructors, and takes arrays of bfloat16, but not arrays of
these. Here they become arguments of kernels too, and follow the rules of bfloat16: a number that is
stored is converted, and so is an element that is computed with, to float32. Conversions to them
are those of the C++ constructors: to nearest even, and to the largest number if it is too large.

Source: CUDA Math API, "FP8 Intrinsics".
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numba.cuda import types
from numba.cuda._internal import cuda_fp8
from numba.cuda.extending import lower_cast
from numba.cuda.np import numpy_support
from numba.cuda.typeconv.rules import default_type_manager
from numba.cuda.typing import signature

__all__ = ["FLOAT8", "SMALL"]

# numba-cuda's type -> its C++ constructor, and the dtype.
FLOAT8: dict[Any, tuple[Any, Any]] = {
    cuda_fp8._type_fp8_e4m3: (cuda_fp8.fp8_e4m3, ml_dtypes.float8_e4m3fn),
    cuda_fp8._type_fp8_e5m2: (cuda_fp8.fp8_e5m2, ml_dtypes.float8_e5m2),
}
SMALL = (type(types.bfloat16), *map(type, FLOAT8))  # classes that are not numba's `Float`
# Constructors take integers of 16 bits and more.
WIDENED = {types.int8: types.int16, types.uint8: types.int16}
NUMBERS = (
    types.float16, types.bfloat16, types.float32, types.float64, *WIDENED, types.int16,
    types.uint16, types.int32, types.uint32, types.int64, types.uint64,
)  # fmt: skip


def _construct(context: Any, builder: Any, given: Any, typ: Any, value: Any) -> Any:
    wide = WIDENED.get(given, given)
    value = context.cast(builder, value, given, wide)
    make, _ = FLOAT8[typ]
    return context.get_function(make, signature(typ, wide))(builder, [value])


for typ, (_, dtype) in FLOAT8.items():
    numpy_support.FROM_DTYPE[np.dtype(dtype)] = typ
    for number in NUMBERS:
        lower_cast(number, typ)(_construct)
        default_type_manager.set_unsafe_convert(number, typ)
    # Arithmetic is that of float32, unless the other number is a float64.
    default_type_manager.set_promote(typ, types.float32)
    default_type_manager.set_safe_convert(typ, types.float64)
    for narrow in (types.float16, types.bfloat16):
        default_type_manager.set_unsafe_convert(typ, narrow)
