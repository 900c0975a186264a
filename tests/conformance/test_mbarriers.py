"""mbarriers and copies in bulk: pipelines with a thread that copies; what is refused; hangs."""

import numpy as np
import pytest
from numba import cuda

import gpushmem as shmem
from gpushmem.errors import ArgumentError, Deadlock, KernelError
from tests import pes

MOST, STAGES, BARS = 72, 2, 4  # elements of a tile, tiles and mbarriers in shared memory


@shmem.jit
def by_one_who_copies(out, x, n, tiles, pe):
    """Thread 0 copies tiles, the others sum them, backwards, and tell it when they have."""
    tile = cuda.shared.array((STAGES, MOST), "int32", alignment=16)
    bars = cuda.shared.array(BARS, "uint64")  # a tile is there; a tile has been read
    t, readers, block = cuda.threadIdx.x, cuda.blockDim.x - 1, cuda.blockIdx.x
    there, first = shmem.peer_array(x, pe), block * tiles * n
    if t == 0:
        for s in range(STAGES):
            shmem.mbarrier_init(bars, s, 1)
            shmem.mbarrier_init(bars, STAGES + s, readers)
    cuda.syncthreads()
    if t == 0:
        for k in range(tiles):
            s, parity, m = k % STAGES, k // STAGES & 1, n - 4 * (k == tiles - 1)
            shmem.mbarrier_wait(bars, STAGES + s, 1 - parity)
            shmem.mbarrier_arrive_and_expect_tx(bars, s, 4 * m)
            shmem.copy_bulk(tile, s * MOST, there, first + k * n, m, bars, s)
    else:
        for k in range(tiles):
            s, parity, m = k % STAGES, k // STAGES & 1, n - 4 * (k == tiles - 1)
            shmem.mbarrier_wait(bars, s, parity)
            for j in range(t - 1, m, readers):
                out[block * n + j] += tile[s, m - 1 - j] * (k + 1)
            shmem.mbarrier_arrive(bars, STAGES + s)


@shmem.jit
def by_all(out, x, n, tiles, pe):
    """All threads wait for each tile, of which thread 0 begins the next; two copies make one."""
    tile = cuda.shared.array((STAGES, MOST), "int32", alignment=16)
    bars = cuda.shared.array(STAGES, "uint64")
    t, threads, block = cuda.threadIdx.x, cuda.blockDim.x, cuda.blockIdx.x
    there, first = shmem.peer_array(x, pe), block * tiles * n
    if t < STAGES:
        shmem.mbarrier_init(bars, t, 1)
    cuda.syncthreads()
    for k in range(tiles + 1):
        s, m = k % STAGES, n - 4 * (k == tiles - 1)
        if t == 0 and k < tiles:
            at, half = first + k * n, m // 8 * 4
            shmem.mbarrier_arrive_and_expect_tx(bars, s, 4 * m)
            if half > 0:
                shmem.copy_bulk(tile[s], 0, there, at, half, bars, s)
            shmem.copy_bulk(tile[s], half, there, at + half, m - half, bars, s)
        if k > 0:
            s, m = (k - 1) % STAGES, n - 4 * (k == tiles)
            shmem.mbarrier_wait(bars, s, (k - 1) // STAGES & 1)
            for j in range(t, m, threads):
                out[block * n + j] += tile[s, m - 1 - j] * k
            cuda.syncthreads()


def wanted(x, blocks, tiles, n):
    """What the kernels sum."""
    parts, out = x.reshape(blocks, tiles, n), np.zeros((blocks, n), x.dtype)
    for k in range(tiles):
        m = n - 4 * (k == tiles - 1)
        out[:, :m] += parts[:, k, :m][:, ::-1] * (k + 1)
    return out.ravel()


SHAPES = [(1, 2, 8, 1), (3, 33, 72, 7), (2, 64, 20, 5)]  # blocks, threads, n, tiles


@pytest.mark.parametrize("kernel", [by_one_who_copies, by_all], ids=lambda kernel: kernel.__name__)
def test_a_pipeline_of_two_tiles(alone, kernel):
    for blocks, threads, n, tiles in SHAPES:
        values = np.arange(blocks * tiles * n, dtype="int32") % 1009
        x, out = shmem.array(values), shmem.to_device(np.zeros(blocks * n, "int32"))
        kernel[blocks, threads](out, x, n, tiles, 0)
        np.testing.assert_array_equal(out.numpy(), wanted(values, blocks, tiles, n))


@pes.on_several_nodes("memory of the others is not mapped")
@pytest.mark.parametrize("n_pes", [3])
def test_memory_of_another_pe_is_copied(run_pes, n_pes):
    line = np.zeros(1, "int32")
    pes.compile_first(by_one_who_copies, line, line, 1, 1, 1)

    def body():
        shmem.init()
        me, (blocks, threads, n, tiles) = shmem.my_pe(), SHAPES[1]
        values = 1000 * me + np.arange(blocks * tiles * n, dtype="int32") % 1000
        x, out = shmem.array(values), shmem.zeros(blocks * n, "int32")
        shmem.barrier_all()
        by_one_who_copies[blocks, threads](out, x, n, tiles, (me + 1) % n_pes)
        there = 1000 * ((me + 1) % n_pes) + np.arange(blocks * tiles * n, dtype="int32") % 1000
        result = out.numpy(), wanted(there, blocks, tiles, n)
        shmem.barrier_all()
        shmem.finalize()
        return result

    for found, right in run_pes(body, n_pes):
        np.testing.assert_array_equal(found, right)


BEGIN = """
def kernel(x, words):
    tile = cuda.shared.array(16, "float32", alignment=16)
    bars = cuda.shared.array(2, "uint64")
    if cuda.threadIdx.x == 0:
        for k in range(2):
            shmem.mbarrier_init(bars, k, 1)
        {}
    cuda.syncthreads()
"""


def kernel_of(line):
    """What thread 0 does, with two mbarriers of one arrival each, a tile and two arrays."""
    scope = {"shmem": shmem, "cuda": cuda}
    exec(BEGIN.format(line), scope)
    return shmem.jit(scope["kernel"])


COPY = "shmem.copy_bulk({}, bars, 0)"
ARRIVE = "shmem.mbarrier_arrive(bars, {})"
WAIT = "shmem.mbarrier_wait(bars, 0, 0)"
EXPECT = "shmem.mbarrier_arrive_and_expect_tx(bars, 0, {})"
REFUSED = {
    COPY.format("tile, 0, x, 0, 6"): "copy_bulk: 24 bytes cannot be copied in bulk",
    COPY.format("tile, 0, x, 0, 0"): "copy_bulk: 0 bytes cannot be copied in bulk",
    COPY.format("tile, 2, x, 0, 4"): "copy_bulk: .* is not aligned to its 16 bytes",
    COPY.format("tile, 0, x, 3, 4"): "copy_bulk: .* is not aligned to its 16 bytes",
    COPY.format("x, 0, x, 4, 4"): "copy_bulk: dst, 16 bytes at .* is not in the block's shared",
    "shmem.copy_bulk(tile, 0, x, 0, 4, words, 0)": "copy_bulk: the mbarrier at .* is not in the",
    "shmem.mbarrier_init(words, 0, 1)": "mbarrier_init: the mbarrier at .* is not in the block's",
    "shmem.mbarrier_init(bars, 1, 0)": "mbarrier_init: an mbarrier has 1 to 1048575 arrivals",
    "shmem.mbarrier_wait(bars, 1, 2)": "mbarrier_wait: the parity of a phase is 0 or 1, not 2",
    EXPECT.format(-16): "mbarrier_arrive_and_expect_tx: -16 bytes are copied or expected",
    f"{EXPECT.format(16)}; {ARRIVE.format(0)}": (
        "mbarrier_arrive: all 1 arrivals of the phase have come, which still waits for 16 bytes"
    ),
    f"{COPY.format('tile, 0, x, 0, 8')}; {EXPECT.format(16)}": (
        "mbarrier_arrive_and_expect_tx: 16 bytes are copied or expected .* then waits for -16"
    ),
}


@pytest.mark.cpu_backend
@pytest.mark.parametrize("line", REFUSED)
def test_what_is_undefined_on_gpus_is_an_error(alone, line):
    with pytest.raises((ArgumentError, KernelError), match=REFUSED[line]):
        kernel_of(line)[1, 1](shmem.zeros(16, "float32"), shmem.zeros(2, "uint64"))
        shmem.synchronize()


@pytest.mark.cpu_backend
def test_bytes_may_be_copied_before_they_are_expected(alone):
    line = f"{COPY.format('tile, 0, x, 0, 8')}; {EXPECT.format(32)}; {WAIT}; words[0] = tile[7]"
    x, words = shmem.array(np.arange(16, dtype="float32")), shmem.zeros(2, "uint64")
    kernel_of(line)[1, 1](x, words)
    assert words.numpy()[0] == 7


HANGS = {
    WAIT: (0, 0),
    f"{EXPECT.format(48)}; {COPY.format('tile, 0, x, 0, 4')}; {WAIT}": (1, 32),
}


@pytest.mark.cpu_backend
@pytest.mark.parametrize("threads", [1, 40])
@pytest.mark.parametrize("line", HANGS)
def test_what_a_phase_lacks_that_never_completes_is_told(run_pes, line, threads):
    def body():
        shmem.init()
        kernel_of(line)[1, threads](shmem.zeros(16, "float32"), shmem.zeros(2, "uint64"))
        shmem.synchronize()

    with pytest.raises(Deadlock) as error:
        run_pes(body, 1)
    arrivals, left = HANGS[line]
    said = f"mbarrier_wait: {arrivals} of 1 arrivals of the phase have come, {left} bytes are still"
    assert said in str(error.value)
