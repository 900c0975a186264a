"""The backend's requirements, checked without importing it or using a GPU.

Tested with nvshmem4py 0.4.1 (NVSHMEM 3.8.0) and 0.4.0 (3.7.2), numba-cuda 0.30, cuda-core 1.2.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from gpushmem import settings
from gpushmem.errors import ArgumentError

__all__ = [
    "COMPILING",
    "MLIR",
    "NEEDED",
    "check_mlir",
    "compilers",
    "cublasdx",
    "installed",
    "lacking",
    "missing",
    "reasons",
]

INSTALL = 'pip install "gpushmem[nvshmem]"'
DRIVER = "libcuda.so.1"


@dataclass(frozen=True)
class Needed:
    """A requirement: one of some packages, in certain versions."""

    packages: tuple[str, ...]
    least: tuple[int, ...] = ()
    below: tuple[int, ...] = ()

    def __str__(self) -> str:
        """In pip's notation."""
        bounds = [f"{sign}{_text(v)}" for sign, v in ((">=", self.least), ("<", self.below)) if v]
        return " or ".join(self.packages) + ",".join(bounds)

    def fits(self, version: str) -> bool:
        """Whether a version meets the requirement."""
        found = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
        return found >= self.least and (not self.below or found < self.below)


NEEDED = (
    Needed(("nvshmem4py-cu13", "nvshmem4py-cu12"), (0, 4), (0, 5)),
    Needed(("numba-cuda",), (0, 30), (0, 31)),
    Needed(("cuda-core",), (1, 0)),
)


MLIR = Needed(("numba-cuda-mlir",), (0, 6), (0, 7))  # for kernels written for it, if any
MATHDX = ("nvidia-libmathdx-cu13", "nvidia-libmathdx-cu12")  # one of them, if any

# Packages that a kernel's machine code depends on.
COMPILING = (
    "gpushmem", "numba", "numba-cuda", "numba-cuda-mlir", "llvmlite",
    "nvshmem4py-cu13", "nvshmem4py-cu12",
    "nvidia-nvshmem-cu13", "nvidia-nvshmem-cu12", "cuda-core", "nvidia-cuda-nvrtc",
    "nvidia-cuda-nvrtc-cu12", "nvidia-nvvm", "nvidia-cuda-nvcc-cu12", "nvidia-nvjitlink",
    "nvidia-nvjitlink-cu12", "nvidia-cuda-cccl", "nvidia-cuda-cccl-cu12", "nvidia-cuda-runtime",
    "nvidia-cuda-runtime-cu12", *MATHDX,
)  # fmt: skip

# The compilers' libraries, and the packages that may have them; without these, a CUDA toolkit has.
LIBRARIES = {
    "nvvm": ("nvidia-nvvm", "nvidia-cuda-nvcc-cu12"),
    "nvrtc": ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"),
    "nvJitLink": ("nvidia-nvjitlink", "nvidia-nvjitlink-cu12"),
}


def cublasdx() -> bool:
    """Whether cuBLASDx is installed and enabled."""
    return bool(settings.get("GPUSHMEM_CUBLASDX")) and any(map(installed, MATHDX))


@cache
def compilers() -> tuple[tuple[str, object], ...]:
    """The versions of all that produces machine code; of this package, the source's digest."""
    from gpushmem.artifacts.toolchain import sources_digest  # noqa: PLC0415  (heavy: not for launchers)

    found = [(name, installed(name)) for name in COMPILING]
    there = {name for name, version in found if version}
    toolkit = [(n, _file_of(n)) for n, packages in LIBRARIES.items() if not there & {*packages}]
    return (*found, *toolkit, ("cuBLASDx", cublasdx()), ("source", sources_digest()))


def _file_of(library: str) -> tuple[str, int] | None:
    """The file of a library of a CUDA toolkit, whose path has the version, and its size."""
    from cuda.pathfinder import load_nvidia_dynamic_lib  # noqa: PLC0415

    try:
        path = Path(load_nvidia_dynamic_lib(library).abs_path or "").resolve(strict=True)
        return str(path), path.stat().st_size
    except Exception:  # noqa: BLE001  (there is none: compiling reports it)
        return None


def check_mlir() -> None:
    """Raise `ArgumentError` unless numba-cuda-mlir can be used, in the version it needs to have."""
    there = installed(MLIR.packages[0])
    if there is None or not MLIR.fits(there):
        said = "is not installed" if there is None else f"{there} is installed"
        raise ArgumentError(
            f"{MLIR.packages[0]} {said}; kernels for GPUs need {MLIR}: install that, or set "
            "GPUSHMEM_COMPILER=numba-cuda"
        )


def missing() -> str | None:
    """Why the backend cannot be used here, and what to do, in a line; None if it can be."""
    driver, packages = _no_driver(), lacking(installed)
    found = ([driver] if driver else []) + packages
    if not found:
        return None
    install = f": {INSTALL}" if packages else ""
    return f"backend nvshmem cannot be used here: {', '.join(found)}{install}"


def reasons() -> list[str]:
    """Why the backend is not chosen by default here, in a few words each.

    Never raises, and starts nothing of CUDA.
    """
    gpu = _no_gpu()
    return ([gpu] if gpu else []) + lacking(installed)


def lacking(version: Callable[[str], str | None]) -> list[str]:
    """The requirements not met; `version` gives a package's version, None if it is missing."""
    found = []
    for needed in NEEDED:
        there = {name: v for name in needed.packages if (v := version(name)) is not None}
        name = needed.packages[0].removesuffix("-cu13")
        if not there:
            found.append(f"{name} is not installed (needed: {needed})")
        elif not any(map(needed.fits, there.values())):
            told = " and ".join(f"{n} {v}" for n, v in there.items())
            found.append(f"{told} is installed (needed: {needed})")
    return found


@cache
def installed(package: str) -> str | None:
    """The version of a package that is installed, None if it is not."""
    try:
        return metadata.version(package) or None
    except Exception:  # noqa: BLE001  (of a broken installation)
        return None


def _no_gpu() -> str | None:
    """Why no GPU is used by default: the driver must show one."""
    try:
        names = os.listdir("/dev")
    except OSError:
        names = []
    is_gpu = re.compile(r"nvidia\d+").fullmatch
    if not any(map(is_gpu, names)) and not Path("/proc/driver/nvidia/version").exists():
        return "there is no NVIDIA GPU"
    return _no_driver()


def _no_driver() -> str | None:
    """Why CUDA cannot start here, as far as this can be seen without starting it."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in {"", "-1"}:
        return "CUDA_VISIBLE_DEVICES hides all GPUs"
    try:
        ctypes.CDLL(DRIVER)  # this starts nothing: cuInit would
    except OSError:
        return f"there is no NVIDIA driver ({DRIVER} cannot be loaded)"
    return None


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
