"""Operations that fail in a kernel name the operation, the array, and the line that made it."""

import numpy as np
import pytest
from numba import cuda

import gpushmem as shmem
from gpushmem.errors import ArgumentError, SymmetryError

pytestmark = pytest.mark.checked


@shmem.jit
def put_block(dst, src):
    shmem.put_block(dst, src, 0)


@shmem.jit
def empty(dst, src):
    shmem.p(dst[8:], 1, 0)


@shmem.jit
def local(dst, src):
    x = cuda.local.array(4, np.int32)
    shmem.put(x, src, 0)


@shmem.jit
def strided(dst, src):
    shmem.iget(src, dst, 1, 2, 5, 0)


@pytest.mark.cpu_backend
def test_what_fails_in_a_kernel_names_the_array(alone):
    out = shmem.zeros(8, "int32")
    b = shmem.zeros(4, "int32")
    mine = shmem.to_device(np.zeros(4, np.int32))
    host = np.zeros(4, np.int32)
    reg = shmem.register(host)
    made = r"\(int32, shape \(\d,\)\) allocated at test_errors_name_arrays.py:\d+"
    where = r"test_errors_name_arrays.py:\d+ in"
    nowhere = "put_block: a remote array of 16 bytes at .* is not on the symmetric heap"
    for kernel, args, kind, said in (
        (put_block, (mine, b), SymmetryError, f"{nowhere}.*; it is device memory `mine` {made}$"),
        (put_block, (reg, b), SymmetryError, f"{nowhere}.*it is registered memory `reg` {made}$"),
        (local, (out, b), SymmetryError, f"{where} local: put: .*it is memory of the kernel"),
        (
            empty,
            (out, b),
            ArgumentError,
            f"p: the array .* is the symmetric array `out.8:.` {made}",
        ),
        (
            put_block,
            (b, out[1:]),
            ArgumentError,
            "put_block: the target has 4 elements, the source 7: pass a slice of it; "
            rf"dst is the symmetric array `b` {made}; src is .* `out\[1:\]` {made}",
        ),
        (strided, (out, b), ArgumentError, "iget: element 8 .*; it is the symmetric array `out` "),
    ):
        with pytest.raises(kind, match=said):
            kernel[1, 1](*args)
            shmem.synchronize()
