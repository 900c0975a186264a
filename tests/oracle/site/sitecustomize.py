"""Put the processes that numba-cuda's tests start on the engine too."""

import os

if os.environ.get("GPUSHMEM_ORACLE") == "engine":
    from gpushmem.simt.patch import patch_numba_cuda

    patch = patch_numba_cuda()
    patch.__enter__()  # for the rest of the process
