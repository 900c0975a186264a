"""Pipelines: channels with credits, and layers that are trained by one kernel, against NumPy."""

import numpy as np
import pytest
from gpushmem.kernels import (
    PipelinedLayers,
    PipelineExchange,
    Schedule,
    begin,
    end,
    give_back,
    schedule,
    send_item,
    wait_for_item,
)
from gpushmem.kernels.pipeline import reference
from numba import cuda

import gpushmem as shmem
from gpushmem.trace import load
from tests.pes import lateness, repeated, sendable, some_of, to_send, whole_warps

PES = (1, 3, *(pytest.param(n, marks=pytest.mark.sweep) for n in (2, 5, 8)))
SIZES = {"rows": 5, "hidden": 12, "layers": 2}
OFF = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
CASES = [
    ({"kind": "1f1b"}, "float32"), ({"kind": "interleaved", "chunks": 2}, "float32"),
    ({"kind": "zero_bubble", "window": 1}, "float32"), ({"kind": "gpipe", "layers": 1}, "float16"),
    ({"kind": "zero_bubble"}, "bfloat16"),
]  # fmt: skip
LAUNCHES = ((3, 4), (2, 64), (1, 32))


class Job:
    """Weights and a batch of all stages, the same on all PEs."""

    def __init__(self, seed, n, microbatches, dtype, chunks=1, rows=5, hidden=12, layers=2):
        rng = np.random.default_rng(seed)
        kind, shape = shmem.device_array(1, dtype).dtype, (chunks * n, layers, hidden, hidden)
        self.weights = rng.normal(0, (2 / hidden) ** 0.5, shape).astype(kind)
        batch = microbatches, rows, hidden
        self.x, self.target = (rng.normal(size=batch).astype(kind) for _ in range(2))
        self.n, self.loss = n, np.empty(batch[:2])

    def wanted(self, me):
        loss, gradients = reference(self.x, self.target, self.weights, self.weights.dtype)
        return loss, gradients[me :: self.n]


def trained(plan, job, me, given=None):
    """Loss, on the last PE, and gradients of a call; `given` has arrays of a call before."""
    weights, x, target = given or [
        to_send(np.ascontiguousarray(each))
        for each in (job.weights[me :: job.n], job.x, job.target)
    ]
    gradients = shmem.device_array(weights.shape, weights.dtype)
    loss = shmem.device_array(job.x.shape[:2], "float32")
    ends = {"x": x} if me == 0 else {}
    ends |= {"target": target, "loss": loss} if me == job.n - 1 else {}
    plan(weights, gradients=gradients, **ends)
    return loss.numpy() if me == job.n - 1 else None, gradients.numpy().astype("float64")


def check(plan, job, me, off, found):
    loss, gradients = job.wanted(me)
    if me == job.n - 1:
        np.testing.assert_allclose(found[0], loss, rtol=off, atol=off)
    scale = np.abs(gradients).max()
    np.testing.assert_allclose(found[1] / scale, gradients / scale, rtol=0, atol=off)


def every_case(cases):
    shmem.init()
    me, n = shmem.my_pe(), shmem.n_pes()
    for number, (case, dtype) in enumerate(some_of(cases)):
        blocks, threads = LAUNCHES[number % 3]
        microbatches = n * (1 + (n < 3)) if "chunks" in case else n + 2
        sizes = SIZES | {"microbatches": microbatches} | case
        tile = (5, 8) if number % 2 else None
        with PipelinedLayers(
            **sizes, dtype=dtype, blocks=blocks, threads=whole_warps(threads), tile=tile
        ) as plan:
            for call in range(2):
                chunks, layers = sizes.get("chunks", 1), sizes["layers"]
                job = Job(10 * number + call, n, microbatches, dtype, chunks, layers=layers)
                check(plan, job, me, OFF[dtype], trained(plan, job, me))
    assert shmem.heap_stats().used == 0
    shmem.finalize()


@pytest.mark.parametrize(
    ("n_pes", "cases"),
    [
        (1, CASES[:1]), (3, CASES[:3]),
        *(pytest.param(n, CASES, marks=pytest.mark.sweep) for n in (1, 2, 3, 5, 8)),
    ],
)  # fmt: skip
def test_gradients_are_those_of_one_process(run_pes, n_pes, cases):
    run_pes(every_case, n_pes, cases, timeout=120)


def many_calls(calls):
    """Stages are late now and then; items are numbered on, through all calls."""
    shmem.init()
    me, n, late = shmem.my_pe(), shmem.n_pes(), lateness(0.05, 0.01)
    small = {"rows": 3, "hidden": 4, "layers": 1}
    jobs = [Job(k, n, 4, "float32", **small) for k in range(5)]
    given = [[to_send(x) for x in (job.weights[me::n].copy(), job.x, job.target)] for job in jobs]
    with PipelinedLayers(
        **small, microbatches=4, dtype="float32", kind="zero_bubble", blocks=2, window=1,
        threads=whole_warps(4),
    ) as plan:  # fmt: skip
        for call in range(calls):
            late()
            found = trained(plan, jobs[call % 5], me, given[call % 5])
            check(plan, jobs[call % 5], me, 1e-4, found)
    shmem.finalize()


@pytest.mark.parametrize("calls", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_calls_without_a_barrier(run_pes, calls):
    run_pes(many_calls, 5, repeated(calls, if_checked=3))


@pytest.mark.cpu_backend  # on GPUs CUDA captures
def test_in_a_graph_of_two_teams_and_counted(run_pes):
    def body():
        shmem.init()
        me = shmem.my_pe()
        teams = [shmem.team_split_strided(shmem.TEAM_WORLD, k, 2, 2) for k in (0, 1)]
        stage, stream = me // 2, shmem.stream()
        job = Job(me % 2, 2, 3, "float32")
        plan = PipelinedLayers(
            **SIZES, microbatches=3, dtype="float32", team=teams[me % 2], blocks=2
        )
        weights = to_send(job.weights[stage::2].copy())
        gradients = sendable(shmem.device_array(weights.shape, "float32"))
        x, target = to_send(job.x), to_send(job.target)
        loss = shmem.device_array((3, 5), "float32")
        ends = {"target": target, "loss": loss} if stage else {"x": x}
        with shmem.capture(stream) as graph:
            plan(weights, gradients=gradients, stream=stream, **ends)
        for call in range(3):
            job.x += call
            x.copy_from(job.x)
            graph.launch(stream)
            found = loss.numpy() if stage else None, gradients.numpy().astype("float64")
            loss_wanted, wanted = job.wanted(stage)
            np.testing.assert_allclose(found[1], wanted, rtol=1e-3, atol=1e-3)
            if stage:
                np.testing.assert_allclose(found[0], loss_wanted, rtol=1e-3)
        # Three microbatches one way, three credits the other way.
        assert plan.sends() == (4 * 3 * 5 * 12, 2 * (3 + 3))
        assert plan.schedule.kind == "1f1b"
        shmem.finalize()

    run_pes(body, 4)


TRACED = """
import numpy as np
from gpushmem.kernels import PipelinedLayers
import gpushmem as shmem

with shmem.session() as world:
    sizes = {"rows": 2, "hidden": 4, "layers": 1, "microbatches": 4}
    plan = PipelinedLayers(**sizes, dtype="float32", kind="zero_bubble", blocks=1, threads=32)
    weights, batch = shmem.ones((1, 1, 4, 4), "float32"), shmem.ones((4, 2, 4), "float32")
    gradients, loss = shmem.zeros((1, 1, 4, 4), "float32"), shmem.zeros((4, 2), "float32")
    plan(weights, gradients=gradients, x=batch, target=batch, loss=loss)
    shmem.synchronize()
"""


@pytest.mark.sweep
@pytest.mark.cpu_backend
def test_a_trace_has_the_schedule(run_cli, tmp_path):
    (tmp_path / "program.py").write_text(TRACED)
    out = tmp_path / "out"
    run_cli("run", "--trace", out, "-n", 2, tmp_path / "program.py", timeout=200, code=0)
    trace = load(out)
    numbers, texts = trace.labels
    names = {texts.index(name): k for name, k in (("forward", 0), ("input", 2), ("weights", 3))}
    for pe in (0, 1):
        mine = [k for k in range(len(trace.events)) if trace.events["of"][k] == pe]
        mine.sort(key=lambda k: trace.events["began"][k])
        found = [names[numbers[k]] for k in mine if numbers[k] in names]
        assert found == schedule("zero_bubble", 2, 4).table[pe, :, 0].tolist()


# --- the exchange


def item_of(stage, k, back=False):
    """What a stage sends as item k."""
    return np.arange(33, dtype="float32") + 1000 * stage + 100 * k + 50 * back


def sent_by_hosts(rounds, window, kind):
    """Each stage adds 1 to what it gets, in the order of a schedule, and now and then is late."""
    shmem.init()
    me, n, late = shmem.my_pe(), shmem.n_pes(), lateness(0.05, 0.005)
    table = schedule(kind, n, 2 * n).table[me].tolist()
    with PipelineExchange(shape=(3, 11), dtype="float32", window=window) as plan:
        x = sendable(shmem.device_array((3, 11), "float32"))
        for call in range(rounds):
            for action, k, _ in table:
                back = action > 0
                if action == 3:
                    continue
                first = me == (n - 1 if back else 0)
                late()
                if first:
                    x.copy_from(item_of(call, k, back).reshape(3, 11))
                else:
                    (plan.recv_backward if back else plan.recv_forward)(out=x)
                got, far = x.numpy().ravel(), n - 1 - me if back else me
                np.testing.assert_array_equal(got, item_of(call, k, back) + far)
                x.copy_from(got.reshape(3, 11) + 1)
                if me != (0 if back else n - 1):
                    (plan.send_backward if back else plan.send_forward)(x)
                    x.copy_from(-1)  # it may be changed
        assert plan.sends() == (4 * 33, plan.blocks)
    shmem.finalize()


@pytest.mark.parametrize("n_pes", PES)
def test_hosts_send_in_the_order_of_a_schedule(run_pes, n_pes):
    run_pes(sent_by_hosts, n_pes, repeated(4, if_checked=1), 1 + n_pes % 2, "zero_bubble")


@shmem.jit(collective=True)
def relay(numbers, items, boxes, filled, taken, near, team, epochs):
    """A ring by a user's kernel: what comes goes on, plus 1; no host in between.

    PE 0 begins with item k as 100 k; `numbers` (items, size) gets what came.
    """
    me, n, epoch, b = shmem.my_pe(), shmem.n_pes(), begin(epochs), cuda.blockIdx.x
    size = numbers.shape[1] // cuda.gridDim.x
    first, last, window = b * size, b * size + size, boxes.shape[0]
    for k in range(items):
        item, row = (epoch - 1) * items + k + 1, numbers[k, first:last]
        if me > 0:
            wait_for_item(filled[b], item)
            shmem.copy_block(row, boxes[item % window, first:last])
            give_back(taken[b], item, me - 1)
        for i in range(cuda.threadIdx.x, size, cuda.blockDim.x):
            row[i] += 1
        cuda.syncthreads()
        if me < n - 1:
            box = boxes[item % window, first:last]
            send_item(box, row, filled[b], taken[b], item, me + 1, near)
    end(epochs)


def relayed(window):
    shmem.init()
    me, items = shmem.my_pe(), 9
    shape = {"blocks": 2, "threads": whole_warps(8)}
    with PipelineExchange(shape=(64,), dtype="float32", window=window, **shape) as plan:
        numbers = sendable(shmem.device_array((items, 64), "float32"))
        for call in range(3):
            start = 100.0 * np.arange(items)[:, None] + np.arange(64) + 1000 * call
            numbers.copy_from(start.astype("float32") if me == 0 else -1)
            plan.launch(relay, 0, numbers, items, *plan.forward, plan.reachable)
            np.testing.assert_array_equal(numbers.numpy(), start + me + 1)
    shmem.finalize()


@pytest.mark.parametrize(("n_pes", "window"), [(3, 2), (5, 1)])
def test_kernels_of_users_send(run_pes, n_pes, window):
    run_pes(relayed, n_pes, window)


def test_what_a_plan_is_not_for(run_pes):
    def body():
        shmem.init()
        layers = SIZES | {"microbatches": 3, "dtype": "float32"}
        for given, said in (
            ({"dtype": "float64"}, "dtype is float64; it can be float32"),
            ({"hidden": 0}, "hidden must be 1 to"), ({"window": 0}, "window must be 1 to"),
            ({"kind": "2f2b"}, "kind is '2f2b'"),
            ({"kind": Schedule([[(0, 0, 0), (1, 0, 0)]])}, r"a schedule of \(1, 1, 1\) stages"),
        ):  # fmt: skip
            with pytest.raises(shmem.ArgumentError, match=said):
                PipelinedLayers(**layers | given)
        with PipelinedLayers(**layers) as plan:
            job = Job(0, 1, 3, "float32")
            names = "weights", "gradients", "x", "target", "loss"
            arrays = [to_send(job.weights), to_send(job.weights), to_send(job.x), to_send(job.x)]
            for k, said in enumerate(names):
                given = [*arrays, shmem.device_array((3, 5), "float32")]
                given[k] = shmem.device_array(3, "float32")
                with pytest.raises(shmem.ArgumentError, match=f"{said} has shape"):
                    plan(given[0], **dict(zip(names[1:], given[1:], strict=True)))
        with PipelineExchange(shape=(3,), dtype="float32") as plan:
            x = shmem.device_array(3, "float32")
            for call in (plan.send_forward, plan.send_backward):
                with pytest.raises(shmem.ArgumentError, match="has no neighbour there"):
                    call(x)
        with PipelineExchange(shape=(3,), dtype="float32", ring=True) as plan:
            with pytest.raises(shmem.ArgumentError, match="out has shape"):
                plan.recv_forward(out=shmem.device_array(4, "float32"))
            x = to_send(np.arange(3, dtype="float32"))
            plan.send_forward(x)  # to itself
            plan.recv_forward(out=(got := shmem.device_array(3, "float32")))
            assert got.numpy().tolist() == [0, 1, 2]
        shmem.finalize()

    run_pes(body, 1)
