"""Programs of `numba.cuda`, unmodified: they run on the engine inside of `patch_numba_cuda`."""

from gpushmem.simt.numba_cuda.driver import CoreDevice
from gpushmem.simt.numba_cuda.patch import engine, finish, patch_numba_cuda

__all__ = ["CoreDevice", "engine", "finish", "patch_numba_cuda"]
