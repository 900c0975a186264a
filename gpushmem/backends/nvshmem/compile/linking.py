"""Machine code, and the parts that it is linked of: what both compilers make.

NVSHMEM's device functions are LTO-IR, as kernels are (`shims`), and the linker optimises across
both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cuda.core import Linker, LinkerOptions, ObjectCode
from numba.cuda.cudadrv.linkable_code import LinkableCode
from numba.cuda.cudadrv.mappings import FILE_EXTENSION_MAP

from gpushmem.backends.nvshmem.compile import shims
from gpushmem.backends.nvshmem.operations import gemm
from gpushmem.errors import ArgumentError

__all__ = [
    "GRID_SYNC", "Arch", "Compiled", "Linked", "Part", "grid_sync", "link", "link_all",
    "linked_file",
]  # fmt: skip

# Of libcudadevrt, beside whose machine code the linker keeps all of NVSHMEM's, for minutes.
GRID_SYNC = "cudaCGGetIntrinsicHandle"
GRID_SYNC_SOURCE = """#include <cooperative_groups.h>
extern "C" __device__ unsigned long long cudaCGGetIntrinsicHandle(cudaCGScope) { return 1; }
extern "C" __device__ cudaError_t cudaCGSynchronize(unsigned long long, unsigned) {
    cooperative_groups::this_grid().sync();
    return cudaSuccess;
}
"""
# numba-cuda's kinds of files -> cuda.core's
KINDS = {
    FILE_EXTENSION_MAP[ending]: kind
    for ending, kind in {
        "o": "object", "ptx": "ptx", "a": "library", "cubin": "cubin", "fatbin": "fatbin",
        "ltoir": "ltoir",
    }.items()
}  # fmt: skip
OLDEST = (7, 5)  # compute capability


@dataclass(frozen=True)
class Arch:
    """An architecture, such as sm_90 or sm_90a."""

    major: int
    minor: int
    suffix: str = ""

    @classmethod
    def of(cls, text: str) -> Arch:
        """Read "sm_90", "sm_100a", "90" or "9.0"; raises `ArgumentError`."""
        match = re.fullmatch(r"(?:sm_|compute_)?(\d+)\.?(\d)([af]?)", text.strip())
        if match is None:
            raise ArgumentError(f"{text!r} is not an architecture: write it as sm_90 or sm_100a")
        major, minor = int(match[1]), int(match[2])
        if (major, minor) < OLDEST:
            raise ArgumentError(
                f"{text!r}: NVSHMEM 3 has device functions for sm_{OLDEST[0]}{OLDEST[1]} and newer"
            )
        return cls(major, minor, match[3])

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability."""
        return self.major, self.minor

    def __str__(self) -> str:
        return f"sm_{self.major}{self.minor}{self.suffix}"


class Part(NamedTuple):
    """Something to be linked: "ltoir", "cubin", "library" or another of cuda.core's kinds."""

    kind: str
    code: bytes


@dataclass(frozen=True)
class Compiled:
    """A kernel's own code, and what to link it with."""

    entry: str
    parts: tuple[Part, ...]  # its own first; without NVSHMEM's shims
    shims: frozenset[str]
    products: frozenset[str]  # the dtypes of cuBLASDx's that it calls
    cooperative: bool
    arch: Arch
    max_registers: int | None
    trace: dict[str, Any] | None  # what numbers in its events mean, if it is traced


@dataclass(frozen=True)
class Linked:
    """A kernel as a cubin or PTX, and the linker's log."""

    code: bytes
    log: str


def grid_sync(arch: str) -> Part:
    """What a grid's barrier calls."""
    return Part("ltoir", shims.compiled(GRID_SYNC_SOURCE, arch))


def linked_file(file: Any, arch: str) -> Part:
    """A file that a kernel links: a path, or numba-cuda's object for its contents."""
    found = LinkableCode.from_path_or_obj(file)
    data = found.data.encode() if isinstance(found.data, str) else found.data
    if found.kind == "cu":
        return Part("ltoir", shims.compiled(data.decode(), arch))
    return Part(KINDS.get(found.kind, found.kind), data)


def link(compiled: Compiled, kind: str = "cubin") -> Linked:
    """Link with optimisation over all parts: to a "cubin", or to "ptx"."""
    if kind == "ltoir":
        return Linked(compiled.parts[0].code, "")
    return link_all([compiled], kind)


def link_all(kernels: Sequence[Compiled], kind: str = "cubin") -> Linked:
    """Link several kernels, for one architecture and with the same options, to one object."""
    first = kernels[0]
    parts = list(dict.fromkeys(part for kernel in kernels for part in kernel.parts))
    needed = frozenset[str]().union(*(kernel.shims for kernel in kernels))
    if needed:
        parts.append(Part("ltoir", shims.compiled_for(needed, str(first.arch))))
    products = frozenset[str]().union(*(kernel.products for kernel in kernels))
    parts += [Part("ltoir", gemm.compiled(name, str(first.arch))) for name in sorted(products)]
    if kind == "ptx":  # libraries are linked with the user's program
        parts = [part for part in parts if part.kind != "library"]
    options = LinkerOptions(
        arch=str(first.arch), link_time_optimization=True, ptx=kind == "ptx" or None,
        max_register_count=first.max_registers, ptxas_options=["-v"],
    )  # fmt: skip
    objects = [getattr(ObjectCode, f"from_{part.kind}")(part.code) for part in parts]
    linker = Linker(*objects, options=options)
    return Linked(bytes(linker.link(kind).code), linker.get_info_log())
