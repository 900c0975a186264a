"""DLPack capsules for dtypes that DLPack supports and NumPy does not export: those of ml_dtypes.

The capsule is that of an array of unsigned integers on the same memory, with the dtype field
overwritten. The position of the field follows from DLPack's ABI, which is fixed (`dlpack.h`):

    DLTensor                  data (8 bytes), device (2 x 4), ndim (4), dtype: code (1), ...
    DLManagedTensor           DLTensor first; the capsule is called "dltensor"
    DLManagedTensorVersioned  version (2 x 4), manager, deleter, flags (8 each), DLTensor;
                              "dltensor_versioned"
"""

from __future__ import annotations

import ctypes
from typing import Any

__all__ = ["capsule"]

CODES = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}
DTYPE = 20  # offset in a DLTensor
TENSOR = {b"dltensor": 0, b"dltensor_versioned": 32}  # capsule name -> offset of the DLTensor

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_is_called = ctypes.pythonapi.PyCapsule_IsValid
_is_called.restype, _is_called.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]


def capsule(native: Any, options: dict[str, Any]) -> Any:
    """Return `native.__dlpack__(**options)` with the array's true dtype."""
    code = CODES.get(native.dtype.name)
    if code is None:
        return native.__dlpack__(**options)
    made = native.view(f"u{native.dtype.itemsize}").__dlpack__(**options)
    name, start = next((n, at) for n, at in TENSOR.items() if _is_called(made, n))
    ctypes.c_uint8.from_address(_pointer(made, name) + start + DTYPE).value = code
    return made
