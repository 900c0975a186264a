"""Put a process of numba-cuda's tests on the engine, for good."""

_patches = []  # a context manager that nobody refers to is left


def enter():
    from gpushmem import source_lines
    from gpushmem.backends.cpu.observers import observe_kernels
    from gpushmem.simt.numba_cuda import patch_numba_cuda

    source_lines.USER_CODE["numba.cuda.tests"] = True
    observe_kernels("GPUSHMEM_CHECK")  # processes of one test share a cache of code
    _patches.append(patch_numba_cuda())
    _patches[-1].__enter__()

    from numba.cuda import testing
    from numba.cuda.cudadrv import libs

    # Two questions about an installation of CUDA, which the engine does not need.
    testing.cudadevrt_missing = lambda: False
    libs.get_cuda_include_dir = _no_includes
    testing.CUDATestCase._dump_failed_filechecks = False  # under pytest a fixture sets it


def _no_includes():
    raise FileNotFoundError("there is no CUDA toolkit")
