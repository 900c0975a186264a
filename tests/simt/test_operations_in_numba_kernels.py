"""Operations in kernels of `numba.cuda.jit` itself, with the engine's patch and without."""

import numpy as np
import pytest
from numba import cuda
from numba.cuda.core.errors import TypingError
from numba.cuda.cudadrv.driver import driver
from numba.cuda.cudadrv.error import CudaSupportError

import gpushmem as shmem
from gpushmem.errors import ArgumentError, NotInitializedError
from gpushmem.simt.numba_cuda import patch_numba_cuda

pytestmark = [
    pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning"),
    pytest.mark.cpu_backend,
]


def test_operations_work_in_numbas_own_kernels_on_the_engine(run_pes):
    def body():
        with patch_numba_cuda():

            @cuda.jit
            def send(team, dst, src, pe):
                src[0] = 10 + team.my_pe
                shmem.put(dst, src, pe)
                shmem.barrier(team)

            shmem.init()
            me = shmem.my_pe()
            dst, src = shmem.zeros(2, "int32"), cuda.to_device(np.full(2, me, np.int32))
            send[1, 1](shmem.TEAM_WORLD, dst, src, 1 - me)
            cuda.synchronize()
            got = dst.numpy().tolist()
            if me == 0:
                send[1, 1](shmem.TEAM_WORLD, dst, src, 7)
                with pytest.raises(ArgumentError, match=r"kernel send, .*there is no PE 7"):
                    cuda.synchronize()
            shmem.finalize()
            with pytest.raises(NotInitializedError, match=r"kernel send .*call gpushmem.init\(\)"):
                send[1, 1](shmem.TEAM_WORLD, src, src, 0)
        return got

    assert run_pes(body, 2) == [[11, 1], [10, 0]]


def operation():
    """As operations are before `init`."""


operation.__module__ = shmem.put.__module__


def test_operations_before_init_say_so():
    with patch_numba_cuda():

        @cuda.jit
        def early(x):
            operation()

        with pytest.raises(TypingError, match=r"operation: call gpushmem.init\(\)"):
            early[1, 1](np.zeros(1))


@pytest.mark.skipif(driver.initialization_error is None, reason="there is a CUDA driver")
def test_without_a_driver_numbas_own_kernels_say_what_to_write(alone):
    @cuda.jit
    def kernel(x):
        x[0] = shmem.my_pe()

    with pytest.raises(CudaSupportError, match=r"driver(.|\n)*decorate them with gpushmem.jit"):
        kernel[1, 1](shmem.zeros(1))
