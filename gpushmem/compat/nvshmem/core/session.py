"""What the modules of `nvshmem.core` have in common: whether there is a runtime, and streams."""

from __future__ import annotations

import atexit
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpushmem import runtime, settings
from gpushmem.compat import cuda_core, size_mismatch
from gpushmem.compat.nvshmem.core.nvshmem_types import (
    NvshmemError,
    NvshmemInvalid,
    NvshmemWarning,
)
from gpushmem.errors import ShmemError
from gpushmem.ops import OPS
from gpushmem.source_lines import user_frame, user_line

__all__ = ["STRICT", "backend", "began", "call", "ends", "errors", "on", "present", "warn"]

STRICT = "strict"
_losses: list[size_mismatch.Losses] = []


def began() -> None:
    """The runtime has been initialised: streams of `numba.cuda` are its streams from now on."""
    running = runtime.current("init").backend
    running.share(cuda_core.engine().device)
    numbas: Any = sys.modules["numba.cuda.cudadrv.driver"]
    numbas.ExperimentalStream = cuda_core.Stream  # also where a program imports this package
    if settings.get("GPUSHMEM_AS_NVSHMEM") == STRICT:
        running.world.native["losses"] = size_mismatch.STRICT
    else:
        _losses[:] = [size_mismatch.Losses(running.world.native, _tell)]
        running.calls_late(_losses[0])
        atexit.unregister(ends)  # of an `init` before
        atexit.register(ends)


def ends() -> None:
    """The runtime is about to end: what was lost is told."""
    if _losses and present():
        running = runtime.current("finalize").backend
        running.synchronize()
    for each in _losses:
        each.late()


def _tell(where: str, dst: int, src: int) -> None:
    """Warn of a kernel's line in which one of two arrays has less than is wanted."""
    text = (
        f"{where}: dst has {dst} elements, src {src}: {min(dst, src)} are moved, as in nvshmem4py, "
        f"and the other {abs(dst - src)} are {'lost' if dst < src else 'not written'}"
    )
    print(f"gpushmem: warning: {text}", file=sys.stderr, flush=True)


@contextmanager
def errors() -> Iterator[None]:
    """Raise gpushmem's errors as `NvshmemError`, which programs of nvshmem4py expect."""
    try:
        yield
    except ShmemError as error:
        raise NvshmemError(str(error)) from error


def call(name: str, *args: Any, **options: Any) -> Any:
    """Perform an operation of gpushmem; raises `NvshmemError` for what it raises."""
    with errors():
        return OPS[name].function(*args, **options)


def present() -> bool:
    """Whether the runtime is initialised."""
    return runtime.is_initialized()


def backend(what: str) -> Any:
    """The running backend; raises `NvshmemInvalid` without one."""
    if not present():
        raise NvshmemInvalid(f"{what}: the runtime is not initialised: call nvshmem.core.init()")
    return runtime.current(what).backend


def on(what: str, stream: Any) -> Any:
    """The engine's stream for one of `cuda.core`, `numba.cuda` or PyTorch."""
    if stream is None:
        raise NotImplementedError(f"{what} needs a stream, as in nvshmem4py: give stream=")
    running = backend(what)
    found = cuda_core.engine().queue(cuda_core.as_stream(stream).handle)
    running.follow(found)
    return found


def warn(text: str) -> None:
    """Warn of something in the line of the program that is being executed."""
    frame = user_frame(sys._getframe(1))
    warnings.warn_explicit(
        text, NvshmemWarning, frame.f_code.co_filename, user_line().number,
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )  # fmt: skip
