"""Puts this package's modules under the names that programs of nvshmem4py import."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from gpushmem import settings, simulator
from gpushmem.backends import registry, selection
from gpushmem.import_hooks import WhenImported
from gpushmem.job import job as jobs
from gpushmem.torch import set_variables

__all__ = ["activate"]

HERE = "gpushmem.compat"
# What a program imports -> the module that it gets; also of what is inside.
NAMES = {
    "nvshmem": f"{HERE}.nvshmem",
    **{
        f"nvshmem.core.device.numba.{module}": f"{HERE}.nvshmem.core.device.numba"
        for module in ("amo", "collective", "direct", "mem", "rma")
    },
    "cuda.core.experimental": f"{HERE}.cuda_core",
}
CUDA_CORE = "cuda.core"
NUMBAS_DRIVER = "numba.cuda.cudadrv.driver"
# How many processes of the job are on this machine, as launchers say it.
LOCAL_SIZES = "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "WORLD_SIZE"


def activate() -> None:
    """Let this process, and those that it starts, run programs of nvshmem4py on the CPU.

    Does nothing if GPUSHMEM_AS_NVSHMEM is 0, or where the backend uses GPUs: NVIDIA's own package
    is imported then.
    """
    if settings.get("GPUSHMEM_AS_NVSHMEM") == "0":
        return
    if selection.choose()[0] in registry.that_use_gpus():
        return
    set_variables()
    simulator.enable(devices=_devices())
    # A launcher may have done the rest: not the above, which is what its PEs differ in.
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")  # about GPUs
    sys.meta_path.insert(0, _Finder())
    for name in [name for name in sys.modules if _real(name)]:
        del sys.modules[name]  # of the launcher, from which this process was forked
    if CUDA_CORE in sys.modules:
        _replace(sys.modules[CUDA_CORE])
    else:
        WhenImported(CUDA_CORE, _replace).wait()


def _devices() -> int | None:
    """As many GPUs as the job has PEs here, so that each may choose its own."""
    if settings.is_set("GPUSHMEM_SIM_DEVICES"):
        return None
    job = jobs.current()
    said = next((os.environ[name] for name in LOCAL_SIZES if name in os.environ), "")
    return job.n_pes if job is not None else int(said) if said.isdecimal() and int(said) else None


def _replace(module: ModuleType) -> None:
    """Give the names of `cuda.core` that need a GPU a meaning without one."""
    ours = importlib.import_module(f"{HERE}.cuda_core")
    for name in ours.__all__:
        setattr(module, name, getattr(ours, name))
    driver: Any = sys.modules.get(NUMBAS_DRIVER)
    if driver is not None:
        driver.ExperimentalStream = ours.Stream
        driver.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0


def _real(name: str) -> str | None:
    """The module that a program means, None if it is none of ours."""
    inner = name
    while inner not in NAMES:
        inner, inside, _ = inner.rpartition(".")
        if not inside:
            return None
    return NAMES[inner] + name.removeprefix(inner)


def _load(real: str) -> ModuleType:
    importlib.import_module(simulator.MODULE)  # it is patched then: by what ours begin to import
    return importlib.import_module(real)


class _Finder(MetaPathFinder):
    """Finds modules by the names of others."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        """The spec of one of our modules, under the name that is imported."""
        real = _real(name)
        if real is None or importlib.util.find_spec(real) is None:
            return None
        return ModuleSpec(name, _Loader(partial(_load, real)), is_package=True)


class _Loader(Loader):
    """Gives a module that has a name and a spec of its own, and keeps both."""

    def __init__(self, load: Callable[[], ModuleType]) -> None:
        self._load = load
        self._spec: Any = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = self._load()
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has been imported: give it back its spec."""
        module.__spec__ = self._spec
