"""Queue pairs: each operation on one does what it does without; orders are of those given alone."""

import numpy as np
import pytest
from numba import cuda

import gpushmem as shmem
from gpushmem.errors import ArgumentError, ArgumentTypeError, CollectiveMismatch
from gpushmem.ops import OPS
from tests.pes import BACKEND

PES = [1, 2, 3]
SCOPES = {"": 1, "_warp": 32, "_block": 96}  # form: threads of a block
N, QPS, POISON = 200, 3, -7


def ring(run_pes, n_pes, body, shape=N, dtype="int64"):
    """What `body(dst, me, right, left, qps)` leaves in `dst`, in each PE."""

    def whole():
        shmem.init()
        me = shmem.my_pe()
        dst, qps = shmem.full(shape, POISON, dtype=dtype), shmem.qp_create(QPS)
        body(dst, me, (me + 1) % n_pes, (me - 1) % n_pes, qps)
        shmem.barrier_all()
        arrived = dst.numpy()
        shmem.finalize()
        return arrived

    return run_pes(whole, n_pes)


@pytest.mark.parametrize("n_pes", PES)
@pytest.mark.parametrize("form", SCOPES)
@pytest.mark.parametrize("nbi", ["", "_nbi"])
def test_puts_and_gets(run_pes, nbi, form, n_pes):
    """Row k goes by queue pair k, to the right neighbour; then rows of the left one are fetched."""
    put, get = (getattr(shmem, f"{verb}{nbi}{form}") for verb in ("qp_put", "qp_get"))
    quiet, together = getattr(shmem, f"qp_quiet{form}"), shmem.barrier_all

    @shmem.jit
    def send(dst, src, right, qps):
        for k in range(QPS):
            put(dst[k], src[k], right, qps[k])
            quiet(right, qps[k : k + 1])

    @shmem.jit
    def fetch(out, src, left, qps):
        for k in range(QPS):
            get(out[k], src[k], left, qps[k])
        quiet(left, qps)

    def body(dst, me, right, left, qps):
        rows = 1000 * me + np.arange(2 * QPS * N).reshape(2 * QPS, N)
        src = shmem.array(rows, dtype="int64")
        together()
        send[1, SCOPES[form]](dst[:QPS], src[:QPS], right, qps)
        together()
        fetch[1, SCOPES[form]](dst[QPS : 2 * QPS], src[QPS:], left, qps)

    for pe, arrived in enumerate(ring(run_pes, n_pes, body, (2 * QPS + 1, N))):
        rows = 1000 * ((pe - 1) % n_pes) + np.arange(2 * QPS * N).reshape(2 * QPS, N)
        np.testing.assert_array_equal(arrived[: 2 * QPS], rows)
        assert (arrived[2 * QPS] == POISON).all()


@pytest.mark.parametrize("n_pes", PES)
@pytest.mark.parametrize("form", SCOPES)
@pytest.mark.parametrize("nbi", ["", "_nbi"])
def test_a_signal_comes_after_the_data_of_its_call(run_pes, nbi, form, n_pes):
    send = getattr(shmem, f"qp_put_signal{nbi}{form}")

    @shmem.jit
    def kernel(dst, src, signal, seen, right, qps):
        for k in range(QPS):
            send(dst[k], src[k], signal[k:], k + 5, shmem.SIGNAL_SET, right, qps[k])
        if cuda.threadIdx.x == 0:
            for k in range(QPS):
                shmem.signal_wait_until(signal[k:], shmem.CMP_EQ, k + 5)
                for i in range(N):
                    seen[k, i] = dst[k, i]

    def body(dst, me, right, left, qps):
        src = shmem.array(1000 * me + np.arange(QPS * N).reshape(QPS, N), dtype="int64")
        received, signal = shmem.zeros((QPS, N), "int64"), shmem.zeros(QPS, "uint64")
        kernel[1, SCOPES[form]](received, src, signal, dst, right, qps)

    for pe, seen in enumerate(ring(run_pes, n_pes, body, (QPS, N))):
        left = (pe - 1) % n_pes
        np.testing.assert_array_equal(seen, 1000 * left + np.arange(QPS * N).reshape(QPS, N))


@pytest.mark.parametrize("n_pes", PES)
@pytest.mark.parametrize("form", SCOPES)
def test_a_fence_orders_what_is_on_its_queue_pairs(run_pes, form, n_pes):
    """Data on two queue pairs, the flag on a third: a fence of all three between them."""
    put, fence = getattr(shmem, f"qp_put_nbi{form}"), getattr(shmem, f"qp_fence{form}")

    @shmem.jit
    def kernel(dst, src, signal, right, qps):
        for k in range(2):
            put(dst[k], src[k], right, qps[k])
        fence(right, qps)
        if cuda.threadIdx.x == 0:
            shmem.qp_signal_op(signal, 1, shmem.SIGNAL_ADD, right, qps[2])
            shmem.signal_wait_until(signal, shmem.CMP_EQ, 1)
            for k in range(2):
                for i in range(N):
                    dst[k + 2, i] = dst[k, i]

    def body(dst, me, right, left, qps):
        src = shmem.array(1000 * me + np.arange(2 * N).reshape(2, N), dtype="int64")
        kernel[1, SCOPES[form]](dst, src, shmem.zeros(1, "uint64"), right, qps)

    for pe, seen in enumerate(ring(run_pes, n_pes, body, (4, N))):
        left = (pe - 1) % n_pes
        np.testing.assert_array_equal(seen[2:], 1000 * left + np.arange(2 * N).reshape(2, N))


@pytest.mark.parametrize("n_pes", PES)
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "complex128"])
def test_elements(run_pes, dtype, n_pes):
    """By created queue pairs, by the default one, and by any."""

    @shmem.jit
    def kernel(dst, src, right, left, qps):
        shmem.qp_p(dst, src[0], right, qps[1])
        shmem.qp_p(dst[1:], src[1], right, shmem.QP_DEFAULT)
        shmem.qp_p(dst[2:], src[2], right, shmem.QP_ANY)
        shmem.qp_quiet(right, qps)
        dst[3] = shmem.qp_g(src[3:], left, qps[2])
        dst[4] = shmem.qp_g(src[4:], left, shmem.QP_ANY)

    def body(dst, me, right, left, qps):
        src = shmem.array(10 * me + np.arange(5), dtype=dtype)
        shmem.barrier_all()
        kernel[1, 1](dst, src, right, left, qps)

    for pe, seen in enumerate(ring(run_pes, n_pes, body, 6, dtype)):
        np.testing.assert_array_equal(
            seen[:5], 10 * ((pe - 1) % n_pes) + np.arange(5).astype(dtype)
        )
        assert seen[5] == POISON


def test_many_queue_pairs_in_many_rounds(run_pes):
    """Blocks with queue pairs of their own count up a slot each; a wrong order would show."""
    blocks, rounds = 70, 20

    @shmem.jit
    def kernel(dst, src, signal, right, qps):
        b = cuda.blockIdx.x
        mine = qps[b : b + 1]
        for r in range(1, rounds + 1):
            src[b] = 100 * r + b
            shmem.qp_put(dst[b : b + 1], src[b : b + 1], right, qps[b])
            shmem.qp_fence(right, mine)
            shmem.qp_signal_op(signal[b:], r, shmem.SIGNAL_SET, right, qps[b])
            shmem.signal_wait_until(signal[b:], shmem.CMP_GE, r)
        shmem.qp_quiet(right, mine)

    def body(dst, me, right, left, qps):
        qps = shmem.qp_create(blocks)
        src, signal = shmem.zeros(blocks, "int64"), shmem.zeros(blocks, "uint64")
        kernel[blocks, 1](dst, src, signal, right, qps)

    for seen in ring(run_pes, 2, body, blocks):
        np.testing.assert_array_equal(seen, 100 * rounds + np.arange(blocks))


def test_numbers_are_for_kernels_and_each_is_another_one(run_pes):
    def body():
        shmem.init()
        first, more = shmem.qp_create(2), shmem.qp_create(3)
        numbers = [*first.numpy().tolist(), *more.numpy().tolist()]
        for wrong, said in ((0, "n must be 1 to 65536, not 0"), (1.5, "n must be an integer")):
            with pytest.raises((ArgumentError, ArgumentTypeError), match=said):
                shmem.qp_create(wrong)
        with pytest.raises(CollectiveMismatch, match=r"qp_create\(1\).*qp_create\(2\)"):
            shmem.qp_create(1 + shmem.my_pe() % 2)
        shmem.finalize()
        return numbers, first.dtype, first.shape

    for numbers, dtype, shape in run_pes(body, 2):
        assert (dtype, shape) == (np.int32, (2,))
        # NVSHMEM has one for all where no PE is behind a network.
        several = 2 if BACKEND == "nvshmem" else 7
        assert len({*numbers, shmem.QP_DEFAULT, shmem.QP_ANY}) >= several


@pytest.mark.skipif(BACKEND == "nvshmem", reason="nothing is checked on GPUs")
@pytest.mark.parametrize("call", ["put", "quiet", "fence", "pe"])
def test_what_is_no_queue_pair_is_an_error(run_pes, call):
    @shmem.jit
    def put(dst, src, qps):
        shmem.qp_put(dst, src, 0, 2000)

    @shmem.jit
    def quiet(dst, src, qps):
        shmem.qp_quiet(0, qps)

    @shmem.jit
    def fence(dst, src, qps):
        shmem.qp_fence_warp(0, qps)

    @shmem.jit
    def pe(dst, src, qps):
        shmem.qp_quiet(7, qps)

    kernel = {"put": put, "quiet": quiet, "fence": fence, "pe": pe}[call]

    def body():
        shmem.init()
        made = shmem.qp_create(2)
        wrong = made if call == "pe" else shmem.to_device(np.array([2000], np.int32))
        array = shmem.zeros(4, "int32")
        kernel[1, 32](array, array, wrong)
        with pytest.raises(ArgumentError) as error:
            shmem.synchronize()
        shmem.finalize()
        return str(error.value)

    (said,) = run_pes(body, 1)
    if call == "pe":
        assert "qp_quiet: there is no PE 7: PEs are 0 to 0" in said
    else:
        assert "this PE has no queue pair 2000: it has made 2 to 3 (gpushmem.qp_create)" in said


def test_they_are_declared_as_the_operations_without():
    for base in ("p", "g", "put", "get", "put_signal", "signal_op"):
        forms = {op.form: op for op in OPS.values() if op.base == base}
        on_one = {op.form: op for op in OPS.values() if op.base == f"qp_{base}"}
        assert forms.keys() == on_one.keys()
        for form, op in on_one.items():
            plain = forms[form]
            assert (op.params, op.facts) == ((*plain.params, "qp"), plain.facts)
            assert (op.kernel, op.host, op.plain) == (True, False, base)
