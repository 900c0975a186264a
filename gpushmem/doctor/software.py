"""Packages, launchers and the NVSHMEM library, without importing any of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpushmem.doctor.system import System

__all__ = [
    "DRIVER_FOR_CUDA",
    "LAUNCHERS",
    "RANKS",
    "Library",
    "cuda_packages",
    "launchers",
    "library",
    "nvshmem4py",
    "ranks",
    "versions",
]

# Distributions that `info` tells the version of, when installed.
PACKAGES = (
    "numba", "numba-cuda", "llvmlite", "numpy", "cuda-python", "cuda-core", "cuda-bindings",
    "mpi4py", "torch", "cffi", "rich",
)  # fmt: skip
NVSHMEM4PY = re.compile(r"nvshmem4py-cu(\d+)")
NVSHMEM = re.compile(r"nvidia-nvshmem-cu(\d+)")

# CUDA's major version, and the driver that it needs: docs.nvidia.com/deploy/cuda-compatibility.
DRIVER_FOR_CUDA = {11: (450,), 12: (525,), 13: (580,)}
# Packages that tell by their own version which CUDA they are of.
VERSIONED = ("nvidia-cuda-runtime", "nvidia-cuda-nvrtc", "cuda-python", "cuda-bindings")

# Program, and what makes it tell its version.
LAUNCHERS = {"mpirun": "--version", "srun": "--version", "torchrun": None}

# Who starts processes, and the variables that tell each which it is, and of how many.
RANKS = {
    "torchrun": ("RANK", "WORLD_SIZE"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MPICH or Intel MPI": ("PMI_RANK", "PMI_SIZE"),
    "Slurm": ("SLURM_PROCID", "SLURM_NTASKS"),
    "gpushmem's tcp://": ("GPUSHMEM_PE", "GPUSHMEM_N_PES"),
}


def versions(system: System) -> dict[str, str | None]:
    """The versions of what matters here; None for what is not installed."""
    found = {name: system.packages.get(name) for name in PACKAGES}
    for name, pattern in (("nvshmem4py", NVSHMEM4PY), ("nvshmem", NVSHMEM)):
        versions = [v for package, v in system.packages.items() if pattern.fullmatch(package)]
        found[name] = ", ".join(versions) or None
    if found["nvshmem"] is None and (library_ := library(system)):
        found["nvshmem"] = library_.version
    return found


def cuda_packages(system: System) -> dict[str, int]:
    """Installed packages that are built for one major version of CUDA, and for which."""
    found = {}
    for name, version in sorted(system.packages.items()):
        match = re.search(r"-cu(1[1-9])$", name)
        major = match[1] if match else version.split(".")[0] if name in VERSIONED else ""
        if major.isdecimal():
            found[name] = int(major)
    return found


def nvshmem4py(system: System) -> dict[str, str]:
    """The nvshmem4py packages that are installed, with their versions."""
    return {name: v for name, v in system.packages.items() if NVSHMEM4PY.fullmatch(name)}


@dataclass(frozen=True)
class Library:
    """An NVSHMEM library: its folder, and its version if a package tells."""

    folder: str
    version: str | None
    files: tuple[str, ...]

    def plugin(self, kind: str, name: str) -> str | None:
        """The file of a plugin: `plugin("bootstrap", "mpi")`; None if it is not there."""
        start = f"nvshmem_{kind}_{name}.so"
        return next((file for file in self.files if file.startswith(start)), None)


def library(system: System) -> Library | None:
    """The NVSHMEM library: the installed package's, else NVSHMEM_HOME's or NVSHMEM_PREFIX's."""
    for package, version in system.packages.items():
        folder = system.locate(package, "nvshmem/lib") if NVSHMEM.fullmatch(package) else None
        if folder:
            return Library(folder, version, tuple(system.names(folder)))
    for variable in ("NVSHMEM_HOME", "NVSHMEM_PREFIX"):
        folder = f"{system.variable(variable).rstrip('/')}/lib"
        files = system.names(folder) if system.variable(variable) else []
        if any(file.startswith("libnvshmem_host") for file in files):
            return Library(folder, None, tuple(files))
    return None


def launchers(system: System) -> dict[str, str | None]:
    """Where each launcher is, with its version if it tells one; None if it is not found."""
    found: dict[str, str | None] = {}
    for name, option in LAUNCHERS.items():
        path = system.find(name)
        said = system.run((name, option)) if path and option else None
        first = (said or "").strip().splitlines()[:1]
        found[name] = ": ".join([path, *first]) if path else None
    return found


def ranks(system: System) -> dict[str, tuple[str, str]]:
    """The launchers whose variables are set, with the rank and the number they tell."""
    told = {name: tuple(map(system.variable, variables)) for name, variables in RANKS.items()}
    return {name: (pair[0], pair[1]) for name, pair in told.items() if pair[0]}
