"""Handlers of XLA's typed FFI that are Python functions: no C compiler is needed.

XLA calls `XLA_FFI_Error* handler(XLA_FFI_CallFrame*)`. All structures of xla/ffi/api/c_api.h (in
jaxlib/include) are words here, numbered from 0, since their layout is a stable binary interface.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from gpushmem.memory.validation import dtype_of

__all__ = ["DTYPES", "Buffer", "handler", "place"]

# XLA_FFI_DataType: the names of the dtypes. A token is a buffer, too, without memory.
DTYPES = {
    1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8", 7: "uint16", 8: "uint32",
    9: "uint64", 10: "float16", 11: "float32", 12: "float64", 16: "bfloat16",
}  # fmt: skip
TOKEN = 17
API_VERSION = 0, 3
METADATA = 1  # the extension by which XLA asks for the version; it calls nothing then
FRAME, ARGUMENTS, RESULTS, ATTRIBUTES = 21, 7, 12, 17  # words: of a frame, and where parts begin
INTERNAL = 13  # XLA_FFI_Error_Code
ERROR_CREATE = 6  # of XLA_FFI_Api
Word = ctypes.c_size_t

ErrorCreate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
Entry = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


@dataclass(frozen=True)
class Buffer:
    """An array of XLA's: it is this call's, and its memory is not kept alive."""

    address: int
    code: int  # of its dtype
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """How many bytes it has."""
        return prod(self.shape) * self.dtype.itemsize

    def numpy(self) -> np.ndarray[Any, Any]:
        """The array, on the same memory."""
        memory = (ctypes.c_char * self.nbytes).from_address(self.address or 1)
        return np.ndarray(self.shape, self.dtype, buffer=memoryview(memory))


class _ErrorArguments(ctypes.Structure):
    _fields_ = (
        ("size", Word), ("extension", Word), ("message", ctypes.c_char_p), ("code", ctypes.c_int),
    )  # fmt: skip


def handler(run: Callable[[list[Buffer], list[Buffer], list[int]], None]) -> Any:
    """A handler that calls `run(arguments, results, attributes)`, without the tokens among them.

    Attributes are 64-bit integers, in the alphabetical order of their names. What `run` raises is
    the error of XLA's call.
    """

    def call(at: int) -> int | None:
        frame = _words(at, FRAME)
        try:
            if not _answered(frame[1]):
                attributes = _list(frame, ATTRIBUTES, 1)
                run(
                    _buffers(_list(frame, ARGUMENTS)), _buffers(_list(frame, RESULTS)),
                    [_words(_words(each, 2)[1], 1)[0] for each in attributes],
                )  # fmt: skip
        except BaseException as error:  # noqa: BLE001  (nothing may be raised into XLA)
            return _error(frame[2], error)
        return None

    return Entry(call)


def place(function: Any) -> int | None:
    """Address of a handler."""
    return ctypes.cast(function, ctypes.c_void_p).value


def _words(address: int, count: int) -> list[int]:
    return list((Word * count).from_address(address))


def _list(frame: list[int], part: int, more: int = 0) -> list[int]:
    """Addresses of the items: size, types, `more` lists, items."""
    return _words(frame[part + 2 + more], frame[part]) if frame[part] else []


def _buffers(addresses: list[int]) -> list[Buffer]:
    """XLA_FFI_Buffer: size, extension, dtype, data, rank, dims."""
    found = []
    for at in addresses:
        words = _words(at, 6)
        code = words[2] & 0xFFFFFFFF
        if code != TOKEN:
            dtype = dtype_of("a buffer of XLA", DTYPES[code])
            found.append(Buffer(words[3], code, dtype, tuple(_words(words[5], words[4]))))
    return found


def _answered(extension: int) -> bool:
    """Answer XLA's question for the version of the API, if it is one."""
    while extension:
        words = _words(extension, 4)
        if words[1] & 0xFFFFFFFF == METADATA:
            version = words[3] + 3 * 8  # behind sizes and an extension
            (ctypes.c_int * 2).from_address(version)[:] = list(API_VERSION)
            return True
        extension = words[2]
    return False


def _error(api: int, error: BaseException) -> int | None:
    text = f"{type(error).__module__}.{type(error).__qualname__}: {error}"
    message = text.removeprefix("builtins.").encode(errors="replace")
    arguments = _ErrorArguments(ctypes.sizeof(_ErrorArguments), 0, message, INTERNAL)
    create = ErrorCreate(_words(api, ERROR_CREATE + 1)[ERROR_CREATE])
    return create(ctypes.addressof(arguments))
