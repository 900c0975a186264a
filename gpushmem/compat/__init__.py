"""Other packages' interfaces on gpushmem: programs of nvshmem4py run without NVSHMEM and a GPU.

`gpushmem run --as-nvshmem`, or GPUSHMEM_AS_NVSHMEM=1 for processes that others start, makes
`gpushmem.compat.nvshmem` be imported under the name `nvshmem`, and `cuda.core` and `numba.cuda`
mean this machine's cores: see docs/coming-from-nvshmem4py.md.
"""

from __future__ import annotations

import sys

__all__ = ["at_start"]


def at_start() -> None:
    """Do what GPUSHMEM_AS_NVSHMEM says, at the start of a process: a .pth file calls it."""
    from gpushmem.compat.activate import activate  # noqa: PLC0415  (only where it is asked for)
    from gpushmem.errors import ShmemError  # noqa: PLC0415

    try:
        activate()
    except ShmemError as error:
        print(f"gpushmem: {error}", file=sys.stderr)  # nobody would catch it
