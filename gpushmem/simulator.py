"""The CUDA simulator: programs of numba.cuda and numba-cuda-mlir, unmodified, without a GPU.

`enable()` patches numba.cuda (`simt.programs`), at once if it has been imported, else when it is:
`WhenImported` waits for it. Where GPUSHMEM_SIM is set, `at_start` does so at the start of each
Python process, also of programs that never import gpushmem: a .pth file in site-packages calls it.
So this module imports nothing heavy.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType

import gpushmem.settings as settings  # noqa: PLR0402  (`from gpushmem` would import more)
from gpushmem.errors import ArgumentError, BackendUnavailable
from gpushmem.import_hooks import WhenImported

__all__ = ["at_start", "disable", "enable", "enabled", "is_enabled"]

MODULE = "numba.cuda"
SUCCESSOR = "numba_cuda_mlir"  # runs on it, too: see `simt.numba_cuda.mlir`
NUMBAS_OWN = "numba.cuda.simulator_init"  # imported where NUMBA_ENABLE_CUDASIM has been heard


def enable(gpu: str | None = None, devices: int | None = None) -> None:
    """Run programs of `numba.cuda` and numba-cuda-mlir on this machine's cores from now on.

    For this process and those that it starts; without PEs and without `gpushmem.init()`. `gpu` is
    the GPU whose limits launches respect: t4, a100, h100 or b200 (default: GPUSHMEM_SIM_GPU, or
    h100), `devices` how many of it there are. On return `numba.cuda` uses the simulator, or will as
    soon as it is imported. Kernels may be decorated before; ones that a GPU has compiled are not
    compiled again. Calling it again changes the GPU. Not for use by several threads at once.

    Raises `ArgumentError` for a GPU or a number that is not possible, and `BackendUnavailable` if
    Numba's own simulator has been imported.
    """
    asked = {"GPUSHMEM_SIM": 1, "GPUSHMEM_SIM_GPU": gpu, "GPUSHMEM_SIM_DEVICES": devices}
    texts = {name: str(value) for name, value in asked.items() if value is not None}
    for name in asked:
        settings.get(name, {**os.environ, **texts})
    for name, text in texts.items():
        settings.put(name, text)
    _model()
    if not is_enabled():
        if MODULE in sys.modules:
            _patch()
        else:
            _wait()
            if SUCCESSOR in sys.modules:
                importlib.import_module(MODULE)


def disable() -> None:
    """Wait for all work, and give `numba.cuda` back; its arrays must not be used any more.

    For this process and those that it starts. Raises the error of a launch that failed.
    """
    settings.put("GPUSHMEM_SIM", 0)
    _give_up()
    _patched.close()


@contextmanager
def enabled() -> Iterator[None]:
    """`enable` inside a `with` block, unless it is; then nothing changes."""
    if is_enabled():
        yield
        return
    with settings.putting(GPUSHMEM_SIM=1):
        enable()
        try:
            yield
        finally:
            disable()


def is_enabled() -> bool:
    """Whether `numba.cuda` has been imported, and uses the simulator."""
    return bool(_patch_of_pid)


def at_start() -> None:
    """Do what GPUSHMEM_SIM says, at the start of a process; tells of a value that is invalid."""
    try:
        if settings.get("GPUSHMEM_SIM"):
            enable()
    except ArgumentError as error:
        print(f"gpushmem: {error}", file=sys.stderr)  # nobody would catch it


# --- the patch

_patched = ExitStack()
_patch_of_pid: list[int] = []  # the process that has patched numba.cuda, if it is patched


def _model() -> None:
    """Let the engine model the GPU of the settings, if it has been imported; it does later."""
    model = sys.modules.get("gpushmem.artifacts.gpu_model")
    if model is not None:
        model.choose(settings.get("GPUSHMEM_SIM_GPU"))


def _patch() -> None:
    """Patch numba.cuda, which has been imported."""
    if NUMBAS_OWN in sys.modules:
        raise BackendUnavailable(
            "numba.cuda has been imported with NUMBA_ENABLE_CUDASIM=1, so it is Numba's own "
            "simulator: call gpushmem.simt.enable() before numba.cuda is imported, or set "
            "GPUSHMEM_SIM=1 for the process"
        )
    from gpushmem.simt.programs import patch_numba_cuda  # noqa: PLC0415  (heavy)

    if settings.is_set("GPUSHMEM_CHECK"):
        from gpushmem.backends.cpu.observers import observe_kernels  # noqa: PLC0415  (heavy)

        observe_kernels("GPUSHMEM_CHECK")
    _patched.enter_context(patch_numba_cuda())
    _patch_of_pid[:] = [os.getpid()]
    _patched.callback(_patch_of_pid.clear)
    atexit.register(_finish)


def _finish() -> None:
    """At the end of the process: wait for what has been launched, whose output may be missing."""
    failed = hasattr(sys, "last_type")  # then a launch may never end
    if _patch_of_pid != [os.getpid()] or failed:
        return
    from gpushmem.simt.programs import finish  # noqa: PLC0415

    try:
        finish()
    except Exception as error:  # noqa: BLE001
        print(f"gpushmem: a launch that nobody waited for has failed: {error}", file=sys.stderr)


# --- the import of numba.cuda


def _without_numbas_simulator() -> None:
    sys.modules["numba"].config.ENABLE_CUDASIM = 0  # whatever NUMBA_ENABLE_CUDASIM says


def _imported(module: ModuleType) -> None:
    sys.modules["numba"].cuda = module  # type: ignore[attr-defined]  # as it will be
    _give_up()
    _patch()


# numba-cuda-mlir runs on the simulator of numba.cuda, which is imported before it; and before what
# the patch imports, which would be half imported if it were the first to import numba.cuda.
OF_THE_PATCH = (
    "artifacts", "native", "simt.base", "simt.bitcode", "simt.blocks", "simt.compiler", "simt.grid",
    "simt.interpret", "simt.intrinsics", "simt.programs", "simt.run",
)  # fmt: skip
_waiting = (
    WhenImported(MODULE, _imported, _without_numbas_simulator),
    *(
        WhenImported(name, before=lambda: importlib.import_module(MODULE))
        for name in (SUCCESSOR, *(f"gpushmem.{package}" for package in OF_THE_PATCH))
    ),
)


def _wait() -> None:
    for each in _waiting:
        each.wait()


def _give_up() -> None:
    for each in _waiting:
        each.give_up()
