"""The step of an optimizer over PEs, against NumPy's."""

import numpy as np
import pytest
from gpushmem.kernels import ZeroAdam
from gpushmem.kernels.zero import reference

import gpushmem as shmem
from tests.pes import lateness, repeated, sendable, to_send, whole_warps

SIZES = (0, 1, 33, 700)
SHAPES = tuple((blocks, whole_warps(threads)) for blocks, threads in ((2, 4), (3, 32)))
PES = (1, 3, *(pytest.param(n, marks=pytest.mark.sweep) for n in (2, 5, 8)))
RULES = {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1}
# dtype of parameters and of gradients, clip; how far parameters are off.
CASES = [
    ("float32", "float32", None, 1e-5), ("float32", "float32", 0.5, 1e-5),
    ("bfloat16", "float32", 0.5, 2e-2),
    pytest.param("float16", "float16", None, 1e-2, marks=pytest.mark.sweep),
]  # fmt: skip


class Job:
    """Parameters and gradients of all PEs of a team, and NumPy's optimizer."""

    def __init__(self, n, size, dtype, gradient_dtype, **rules):
        self.n, self.size, self.rules, self.state = n, size, RULES | rules, {}
        self.dtype, self.gradient_dtype = shmem.device_array(1, dtype).dtype, gradient_dtype
        self.parameters = np.random.default_rng(size).normal(size=size).astype(self.dtype)

    def gradients(self, call):
        """Those of each PE."""
        dtype = shmem.device_array(1, self.gradient_dtype).dtype
        rngs = (np.random.default_rng([pe, call]) for pe in range(self.n))
        return [rng.normal(1 + call % 3, size=self.size).astype(dtype) for rng in rngs]

    def step(self, call):
        given = self.parameters, self.gradients(call), self.state
        self.parameters = reference(*given, **self.rules)


def values(array):
    return np.asarray(array).astype("float64")


@pytest.mark.parametrize("n_pes", PES)
@pytest.mark.parametrize(("dtype", "gradient_dtype", "clip", "off"), CASES)
def test_steps_are_numpys(run_pes, n_pes, dtype, gradient_dtype, clip, off):
    """All end with the same bits; pieces are small, and the parts of some PEs empty."""

    def body():
        shmem.init()
        me, n, found = shmem.my_pe(), shmem.n_pes(), []
        for size in SIZES:
            blocks, threads = SHAPES[size == 700]
            job = Job(n, size, dtype, gradient_dtype, clip=clip)
            options = {"blocks": blocks, "threads": threads} | job.rules
            plan = ZeroAdam(size=size, dtype=dtype, gradient_dtype=gradient_dtype, **options)
            plan.piece = 32
            x = to_send(job.parameters)
            for call in range(3):
                gradients = job.gradients(call)
                plan(to_send(gradients[me]), x)
                job.step(call)
                np.testing.assert_allclose(
                    values(x.numpy()), values(job.parameters), off, off, err_msg=f"{size} {call}"
                )
                found.append(x.numpy().tobytes())
            if clip is not None:
                norm = np.linalg.norm(np.mean([values(g) for g in gradients], axis=0))
                assert plan.norm.numpy()[0] == pytest.approx(norm, 1e-5)
            state = plan.state_dict()
            assert state["step"] == 3
            for name in ZeroAdam.names:
                wanted = values(job.state[name])[slice(*plan.parts[0])]
                np.testing.assert_allclose(state[name], wanted, 1e-4, 1e-5, err_msg=name)
            plan.free()
        assert shmem.heap_stats().used == 0
        shmem.finalize()
        return found

    results = run_pes(body, n_pes)
    assert all(found == results[0] for found in results)


def many_steps(calls, clip, later):
    """Some PEs are late now and then; pieces are small, and a bucket is several epochs."""
    shmem.init()
    me, n, size = shmem.my_pe(), shmem.n_pes(), 1500
    job = Job(n, size, "float32", "float32", clip=clip)
    shape = {"blocks": 3, "threads": whole_warps(4), "overlap_param_gather": later}
    buckets = 700, 0, 33, 767
    plan = ZeroAdam(size=size, dtype="float32", buckets=buckets, **shape, **job.rules)
    plan.piece = 32
    x, gradients = to_send(job.parameters), sendable(shmem.device_array(size, "float32"))
    late, looks = lateness(0.05, 0.01), np.random.default_rng(me)
    for call in range(calls):
        gradients.copy_from(job.gradients(call)[me])
        for _ in range(call % 5):
            late()
            plan.start(gradients, x)
        late()
        plan(gradients, x)
        for _ in range(4 * later):
            plan.gather(x)
            late()
        job.step(call)
        if looks.random() < 0.2:
            np.testing.assert_allclose(x.numpy(), job.parameters, 1e-4, 1e-3, err_msg=f"{call}")
    np.testing.assert_allclose(x.numpy(), job.parameters, 1e-4, 1e-3)
    shmem.finalize()


@pytest.mark.parametrize(("clip", "later"), [(None, False), (1.0, False), (None, True)])
def test_many_calls_without_a_barrier(run_pes, clip, later):
    run_pes(many_steps, 5, repeated(100, if_checked=5), clip, later)


BUCKETS = 33, 0, 300, 1, 366


@pytest.mark.parametrize("n_pes", [1, 2, 3, 5])
@pytest.mark.parametrize("clip", [None, 2.0])
def test_buckets_give_the_same_bits(run_pes, n_pes, clip):
    """However many are started before; of small integers sums of squares are exact in any order.

    Also if parameters are gathered later, of which this PE's are there at once.
    """

    def body():
        shmem.init()
        me, n, size = shmem.my_pe(), shmem.n_pes(), sum(BUCKETS)
        options = {"size": size, "dtype": "float32", "clip": clip, "blocks": 2, "average": False}
        options |= RULES | {"threads": whole_warps(4)}
        whole, plan = ZeroAdam(**options), ZeroAdam(buckets=BUCKETS, **options)
        assert len(plan.parts) == plan.buckets == 5
        later = ZeroAdam(buckets=BUCKETS, overlap_param_gather=True, **options)
        plan.piece = later.piece = 32
        rng = np.random.default_rng(5)
        x, y, z = (to_send(rng.normal(size=size).astype("float32")) for _ in range(3))
        for each in (y, z):
            each.copy_from(x.numpy())
        for call in range(6):
            given = np.random.default_rng([me, call]).integers(-3, 4, size).astype("float32")
            whole(to_send(given), x)
            gradients, its = to_send(given), to_send(given)
            for _ in range(call):
                plan.start(gradients, y)
                later.start(its, z)
            if call == 5:
                with pytest.raises(shmem.ArgumentError, match="all 5 buckets of this step"):
                    plan.start(gradients, y)
            plan(gradients, y)
            np.testing.assert_array_equal(y.numpy(), x.numpy(), err_msg=f"{call}")
            np.testing.assert_array_equal(plan.norm.numpy(), whole.norm.numpy())
            before = z.numpy().copy()
            later(its, z)
            for bucket in reversed(range(5)):
                with pytest.raises(shmem.ArgumentError, match=f"{bucket + 1} of the 5 buckets"):
                    later.start(its, z)
                first, last = plan.parts[bucket]
                np.testing.assert_array_equal(z.numpy()[first:last], x.numpy()[first:last])
                if n > 1 and bucket == 4:  # others' parts are as they were
                    others = np.r_[sum(BUCKETS[:4]) : first, last:size]
                    np.testing.assert_array_equal(z.numpy()[others], before[others])
                later.gather(z)
                end = sum(BUCKETS[:bucket])
                np.testing.assert_array_equal(z.numpy()[end:], x.numpy()[end:])
            for each in (plan, later):
                with pytest.raises(shmem.ArgumentError, match="all 5 buckets of the last step are"):
                    each.gather(z)
        again = ZeroAdam(buckets=BUCKETS, **options)
        again.load_state_dict(plan.state_dict())
        for name, kept in plan.state_dict().items():
            np.testing.assert_array_equal(again.state_dict()[name], kept)
        shmem.finalize()

    run_pes(body, n_pes)


@pytest.mark.cpu_backend  # on GPUs CUDA captures
def test_in_a_graph_of_two_teams_and_counted(run_pes):
    """Steps are counted, and the rate is looked up, where the graph runs."""

    def body():
        shmem.init()
        me = shmem.my_pe()
        teams = [shmem.team_split_strided(shmem.TEAM_WORLD, k, 2, 2) for k in (0, 1)]
        size, stream = 100, shmem.stream()
        job = Job(2, size, "float32", "float32", clip=2.0)
        plan = ZeroAdam(size=size, dtype="float32", team=teams[me % 2], blocks=2, **job.rules)
        x, gradients = to_send(job.parameters), sendable(shmem.device_array(size, "float32"))
        with shmem.capture(stream) as graph:
            plan(gradients, x, stream=stream)
        for call in range(4):
            plan.lr = job.rules["lr"] = 0.1 / (call + 1)
            mine = 100 * (me % 2) + call  # each team has its own
            gradients.copy_from(job.gradients(mine)[me // 2])
            graph.launch(stream)
            job.step(mine)
            np.testing.assert_allclose(x.numpy(), job.parameters, 1e-4, 1e-4, err_msg=f"{call}")
        assert plan.lr == 0.025
        mine = plan.parts[0][1] - plan.parts[0][0]  # 64 of PE 0, 36 of PE 1
        assert plan.sends() == (4 * (size - mine) + 4 * mine + 4 * 2, 2 * 2 + 2)
        shmem.finalize()

    run_pes(body, 4)


def test_a_checkpoint_of_other_pes_goes_on(run_pes):
    """Parts of all PEs are one behind the other; the step counts, and masters are not rounded."""

    def body():
        shmem.init()
        me, n, size = shmem.my_pe(), shmem.n_pes(), 100
        job = Job(n, size, "bfloat16", "float32", clip=0.5)
        sizes = {"size": size, "dtype": "bfloat16", "gradient_dtype": "float32"} | job.rules
        for call in range(3):
            job.step(call)
        plan = ZeroAdam(**sizes)
        whole, mine = job.state, slice(*plan.parts[0])
        state = {"step": whole["step"]} | {name: whole[name][mine] for name in ZeroAdam.names}
        plan.load_state_dict(state)
        x, gradients = to_send(job.parameters), job.gradients(3)
        plan(to_send(gradients[me]), x)
        job.step(3)
        after = plan.state_dict()
        assert after["step"] == 4
        np.testing.assert_allclose(after["master"], job.state["master"][mine], 1e-5, 1e-5)
        rounded = after["master"].astype(x.dtype)
        np.testing.assert_array_equal(values(x.numpy())[mine], values(rounded))
        shmem.finalize()

    run_pes(body, 3)


def test_what_a_plan_is_not_for(run_pes):
    def body():
        shmem.init()
        with pytest.raises(shmem.ArgumentError, match="dtype is float64; it can be float32"):
            ZeroAdam(size=1, dtype="float64")
        with pytest.raises(shmem.ArgumentError, match="gradient_dtype is int32"):
            ZeroAdam(size=1, dtype="float32", gradient_dtype="int32")
        with pytest.raises(shmem.ArgumentError, match="size is -1"):
            ZeroAdam(size=-1, dtype="float32")
        with pytest.raises(shmem.ArgumentError, match=r"\(3, 4\), together 7; size is 8"):
            ZeroAdam(size=8, dtype="float32", buckets=(3, 4))
        plan, x = ZeroAdam(size=3, dtype="float16"), shmem.device_array(3, "float16")
        with pytest.raises(shmem.ArgumentError, match="gradients has shape"):
            plan(shmem.device_array(4, "float16"), x)
        with pytest.raises(shmem.ArgumentError, match="parameters has shape"):
            plan(x, shmem.device_array(3, "float32"))
        shmem.finalize()

    run_pes(body, 1)
