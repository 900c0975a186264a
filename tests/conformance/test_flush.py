"""`flush`: the sources of earlier non-blocking puts may be changed again; nothing else is said."""

import numpy as np
import pytest
from numba import cuda

import gpushmem as shmem
from gpushmem.ops import OPS
from gpushmem.ops.row import FLUSH, QUIET, Completion
from tests.pes import sendable

PES = [1, 2, 3]
SCOPES = {"": 1, "_warp": 32, "_block": 96}  # form: threads of a block
N, ROWS, POISON = 200, 5, -7


def sent(pe):
    """What PE `pe` sends, a row at a time."""
    return 10_000 * np.arange(ROWS)[:, None] + 1000 * pe + np.arange(N)


def in_pes(run_pes, n_pes, body):
    """What `body(me, right)` leaves in its first array, in each PE."""

    def whole():
        shmem.init()
        dst = shmem.full((ROWS + 1, N), POISON, dtype="int64")
        me = shmem.my_pe()
        body(dst, me, (me + 1) % n_pes)
        shmem.barrier_all()
        arrived = dst.numpy()
        shmem.finalize()
        return arrived

    for pe, arrived in enumerate(run_pes(whole, n_pes)):
        np.testing.assert_array_equal(arrived[:ROWS], sent((pe - 1) % n_pes))
        assert (arrived[ROWS] == POISON).all()


@pytest.mark.parametrize("n_pes", PES)
@pytest.mark.parametrize("form", SCOPES)
def test_a_source_changed_after_it_does_not_change_what_arrives(run_pes, form, n_pes):
    """One source for all rows: each is written, put, and then overwritten with the next."""
    put, flush = getattr(shmem, f"put_nbi{form}"), getattr(shmem, f"flush{form}")

    @shmem.jit
    def send(dst, src, me, right):
        t, size = cuda.threadIdx.x, cuda.blockDim.x
        for row in range(ROWS):
            for i in range(t, src.size, size):
                src[i] = 10_000 * row + 1000 * me + i
            cuda.syncthreads()
            put(dst[row], src, right)
            flush()
            cuda.syncthreads()
        for i in range(t, src.size, size):
            src[i] = POISON
        shmem.quiet()

    def body(dst, me, right):
        send[1, SCOPES[form]](dst, shmem.empty(N, "int64"), me, right)

    in_pes(run_pes, n_pes, body)


@pytest.mark.parametrize("n_pes", PES)
@pytest.mark.parametrize("on_stream", [False, True])
def test_on_the_host_and_on_a_stream(run_pes, on_stream, n_pes):
    def body(dst, me, right):
        src = sendable(shmem.device_array(N, "int64"))
        stream = shmem.stream() if on_stream else None
        for row, values in enumerate(sent(me)):
            src.copy_from(values)
            shmem.put(dst[row], src, right, stream=stream)
            assert shmem.flush(stream=stream) is None
            if on_stream:
                stream.synchronize()
        src.copy_from(POISON)
        shmem.quiet()

    in_pes(run_pes, n_pes, body)


def test_it_completes_sources_and_orders_nothing():
    assert {OPS[f"flush{form}"].facts.orders for form in SCOPES} == {"flush"}
    assert OPS["put_nbi_block"].facts.completion == Completion(FLUSH, QUIET)
    assert OPS["put_signal_nbi"].facts.completion == Completion(FLUSH, QUIET)
    assert OPS["get_nbi_warp"].facts.completion == Completion(QUIET, QUIET)
    assert not OPS["flush"].waits  # for other PEs
