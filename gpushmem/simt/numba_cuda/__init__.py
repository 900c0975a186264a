"""Programs of numba.cuda, unmodified: its host side on an emulated driver."""

from gpushmem.simt.numba_cuda.patch import patch_numba_cuda

__all__ = ["patch_numba_cuda"]
