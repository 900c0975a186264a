"""LLVM contexts that end after their modules, and modules that end once.

LLVM ends a context's modules with it, and llvmlite ends each module, too, when its object goes. By
reference counts a module's object goes first, as it refers to the context's. In a cycle, such as
the traceback of a failed compilation, Python's collector takes them in any order: the process then
died of a segmentation fault. So a context that is not in use any more is put aside, and ended when
another is made while no collection is in progress: what the last one found has gone by then.

LLVM ends a module that is linked into another. llvmlite lets go of the module when LLVM has
returned: if the handler of a signal, an alarm's say, raises in between, llvmlite ends the module
again, and the process dies, too. Here llvmlite lets go of it before.
"""

from __future__ import annotations

import gc
from collections import deque
from contextlib import suppress
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding import ffi, module

__all__ = ["new_context"]

_put_aside: deque[Any] = deque()  # pointers
_collecting = False


def _note(phase: str, info: object) -> None:
    global _collecting  # noqa: PLW0603
    _collecting = phase == "start"


gc.callbacks.append(_note)


class _Context(llvm.ContextRef):  # type: ignore[misc]
    def _dispose(self) -> None:
        _put_aside.append(self._ptr)


def new_context() -> Any:
    """Make an LLVM context, for modules of one thread at a time."""
    known = len(_put_aside)  # those that come later may be of a collection in another thread
    if not _collecting:
        with suppress(IndexError):  # another thread takes them, too
            for _ in range(known):
                ffi.lib.LLVMPY_ContextDispose(_put_aside.popleft())
    return _Context(ffi.lib.LLVMPY_ContextCreate())


def _link(into: Any, part: Any) -> None:
    pointer = part._ptr
    part.detach()
    with ffi.OutputString() as error:
        if ffi.lib.LLVMPY_LinkModules(into, pointer, error):
            raise RuntimeError(str(error))


module.link_modules = _link
