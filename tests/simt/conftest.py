"""Launching kernels on the engine."""

import pytest

from gpushmem.artifacts.shape import shape_of
from gpushmem.simt.run.kernel import Kernel


def launch(function, grid, block, *args, shared=0, **options):
    """Compile and run a kernel; return what ran its threads."""
    running = Kernel(function, **options).prepare(shape_of(grid, block, shared), args)
    running()
    return running.entry.kind


@pytest.fixture
def patched():
    """Run the test with `numba.cuda` on the engine."""
    from gpushmem.simt.numba_cuda import patch_numba_cuda

    with patch_numba_cuda():
        yield
