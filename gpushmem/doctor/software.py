"""Packages, launchers and the NVSHMEM library, found without importing any of them."""

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
    "header_version",
    "launchers",
    "library",
    "nvshmem4py",
    "nvshmem_packages",
    "ranks",
    "versions",
]

# Distributions whose versions `info` shows, if installed.
PACKAGES = (
    "numba", "numba-cuda", "llvmlite", "numpy", "cuda-python", "cuda-core", "cuda-bindings",
    "mpi4py", "torch", "cffi", "rich",
)  # fmt: skip
NVSHMEM4PY = re.compile(r"nvshmem4py-cu(\d+)")
NVSHMEM = re.compile(r"nvidia-nvshmem-cu(\d+)")

# CUDA major version, and the driver it needs: docs.nvidia.com/deploy/cuda-compatibility.
DRIVER_FOR_CUDA = {11: (450,), 12: (525,), 13: (580,)}
# Packages whose own version is that of their CUDA.
VERSIONED = ("nvidia-cuda-runtime", "nvidia-cuda-nvrtc", "cuda-python", "cuda-bindings")

# Program, and the option that prints its version.
LAUNCHERS = {"mpirun": "--version", "srun": "--version", "torchrun": None}

# Launcher, and its variables for rank and number of processes.
RANKS = {
    "torchrun": ("RANK", "WORLD_SIZE"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MPICH or Intel MPI": ("PMI_RANK", "PMI_SIZE"),
    "Slurm": ("SLURM_PROCID", "SLURM_NTASKS"),
    "gpushmem's tcp://": ("GPUSHMEM_PE", "GPUSHMEM_N_PES"),
}


def versions(system: System) -> dict[str, str | None]:
    """Return the versions of relevant packages; None if not installed."""
    found = {name: system.packages.get(name) for name in PACKAGES}
    for name, pattern in (("nvshmem4py", NVSHMEM4PY), ("nvshmem", NVSHMEM)):
        versions = [v for package, v in system.packages.items() if pattern.fullmatch(package)]
        found[name] = ", ".join(versions) or None
    if found["nvshmem"] is None and (library_ := library(system)):
        found["nvshmem"] = library_.version
    return found


def cuda_packages(system: System) -> dict[str, int]:
    """Return the installed packages built for one major version of CUDA, and that version."""
    found = {}
    for name, version in sorted(system.packages.items()):
        match = re.search(r"-cu(1[1-9])$", name)
        major = match[1] if match else version.split(".")[0] if name in VERSIONED else ""
        if major.isdecimal():
            found[name] = int(major)
    return found


def nvshmem4py(system: System) -> dict[str, str]:
    """Return the installed nvshmem4py packages, with their versions."""
    return {name: v for name, v in system.packages.items() if NVSHMEM4PY.fullmatch(name)}


@dataclass(frozen=True)
class Library:
    """An NVSHMEM library: its folder, and its version if installed as a package."""

    folder: str
    version: str | None
    files: tuple[str, ...]

    def bitcode(self) -> dict[int, str]:
        """Return the device library's files as LLVM bitcode, by architecture: 90 is sm_90."""
        matches = (re.fullmatch(r"libnvshmem_device_sm_(\d+)\.bc", file) for file in self.files)
        return {int(match[1]): match[0] for match in matches if match}

    def plugin(self, kind: str, name: str) -> str | None:
        """Return the file of a plugin: `plugin("bootstrap", "mpi")`; None if it is missing."""
        start = f"nvshmem_{kind}_{name}.so"
        return next((file for file in self.files if file.startswith(start)), None)


def library(system: System) -> Library | None:
    """Find the NVSHMEM library: in the installed package, else NVSHMEM_HOME, NVSHMEM_PREFIX."""
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


def nvshmem_packages(system: System) -> dict[str, str]:
    """Return the installed packages of NVSHMEM's library, with their versions."""
    return {name: v for name, v in system.packages.items() if NVSHMEM.fullmatch(name)}


def header_version(system: System, found: Library) -> str | None:
    """Return the version in the headers beside a library; None if it cannot be found."""
    folder = found.folder.rpartition("/")[0]
    text = system.read(f"{folder}/include/non_abi/nvshmem_version.h") or ""
    parts = [
        re.search(rf"NVSHMEM_VENDOR_{part}_VERSION (\d+)", text, re.ASCII)
        for part in ("MAJOR", "MINOR", "PATCH")
    ]
    return ".".join(part[1] for part in parts if part) if all(parts) else None


def launchers(system: System) -> dict[str, str | None]:
    """Return each launcher's path, with its version if it prints one; None if not found."""
    found: dict[str, str | None] = {}
    for name, option in LAUNCHERS.items():
        path = system.find(name)
        said = system.run((name, option)) if path and option else None
        first = (said or "").strip().splitlines()[:1]
        found[name] = ": ".join([path, *first]) if path else None
    return found


def ranks(system: System) -> dict[str, tuple[str, str]]:
    """Return the launchers whose variables are set, with rank and number of processes."""
    told = {name: tuple(map(system.variable, variables)) for name, variables in RANKS.items()}
    return {name: (pair[0], pair[1]) for name, pair in told.items() if pair[0]}
