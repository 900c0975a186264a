"""Programs of numba.cuda, unmodified: its host side on an emulated driver."""

from numba import cuda as _cuda  # noqa: F401  (first: with GPUSHMEM_SIM=1 importing it patches it)

from gpushmem.simt.numba_cuda.patch import patch_numba_cuda

__all__ = ["patch_numba_cuda"]
