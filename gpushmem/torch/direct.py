"""`torch.ops.gpushmem.all_reduce_`: a group's all-reduce in place, without Python under the call.

The operator is a C function made here, which PyTorch's dispatcher calls in the caller's thread, by
PyTorch's stable C interface (torch/csrc/stable/c/shim.h). It makes the call of `HostCollectives`
itself, for a group and a dtype that have had one before. All else is left to Python: the first call
of a group or dtype, tensors that are not contiguous, groups that are recorded or checked, or whose
thread has calls to make; and to wait for members that are late by more than some 20 ms, so that
Ctrl-C, limits and the death of a member are noticed.

One call of a group is made at a time: whoever has its lock makes it, this C function or, in Python,
`Turn`; the next one sees what it leaves in memory. A C function cannot raise: it has Python raise
an error in its thread as soon as that goes on (PyThreadState_SetAsyncExc).
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.backends.cpu.dispatched import (
    BUSY,
    FETCHED,
    GROUP,
    OF_DTYPE,
    OF_PYTHON,
    SYMBOLS,
    TABLE_NAME,
    WORDS,
    all_reduce_code,
    table,
    trying,
    unlocking,
)
from gpushmem.errors import ArgumentError
from gpushmem.memory.tensors import dtype_name
from gpushmem.memory.validation import dtype_of
from gpushmem.native.structs import new
from gpushmem.torch.plans import name_of

if TYPE_CHECKING:
    from gpushmem.torch.group import ProcessGroup

__all__ = ["Direct", "Turn", "register"]

WHAT, SCHEMA = "gpushmem::all_reduce_", "all_reduce_(Tensor(a!) x, str group_name) -> ()"
DTYPES = (
    "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
)  # fmt: skip


class Turn:
    """Who may make a call of a group in Python: one thread, while the operator makes none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.direct: Direct | None = None

    def __enter__(self) -> None:
        self._lock.acquire()
        try:
            while self.direct is not None and not self.direct.take():
                time.sleep(5e-5)
        except BaseException:  # Ctrl-C
            self._lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        if self.direct is not None:
            self.direct.give_back()
        self._lock.release()

    @property
    def made(self) -> int:
        """How many calls were made without Python."""
        return 0 if self.direct is None else self.direct.made

    def close(self) -> None:
        """Leave all calls to Python from now on."""
        if self.direct is not None:
            self.direct.close()

    def forget(self) -> None:
        """The group is gone."""
        if self.direct is not None:
            self.direct.forget()


class Direct:
    """What the operator needs of a group, and the calls that it leaves to Python."""

    def __init__(self, group: ProcessGroup, collectives: Any) -> None:
        self._group, self._collectives, self._at = group, collectives, new(GROUP)
        self._address = address_of(self._at)
        for name, value in collectives.memory.items():
            self._at[name] = value
        self._at["closed"] = 1
        self._names: set[str] = set()

    @property
    def made(self) -> int:
        """How many calls were made without Python."""
        return int(self._at["made"][0])

    def take(self) -> bool:
        """Whether no call is being made, and the next one is this thread's."""
        return trying()(self._address + BUSY)

    def give_back(self) -> None:
        """Let the operator make calls, if the group allows it."""
        self._at["closed"] = not self._group.is_plain
        unlocking()(self._address + BUSY)

    def close(self) -> None:
        """Leave all calls to Python from now on."""
        self._at["closed"] = 1

    def learn(self, code: int, dtype: np.dtype[Any]) -> None:
        """Let the operator make calls for a dtype."""
        of = self._collectives.prepared("all_reduce", "sum", dtype)
        for field, value in zip((OF_DTYPE.names or ())[1:], of[1:], strict=True):
            self._at["of"][field][0, code] = value
        self._at["of"]["kind"][0, code] = of[0]

    def end(self) -> None:
        """End a call that the operator has begun."""
        try:
            self._group.end_direct()
        finally:
            self.give_back()

    def name(self, text: str) -> None:
        """Let the operator find the group by a name; by one that is very long, Python does."""
        data, rows = text.encode(), table["named"][0]
        free = np.flatnonzero(rows["length"] == 0)
        if text in self._names or len(data) > 8 * WORDS or not len(free):
            return
        self._names.add(text)
        row = free[0]
        rows["text"][row] = np.frombuffer(data.ljust(8 * WORDS, b"\0"), np.int64)
        rows["group"][row] = self._address
        rows["length"][row] = len(data) + 1  # from now on it is found

    def forget(self) -> None:
        """The group is gone."""
        self.close()
        rows = table["named"][0]
        rows["length"][rows["group"] == self._address] = 0


def _slow(stack: int) -> None:
    """Make a call of the operator; it will make those like it."""
    group, tensor, name = _given(stack)
    code = _ask("dtype", tensor)
    dtype = _codes().get(code)
    if dtype is None or not _ask("contiguous", tensor) & 255:
        what = "of a dtype that it does not add" if dtype is None else "not contiguous"
        raise ArgumentError(
            f"torch.ops.gpushmem.all_reduce_: x is {what}: use torch.ops.gpushmem.all_reduce"
        )
    nbytes = _ask("numel", tensor) * dtype.itemsize
    x = torch.empty(0, dtype=dtype)
    if nbytes:
        memory = (ctypes.c_char * nbytes).from_address(_ask("data", tensor))
        x = torch.frombuffer(memory, dtype=dtype)
    options = c10d.AllreduceOptions()
    options.asyncOp = False
    direct = group.direct()
    direct.name(name)
    direct.learn(code, dtype_of("all_reduce_", dtype_name(dtype)))
    group.allreduce([x], options)


def _late(stack: int) -> None:
    group, *_ = _given(stack)
    group.direct().end()


def _given(stack: int) -> tuple[ProcessGroup, int, str]:
    """The group, the tensor's handle and the name of the group, as it was given."""
    from gpushmem.torch.group import ProcessGroup  # noqa: PLC0415  (it imports this module)

    tensor, handle = (ctypes.c_int64 * 2).from_address(stack)
    name = ctypes.string_at(_ask("text", handle), _ask("length", handle)).decode()
    group = c10d._resolve_process_group(name_of(name))
    if not isinstance(group, ProcessGroup):
        raise ArgumentError(
            f"torch.ops.gpushmem.all_reduce_: {name!r} is a group of "
            f"{dist.get_backend(group)!r}, not of 'gpushmem'"
        )
    return group, tensor, name


def _ask(what: str, handle: int) -> int:
    out = ctypes.c_int64(0)
    getattr(_library(), FETCHED[what])(ctypes.c_int64(handle), ctypes.byref(out))
    return out.value


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))


@cache
def _codes() -> dict[int, torch.dtype]:
    """The dtypes that the operator takes, by their numbers in PyTorch's C interface."""
    return {getattr(_library(), f"aoti_torch_dtype_{x}")(): getattr(torch, x) for x in DTYPES}


# --- errors


def _raising(run: Callable[[int], None]) -> Any:
    """A C function of `run`, which leaves the class of its error in the first word, or 0."""

    def call(stack: int) -> None:
        error = None
        try:
            run(stack)
        except BaseException as caught:  # noqa: BLE001  (it is raised when the operator returns)
            error = _class_of(caught)
        ctypes.c_int64.from_address(stack).value = 0 if error is None else id(error)
        _raised.error = error  # until the next one

    return ctypes.CFUNCTYPE(None, ctypes.c_int64)(call)


def _class_of(error: BaseException) -> type[BaseException]:
    """The error as a class: Python makes the error that it raises without arguments."""
    kind = type(error)

    def same(self: BaseException) -> None:
        kind.__init__(self, *error.args)
        self.__cause__ = error.__cause__

    return type(kind.__name__, (kind,), {"__init__": same, "__module__": kind.__module__})


# --- PyTorch


def register() -> None:
    """Make the operator known to PyTorch; once."""
    library = _library()
    llvm.add_symbol(TABLE_NAME, address_of(table))
    pytorchs = [(name, library) for name in SYMBOLS]
    for name, owner in (*pytorchs, *((name, ctypes.pythonapi) for name in OF_PYTHON)):
        llvm.add_symbol(name, ctypes.cast(getattr(owner, name), ctypes.c_void_p).value)
    _kept.extend((_raising(_slow), _raising(_late)))
    for field, function in zip(("slow", "late"), _kept, strict=True):
        table[field] = ctypes.cast(function, ctypes.c_void_p).value
    code = all_reduce_code()
    handle, place = ctypes.c_void_p(), (b"gpushmem/torch/direct.py", ctypes.c_uint32(0))
    library.aoti_torch_library_init_fragment(b"gpushmem", *place, ctypes.byref(handle))
    library.aoti_torch_library_def(handle, SCHEMA.encode())
    library.aoti_torch_library_init_impl(b"gpushmem", b"CPU", *place, ctypes.byref(handle))
    library.aoti_torch_library_impl(handle, b"all_reduce_", ctypes.c_void_p(code.address))
    torch.library.register_fake(WHAT, lambda x, group_name: None)
    os.register_at_fork(after_in_child=lambda: table["named"]["length"].fill(0))  # Python refuses


_kept: list[Any] = []  # what C functions call
_raised = threading.local()
