"""The calling PE, and how many there are."""

from __future__ import annotations

from gpushmem.ops.roles import Index, Integer, Truth
from gpushmem.ops.row import declare


@declare(on_host=True, stream=False)
def my_pe() -> Index:
    """Return the number of the calling PE, 0 to `n_pes() - 1`. OpenSHMEM 1.5: shmem_my_pe."""


@declare(on_host=True, stream=False)
def n_pes() -> Index:
    """Return how many PEs the job has. OpenSHMEM 1.5: shmem_n_pes."""


@declare(on_host=True, stream=False)
def pe_accessible(pe: Integer) -> Truth:
    """Return whether operations can name PE `pe`: they can name every PE of the job.

    True for 0 to `n_pes() - 1`, False for any other integer. OpenSHMEM 1.5: shmem_pe_accessible.
    """
