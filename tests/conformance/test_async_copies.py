"""`copy_async`: a tiled loop with two stages, in blocks of several sizes; what is refused."""

import numpy as np
import pytest
from numba import cuda

import gpushmem as shmem
from gpushmem.errors import ArgumentError
from tests import pes

MOST, TILES = 96, 7  # threads of a block, tiles of a block


def kernel_of(each, dtype):
    """Sums of tiles, backwards in each: `each` elements are a thread's piece."""
    size = MOST * each

    def kernel(out, x):
        tiles = cuda.shared.array((2, size), dtype, alignment=16)
        t, threads, block = cuda.threadIdx.x, cuda.blockDim.x, cuda.blockIdx.x
        mine, n = each * t, each * threads
        first = block * TILES * n + mine
        shmem.copy_async(tiles, mine, x, first, each)
        shmem.copy_async_commit()
        for k in range(TILES):
            if k + 1 < TILES:
                at = first + (k + 1) * n
                shmem.copy_async(tiles, (k + 1) % 2 * size + mine, x, at, each)
            shmem.copy_async_commit()
            shmem.copy_async_wait(1)
            cuda.syncthreads()
            for j in range(each):
                out[block * n + mine + j] += tiles[k % 2, n - 1 - mine - j] * (k + 1)
            cuda.syncthreads()

    return shmem.jit(kernel)


CASES = [("float32", 4), ("int32", 1), ("int16", 4), ("int64", 2), ("float64", 1), ("uint8", 16)]


@pytest.mark.parametrize(
    ("dtype", "each"),
    [pytest.param(*c, marks=[pytest.mark.sweep] * (k > 1), id=c[0]) for k, c in enumerate(CASES)],
)
def test_a_loop_with_two_stages(alone, dtype, each):
    kernel = kernel_of(each, dtype)
    for blocks, threads in ((1, 1), (3, 32), (2, MOST)):
        n = each * threads
        values = (np.arange(blocks * TILES * n) % 9).astype(dtype)
        for make in (shmem.to_device, shmem.array):
            x, out = make(values), make(np.zeros(blocks * n, dtype))
            kernel[blocks, threads](out, x)
            tiles = values.reshape(blocks, TILES, n)[:, :, ::-1]
            wanted = (tiles * np.arange(1, TILES + 1).reshape(1, -1, 1)).sum(1).ravel()
            np.testing.assert_array_equal(out.numpy(), wanted.astype(dtype))


@shmem.jit
def from_the_right(out, x):
    tile, t = cuda.shared.array(64, "int64", alignment=16), cuda.threadIdx.x
    there = shmem.peer_array(x, (shmem.my_pe() + 1) % shmem.n_pes())
    shmem.copy_async(tile, 2 * t, there, 2 * t, 2)
    shmem.copy_async_commit()
    shmem.copy_async_wait(0)
    cuda.syncthreads()
    out[2 * t], out[2 * t + 1] = tile[63 - 2 * t], tile[62 - 2 * t]


@pes.on_several_nodes("memory of the others is not mapped")
@pytest.mark.parametrize("n_pes", [3])
def test_memory_of_another_pe_is_copied(run_pes, n_pes):
    line = np.zeros(1, "int64")
    pes.compile_first(from_the_right, line, line)

    def body():
        shmem.init()
        x, out = shmem.zeros(64, "int64"), shmem.device_array(64, "int64")
        x[:] = 1000 * shmem.my_pe() + np.arange(64)
        shmem.barrier_all()
        from_the_right[1, 32](out, x)
        result = out.numpy()
        shmem.finalize()
        return result

    for me, result in enumerate(run_pes(body, n_pes)):
        np.testing.assert_array_equal(result, 1000 * ((me + 1) % n_pes) + np.arange(64)[::-1])


@pytest.mark.cpu_backend
@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("tile, 0, x, 1, 2", "is not aligned to its 8 bytes"),
        ("tile, 2, x, 0, 4", "is not aligned to its 16 bytes"),
        ("tile, 1024, x, 0, 4", "dst, 16 bytes at .* is not in the block's shared memory"),
        ("x, 4, x, 0, 4", "dst, 16 bytes at .* is not in the block's shared memory"),
    ],
)
def test_other_pieces_are_refused(alone, call, text):
    scope = {"shmem": shmem, "cuda": cuda}
    exec(
        "def kernel(x):\n    tile = cuda.shared.array(8, 'float32', alignment=16)\n"
        f"    shmem.copy_async({call})",
        scope,
    )
    with pytest.raises(ArgumentError, match=f"copy_async: .*{text}"):
        shmem.jit(scope["kernel"])[1, 1](shmem.zeros(8, "float32"))
        shmem.synchronize()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("_wait(n)", "n must be an integer from 0 to 8, written in the call, not int64"),
        ("_wait(9)", "n must be an integer from 0 to 8, written in the call, not 9"),
        ("_wait(-1)", "n must be an integer from 0 to 8"),
        ("(x, 0, x, 0, n)", "n must be an integer written in the call, not int64"),
        ("(x, 0, x, 0, 3)", "3 elements of float32 are 12 bytes; a vector has 4, 8 or 16"),
    ],
)
def test_other_numbers_do_not_compile(alone, call, text):
    scope = {"shmem": shmem}
    exec(f"def kernel(x, n):\n    shmem.copy_async{call}", scope)
    with pytest.raises(Exception, match=f"copy_async.*: .*{text}"):
        shmem.jit(scope["kernel"])[1, 1](shmem.zeros(8, "float32"), 4)
