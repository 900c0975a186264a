"""Operations called inside kernels, between real PEs. Data names its writer: 1000 * pe + i."""

import inspect
from itertools import product

import numpy as np
import pytest
from numba import cuda

import gpushmem as shmem
from gpushmem.ops import OPS
from gpushmem.ops.roles import Pe, Remote
from gpushmem.ops.row import declare, reads, updates, writes
from tests.pes import sendable, to_send

PES = [1, 2, 3, 8]
POISON = -7
SCOPES = {"thread": "", "warp": "_warp", "block": "_block"}
# Every scope on three PEs; of the nbi forms, whose code is that of the others, a sample.
OFTEN = [("thread", False, 1), ("block", False, 8), ("block", True, 3)]
OFTEN += [(scope, False, 3) for scope in SCOPES]
FORMS = [
    pytest.param(*form, marks=[pytest.mark.sweep] * (form not in OFTEN))
    for form in product(SCOPES, (False, True), PES)
]


def marked(n, pe, dtype="int64"):
    return (1000 * pe + np.arange(n)).astype(dtype)


def started(function):
    """Run a test body between init and finalize."""

    def body(*args):
        shmem.init()
        result = function(*args)
        shmem.finalize()
        return result

    return body


def operation(base, nbi, scope):
    return getattr(shmem, base + ("_nbi" if nbi else "") + SCOPES[scope])


def threads_of(scope):
    """A block size, and which threads of it call an operation of this scope."""
    return {"thread": 1, "warp": 32, "block": 96}[scope]


@pytest.mark.parametrize(("scope", "nbi", "n_pes"), FORMS)
def test_put_goes_to_the_right_pe_and_place(run_pes, n_pes, nbi, scope):
    put, n = operation("put", nbi, scope), 100

    @shmem.jit
    def send(dst, src):
        right = (shmem.my_pe() + 1) % shmem.n_pes()
        put(dst[10:], src, right)
        shmem.quiet()

    @started
    def body():
        me = shmem.my_pe()
        dst = shmem.full(n + 20, POISON, dtype="int64")
        src = to_send(marked(n, me))
        send[1, threads_of(scope)](dst, src)
        shmem.barrier_all()
        return dst.numpy()

    for pe, got in enumerate(run_pes(body, n_pes)):
        left = (pe - 1) % n_pes
        np.testing.assert_array_equal(got[10 : 10 + n], marked(n, left))
        assert (got[:10] == POISON).all()
        assert (got[10 + n :] == POISON).all()


@pytest.mark.parametrize(("scope", "nbi", "n_pes"), FORMS)
def test_get_fetches_from_the_right_pe_and_place(run_pes, n_pes, nbi, scope):
    get, n = operation("get", nbi, scope), 100

    @shmem.jit
    def fetch(dst, src):
        right = (shmem.my_pe() + 1) % shmem.n_pes()
        get(dst, src[5:], right)
        shmem.quiet()

    @started
    def body():
        src = shmem.array(marked(n + 10, shmem.my_pe()))
        dst = sendable(shmem.device_array(n, "int64"))
        dst.copy_from(POISON)
        fetch[1, threads_of(scope)](dst, src)
        got = dst.numpy()
        shmem.barrier_all()
        return got

    for pe, got in enumerate(run_pes(body, n_pes)):
        np.testing.assert_array_equal(got, marked(n + 10, (pe + 1) % n_pes)[5 : 5 + n])


@pytest.mark.parametrize(
    ("scope", "nbi", "n_pes"),
    [  # three PEs alone: who sees signals at all is tested in conformance/test_signals.py
        pytest.param(*form, marks=[pytest.mark.sweep] * (form[1:] != (False, 3)))
        for form in product(SCOPES, (False, True), PES)
    ],
)
def test_who_sees_the_signal_sees_the_data(run_pes, n_pes, nbi, scope):
    put_signal, n, rounds = operation("put_signal", nbi, scope), 257, 200

    @shmem.jit
    def ring(dst, src, signal, wrong):
        me, n_pes = shmem.my_pe(), shmem.n_pes()
        right, left = (me + 1) % n_pes, (me - 1) % n_pes
        t, size = cuda.threadIdx.x, cuda.blockDim.x
        for k in range(1, rounds + 1):
            for i in range(t, src.size, size):
                src[i] = 1000000 * k + 1000 * me + i
            cuda.syncthreads()
            row = dst[k % 2]
            put_signal(row, src, signal, k, shmem.SIGNAL_SET, right)
            if t == 0:
                shmem.signal_wait_until(signal, shmem.CMP_GE, k)
            cuda.syncthreads()
            for i in range(t, src.size, size):
                if row[i] != 1000000 * k + 1000 * left + i:
                    cuda.atomic.add(wrong, 0, 1)
            cuda.syncthreads()
            if t == 0:
                # The left neighbour may overwrite this row two rounds from now.
                shmem.signal_op(signal[1:], k, shmem.SIGNAL_SET, left)
                shmem.signal_wait_until(signal[1:], shmem.CMP_GE, k)
            cuda.syncthreads()

    @started
    def body():
        dst = shmem.full((2, n), POISON, dtype="int64")
        src, signal = shmem.empty(n, "int64"), shmem.zeros(2, "uint64")
        wrong = shmem.to_device(np.zeros(1, np.int64))
        ring[1, threads_of(scope)](dst, src, signal, wrong)
        shmem.barrier_all()
        return int(wrong.numpy()[0]), signal.numpy().tolist()

    assert run_pes(body, n_pes) == [(0, [rounds, rounds])] * n_pes


@pytest.mark.parametrize("n_pes", PES)
def test_p_and_g_reach_every_pe(run_pes, n_pes):
    @shmem.jit
    def scatter(dst, seen, src):
        me = shmem.my_pe()
        for pe in range(shmem.n_pes()):
            shmem.p(dst[me:], 1000 * me + pe, pe)
            seen[pe] = shmem.g(src[pe:], pe)

    @started
    def body():
        me = shmem.my_pe()
        dst = shmem.full(n_pes + 1, POISON, dtype="int32")
        src = shmem.array(marked(n_pes, me, "float64") + 0.5)
        seen = shmem.device_array(n_pes, "float64")
        scatter[1, 1](dst, seen, src)
        shmem.barrier_all()
        return dst.numpy().tolist(), seen.numpy().tolist()

    for pe, (got, seen) in enumerate(run_pes(body, n_pes)):
        assert got == [1000 * k + pe for k in range(n_pes)] + [POISON]
        assert seen == [1000 * k + k + 0.5 for k in range(n_pes)]


@pytest.mark.parametrize("n_pes", [1, 3, 8])
def test_signal_add_from_all_pes_counts_exactly(run_pes, n_pes):
    each = 500

    @shmem.jit
    def count(signal, final):
        for pe in range(shmem.n_pes()):
            for _ in range(each):
                shmem.signal_op(signal, 3, shmem.SIGNAL_ADD, pe)
        final[0] = shmem.signal_wait_until(signal, shmem.CMP_EQ, 3 * each * shmem.n_pes())
        final[1] = shmem.signal_fetch(signal)

    @started
    def body():
        signal, final = shmem.zeros(1, "uint64"), shmem.device_array(2, "uint64")
        count[1, 1](signal, final)
        return final.numpy().tolist()

    assert run_pes(body, n_pes) == [[3 * each * n_pes] * 2] * n_pes


COMPARE = {
    "CMP_EQ": (5, [5], [4, 6]), "CMP_NE": (5, [4, 6], [5]), "CMP_GT": (5, [6], [5, 4]),
    "CMP_GE": (5, [5, 6], [4]), "CMP_LT": (5, [4], [5, 6]), "CMP_LE": (5, [4, 5], [6]),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPARE)
def test_signal_wait_until_waits_for_exactly_its_condition(run_pes, name):
    wanted, good, bad = COMPARE[name]

    @shmem.jit
    def body_kernel(signal, cmp, wanted, value, began, seen):
        if shmem.my_pe() == 0:
            seen[0] = 1 + shmem.signal_wait_until(signal, cmp, wanted)
        else:
            for _ in range(2000):  # give a wait that is wrong time to return
                began[0] += 1
            shmem.signal_op(signal, value[0], shmem.SIGNAL_SET, 0)

    @started
    def body(first, then):
        signal = shmem.full(1, first, dtype="uint64")
        seen = shmem.to_device(np.zeros(1, np.int64))
        value = shmem.to_device(np.array([then], np.uint64))
        began, cmp = shmem.to_device(np.zeros(1)), getattr(shmem, name)
        body_kernel[1, 1](signal, cmp, wanted, value, began, seen)
        shmem.barrier_all()
        return int(seen.numpy()[0])

    for value in good:
        for before in bad:
            assert run_pes(body, 2, before, value)[0] == value + 1


@pytest.mark.parametrize(
    ("scope", "n_pes"),
    [
        pytest.param(scope, n, marks=[pytest.mark.sweep] * ((scope, False, n) not in OFTEN))
        for scope, n in product(SCOPES, PES)
    ],
)
def test_barrier_all_in_kernels_many_rounds(run_pes, n_pes, scope):
    barrier, rounds = getattr(shmem, "barrier_all" + SCOPES[scope]), 300

    @shmem.jit
    def rounds_of(table, wrong):
        me, n = shmem.my_pe(), shmem.n_pes()
        for k in range(rounds):
            if cuda.threadIdx.x == 0:
                for pe in range(n):
                    shmem.p(table[me:], k, pe)
            barrier()
            for pe in range(n):
                if table[pe] != k:
                    wrong[0] += 1
            barrier()

    @started
    def body():
        table, wrong = shmem.full(n_pes, POISON), shmem.to_device(np.zeros(1, np.int64))
        rounds_of[1, threads_of(scope)](table, wrong)
        shmem.barrier_all()
        return int(wrong.numpy()[0])

    assert run_pes(body, n_pes) == [0] * n_pes


def test_message_passing_with_fence_over_many_rounds(run_pes):
    """Data, fence, flag: who sees the flag must see the data (the classic litmus test)."""
    rounds = 20000

    @shmem.jit
    def talk(data, flag, wrong):
        me = shmem.my_pe()
        other = 1 - me
        for k in range(1, rounds + 1):
            if k % 2 == me:
                shmem.p(data, k, other)
                shmem.fence()
                shmem.signal_op(flag, k, shmem.SIGNAL_SET, other)
            else:
                shmem.signal_wait_until(flag, shmem.CMP_EQ, k)
                if data[0] != k:
                    wrong[0] += 1

    @started
    def body():
        data, flag = shmem.zeros(1, "int64"), shmem.zeros(1, "uint64")
        wrong = shmem.to_device(np.zeros(1, np.int64))
        talk[1, 1](data, flag, wrong)
        shmem.barrier_all()
        return int(wrong.numpy()[0])

    assert run_pes(body, 2) == [0, 0]


@pytest.mark.parametrize("n_pes", [1, 3])
def test_blocks_that_wait_for_each_other_across_pes(run_pes, n_pes):
    """Block b waits for block b + 1 of the left neighbour: all blocks must be resident."""
    blocks = 40

    @shmem.jit
    def chain(signal, order):
        b, last = cuda.blockIdx.x, cuda.gridDim.x - 1
        if cuda.threadIdx.x == 0:
            if b < last:
                shmem.signal_wait_until(signal[b:], shmem.CMP_EQ, 1)
            order[b] = cuda.atomic.add(order, blocks, 1)
            if b > 0:
                shmem.signal_op(
                    signal[b - 1 :], 1, shmem.SIGNAL_SET, (shmem.my_pe() + 1) % shmem.n_pes()
                )

    @started
    def body():
        signal, order = (
            shmem.zeros(blocks, "uint64"),
            shmem.to_device(np.zeros(blocks + 1, np.int64)),
        )
        chain[blocks, 32](signal, order)
        shmem.barrier_all()
        return order.numpy().tolist()

    for order in run_pes(body, n_pes):
        assert sorted(order) == list(range(blocks + 1))
        if n_pes == 1:
            assert order[:blocks] == list(range(blocks - 1, -1, -1))


def test_polling_with_signal_fetch_lets_other_threads_and_blocks_run(run_pes):
    @shmem.jit
    def poll(signal, seen):
        if cuda.blockIdx.x == 0 and cuda.threadIdx.x == 0:
            while shmem.signal_fetch(signal) != 2:
                seen[0] += 1
        elif cuda.threadIdx.x == 31:
            shmem.signal_op(signal, 1, shmem.SIGNAL_ADD, shmem.my_pe())

    @started
    def body():
        signal, seen = shmem.zeros(1, "uint64"), shmem.to_device(np.zeros(1, np.int64))
        poll[2, 32](signal, seen)
        return signal.numpy().tolist(), int(seen.numpy()[0]) > 0

    assert run_pes(body, 2, timeout=20) == [([2], True)] * 2


def test_a_block_that_keeps_meeting_does_not_keep_others_out(run_pes):
    @shmem.jit
    def look(flag, out):
        if cuda.blockIdx.x == 0:
            while flag[0] == 0:
                cuda.syncthreads()
            out[cuda.threadIdx.x] = 1
        elif cuda.threadIdx.x == 0:
            cuda.atomic.add(flag, 0, 1)

    @started
    def body():
        flag, out = shmem.zeros(1, "int32"), shmem.zeros(32)
        look[2, 32](flag, out)
        return out.numpy().sum()

    assert run_pes(body, 1, timeout=20) == [32]


@pytest.mark.sweep  # signals; collectives: conformance/test_collectives.py
def test_more_pes_than_cores(run_pes):
    @shmem.jit
    def ring(dst, src, signal):
        right = (shmem.my_pe() + 1) % shmem.n_pes()
        for k in range(1, 6):
            shmem.put_signal_block(dst, src, signal, k, shmem.SIGNAL_SET, right)
            if cuda.threadIdx.x == 0:
                shmem.signal_wait_until(signal, shmem.CMP_GE, k)
            cuda.syncthreads()

    @started
    def body():
        src = shmem.full(64, shmem.my_pe(), dtype="int64")
        dst, signal = shmem.full(64, POISON, dtype="int64"), shmem.zeros(1, "uint64")
        ring[1, 64](dst, src, signal)
        shmem.barrier_all()
        return int(dst.numpy().max())

    assert run_pes(body, 24, timeout=90) == [(pe - 1) % 24 for pe in range(24)]


@pytest.mark.cpu_backend
def test_every_row_of_the_table_is_lowered():
    from gpushmem.backends.cpu import lowering
    from gpushmem.backends.cpu.operations import trace_ranges
    from gpushmem.simt.compiler.target import names

    lowering.install()
    in_kernels = {name: op for name, op in OPS.items() if op.kernel}
    assert [name for name, op in in_kernels.items() if op.function not in names] == []
    bodies = {*lowering.BODIES, *lowering.REDUCING, *trace_ranges.MEANINGS}
    rows = {op.plain for op in in_kernels.values()}
    assert sorted(rows - bodies) == [], "rows without a lowering: add them to BODIES"
    assert sorted(bodies - rows) == [], "lowerings without a row"
    for op in in_kernels.values():
        meaning = names[op.function].meaning
        function = getattr(meaning, "py_func", None) or meaning._defn  # an intrinsic has a context
        parameters = tuple(inspect.signature(function).parameters)
        assert parameters[-len(op.params) :] == op.params or not op.params, op.name


@pytest.mark.cpu_backend
def test_a_row_without_a_lowering_is_named(monkeypatch):
    from gpushmem.backends.cpu import lowering
    from gpushmem.backends.null import operations

    monkeypatch.delitem(lowering.BODIES, "flush")
    with pytest.raises(LookupError, match=r"^flush has no lowering: add it to BODIES in backe"):
        lowering.lowering_of(OPS["flush_block"])
    monkeypatch.delitem(operations.OPERATIONS, "flush")
    with (
        shmem.session(backend="null"),
        pytest.raises(LookupError, match=r"^flush has no host side: add it to OPERATIONS in backe"),
    ):
        shmem.flush()


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"effects": [updates("signal")]}, r"updates\('signal'\)"),
        ({"effects": [writes("dst"), reads("source")]}, r"reads\('source'\)"),
        ({"effects": [writes("dst", "src")]}, r"writes\('dst', 'src'\)"),
        ({"effects": [reads("dst", "stride")]}, r"reads\('dst', 'stride'\)"),
        ({"waits_for": "signal"}, "waits_for='signal'"),
    ],
)
def test_a_declaration_names_parameters_only(facts, said):
    def signal_add(dst: Remote, pe: Pe) -> None:
        """Add."""

    declared = declare(*facts.pop("effects", ()), **facts)
    with pytest.raises(ValueError, match=f"^signal_add: {said}: it has no such parameter$"):
        declared(signal_add)
    assert "signal_add" not in OPS


@pytest.mark.cpu_backend
@pytest.mark.parametrize("name", [name for name, op in OPS.items() if op.host])
def test_every_row_with_a_host_side_has_one(name):
    """It answers to a call without its arguments as a function with these parameters does."""
    op = OPS[name]
    shmem.init()
    try:
        if op.params:
            with pytest.raises(TypeError, match="missing a required argument"):
                op.function()
        else:
            op.function()
    finally:
        shmem.finalize()
