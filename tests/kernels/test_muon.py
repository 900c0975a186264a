"""The step of Muon over PEs, against NumPy's."""

import numpy as np
import pytest
from gpushmem.kernels import ZeroMuon
from gpushmem.kernels.muon import cost, owners_of, reference

import gpushmem as shmem
from tests.pes import lateness, repeated, sendable, to_send, whole_warps

SHAPES = (8, 8), (5, 12), (12, 5), (1, 7), (40, 3), (0, 4), (16, 8)
BUCKETS = 2, 0, 4, 1
RULES = {"lr": 0.1, "weight_decay": 0.2, "momentum": 0.9}
OPTIONS = {"blocks": 2, "threads": whole_warps(4), "product_dtype": "float32"}
OTHERS = {"nesterov": False, "steps": 2, "average": False, "adjust_lr_fn": "match_rms_adamw"}
# PEs, dtype of parameters and of gradients, other rules; how far parameters are off.
CASES = [
    *((n, "float32", "float32", {}, 2e-4) for n in (1, 2, 3, 5)),
    (3, "bfloat16", "float32", OTHERS, 2e-2),
    pytest.param(3, "float32", "bfloat16", OTHERS, 5e-2, marks=pytest.mark.sweep),
]  # fmt: skip


class Job:
    """Matrices and gradients of all PEs, and NumPy's optimizer."""

    def __init__(self, n, dtype="float32", gradient_dtype="float32", **rules):
        self.n, self.rules, self.states = n, RULES | rules, [{} for _ in SHAPES]
        self.dtype, self.gradient_dtype = (
            shmem.device_array(1, each).dtype for each in (dtype, gradient_dtype)
        )
        rng = np.random.default_rng(n)
        self.matrices = [rng.normal(size=shape).astype(self.dtype) for shape in SHAPES]

    def gradients(self, call):
        """Those of each PE: of all matrices."""
        rngs = (np.random.default_rng([pe, call]) for pe in range(self.n))
        return [[rng.normal(size=s).astype(self.gradient_dtype) for s in SHAPES] for rng in rngs]

    def step(self, call):
        given = zip(
            self.matrices, zip(*self.gradients(call), strict=True), self.states, strict=True
        )
        self.matrices = [reference(w, list(g), state, **self.rules) for w, g, state in given]


def laid_out(plan, matrices, dtype):
    """The plan's array of all matrices, with other numbers in between."""
    array = np.full(plan.size, 7).astype(dtype)
    for at, matrix in zip(plan.starts, matrices, strict=True):
        array[at : at + matrix.size] = matrix.reshape(-1)
    return array


def taken(plan, array):
    """The matrices in it."""
    places = zip(plan.starts, SHAPES, strict=True)
    return [array[at : at + np.prod(shape)].reshape(shape) for at, shape in places]


def compare(got, wanted, off, call):
    for *two, shape in zip(got, wanted, SHAPES, strict=True):
        x, y = (each.astype("float64") for each in two)
        np.testing.assert_allclose(x, y, off, off, err_msg=f"{shape} {call}")


@pytest.mark.parametrize(("n_pes", "dtype", "gradient_dtype", "rules", "off"), CASES)
def test_steps_are_numpys(run_pes, n_pes, dtype, gradient_dtype, rules, off):
    """All end with the same bits, in buckets or not; pieces are small, and some PEs have none."""

    def body():
        shmem.init()
        me, n = shmem.my_pe(), shmem.n_pes()
        job = Job(n, dtype, gradient_dtype, **rules)
        options = {"dtype": dtype, "gradient_dtype": gradient_dtype, **OPTIONS, **job.rules}
        plan, other = (ZeroMuon(shapes=SHAPES, buckets=b, **options) for b in (None, BUCKETS))
        plan.piece = other.piece = 32
        x, y = (to_send(laid_out(each, job.matrices, job.dtype)) for each in (plan, other))
        for call in range(4):
            mine = job.gradients(call)[me]
            plan(to_send(laid_out(plan, mine, job.gradient_dtype)), x)
            gradients = to_send(laid_out(other, mine, job.gradient_dtype))
            for _ in range(call):
                other.start(gradients, y)
            other(gradients, y)
            job.step(call)
            compare(taken(plan, x.numpy()), job.matrices, off, call)
            for one, two in zip(taken(plan, x.numpy()), taken(other, y.numpy()), strict=True):
                np.testing.assert_array_equal(one, two)
        state, (first, last) = plan.state_dict(), plan.parts[0]
        assert state["step"] == 4
        for k, at in enumerate(plan.starts):
            if plan.owners[k] == me:
                assert first <= at <= last
                wanted = job.states[k]["momentum_buffer"].reshape(-1)
                kept = state["momentum_buffer"][at - first : at - first + wanted.size]
                np.testing.assert_allclose(kept, wanted, off, off)
        mine = last - first
        of_all = (plan.size - mine) * plan.gradient_dtype.itemsize + (
            n - 1
        ) * mine * x.dtype.itemsize
        assert plan.sends() == (of_all, 2 * (n - 1) * plan.pieces)
        plan.free()
        other.free()
        assert shmem.heap_stats().used == 0
        shmem.finalize()
        return [each.tobytes() for each in taken(plan, x.numpy())]

    results = run_pes(body, n_pes)
    assert all(found == results[0] for found in results)


def test_many_steps_from_a_checkpoint_in_a_graph(run_pes):
    """Some PEs are late now and then; a graph's later launches are other steps."""

    def body():
        shmem.init()
        me, n = shmem.my_pe(), shmem.n_pes()
        job, stream = Job(n), shmem.stream()
        options = {"shapes": SHAPES, "dtype": "float32", **OPTIONS, **job.rules}
        plan = ZeroMuon(**options)
        plan.piece = 32
        x = to_send(laid_out(plan, job.matrices, job.dtype))
        gradients, late = sendable(shmem.device_array(plan.size, "float32")), lateness(0.1, 0.01)

        def step(call, do):
            gradients.copy_from(laid_out(plan, job.gradients(call)[me], "float32"))
            late()
            do()
            job.step(call)

        step(0, lambda: plan(gradients, x, stream=stream))
        state = plan.state_dict()
        plan.free()
        plan = ZeroMuon(**options)
        plan.load_state_dict(state)
        with shmem.capture(stream) as graph:
            plan(gradients, x, stream=stream)
        for call in range(1, repeated(12, if_checked=3)):
            plan.lr = job.rules["lr"] = 0.1 / call
            step(call, lambda: graph.launch(stream))
        compare(taken(plan, x.numpy()), job.matrices, 1e-3, call)
        shmem.finalize()

    run_pes(body, 3)


def test_owners_have_equal_work():
    """As good as the best within a matrix's work; each PE has the same idea."""
    shapes = [(512, 512)] * 12 + [(512, 2048)] * 5 + [(2048, 512)] * 3 + [(7, 9)]
    owners = owners_of(shapes, 5)
    loads = [
        sum(cost(s) for s, pe in zip(shapes, owners, strict=True) if pe == k) for k in range(5)
    ]
    assert max(loads) - min(loads) <= cost((512, 512))
    assert cost((512, 2048)) == cost((2048, 512)) == 2 * 512**2 * (2 * 2048 + 512)


def test_what_a_plan_is_not_for(run_pes):
    def body():
        shmem.init()
        for wrong, said in (
            ({"shapes": [(2, 3, 4)]}, r"must be a list of \(rows, columns\), not \[\(2, 3, 4\)\]"),
            ({"shapes": [(2, -3)]}, r"shapes: columns must be 0 or more, not -3"),
            ({"shapes": [(2, 3)], "buckets": (1, 1)}, r"have \(1, 1\) matrices; there are 1"),
            ({"shapes": [(2, 3)], "adjust_lr_fn": "mine"}, "adjust_lr_fn is 'mine'; it can be ori"),
            ({"shapes": [(2, 3)], "dtype": "float64"}, "dtype is float64"),
            ({"shapes": [(2, 3)], "product_dtype": "int32"}, "product_dtype is int32"),
        ):  # fmt: skip
            with pytest.raises(shmem.ArgumentError, match=said):
                ZeroMuon(**{"dtype": "float32", **wrong})
        plan = ZeroMuon(shapes=[(2, 3)], dtype="float32")
        assert plan.size == 32
        x = shmem.device_array(6, "float32")
        with pytest.raises(shmem.ArgumentError, match="gradients has shape"):
            plan(x, x)
        shmem.finalize()

    run_pes(body, 1)
