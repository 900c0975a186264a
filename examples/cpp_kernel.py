"""Launch a CUDA C++ kernel between two Numba kernels, on the same symmetric arrays; needs a GPU.

gpushmem run --backend nvshmem -n 2 examples/cpp_kernel.py
"""

import numpy as np
from numba import cuda

import gpushmem as shmem

N = 1000
CPP = r"""
#include <nvshmem.h>

extern "C" __global__ void put_right(float *dst, const float *src, size_t n, uint64_t *ready)
{
    int right = (nvshmem_my_pe() + 1) % nvshmem_n_pes();
    nvshmemx_float_put_signal_block(dst, src, n, ready, 1, NVSHMEM_SIGNAL_SET, right);
}
"""


@shmem.jit
def fill(src):
    i = cuda.grid(1)
    if i < src.size:
        src[i] = 1000 * shmem.my_pe() + i


@shmem.jit
def put_right_in_python(dst, src, ready):
    right = (shmem.my_pe() + 1) % shmem.n_pes()
    shmem.put_signal_block(dst, src, ready, 1, shmem.SIGNAL_SET, right)


@shmem.jit
def double(dst, ready):
    i = cuda.threadIdx.x
    if i == 0:
        shmem.signal_wait_until(ready, shmem.CMP_EQ, 1)
    cuda.syncthreads()
    while i < dst.size:
        dst[i] *= 2
        i += cuda.blockDim.x


def compiled(arch):
    """The C++ as machine code for "sm_90", say. This needs no GPU.

    The macro makes NVSHMEM's headers contain the device functions: nothing has to be linked.
    """
    from cuda.core import Program, ProgramOptions
    from cuda.pathfinder import find_nvidia_header_directory

    headers = [find_nvidia_header_directory(name) for name in ("nvshmem", "cccl", "cudart")]
    macro = "__NVSHMEM_NUMBA_SUPPORT__"
    options = ProgramOptions(std="c++17", arch=arch, include_path=headers, define_macro=macro)
    return Program(CPP, "c++", options).compile("cubin")


def put_right(stream, dst, src, ready):
    """Launch the C++ kernel."""
    from cuda.core import Device, LaunchConfig, launch

    kernel = compiled("sm_{}{}".format(*Device().compute_capability)).get_kernel("put_right")
    shmem.init_module(kernel)
    to, from_, signal = (a.__cuda_array_interface__["data"][0] for a in (dst, src, ready))
    launch(stream, LaunchConfig(grid=1, block=256), kernel, to, from_, src.size, signal)


def main(world):
    src, dst = shmem.empty(N, "float32"), shmem.empty(N, "float32")
    ready, stream = shmem.zeros(1, "uint64"), shmem.stream()
    fill[4, 256, stream](src)
    if hasattr(src, "__cuda_array_interface__"):
        put_right(stream, dst, src, ready)
    else:
        if world.my_pe == 0:
            print("no GPU: a Numba kernel takes the place of the one in C++")
        put_right_in_python[1, 256, stream](dst, src, ready)
    double[1, 256, stream](dst, ready)

    left = (world.my_pe - 1) % world.n_pes
    np.testing.assert_array_equal(dst.numpy(), 2 * (1000 * left + np.arange(N)))


if __name__ == "__main__":
    with shmem.session() as world:
        main(world)
