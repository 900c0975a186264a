"""Fourier transforms over PEs, against NumPy."""

import numpy as np
import pytest
from gpushmem.kernels import FFT
from gpushmem.kernels.fft import reference

import gpushmem as shmem
from tests.pes import lateness, repeated, some_of, to_send, whole_warps

SHAPES = ((16, 64), (8, 8), (64, 8), (8, 16, 4), (16, 8, 32), (128, 16), (8, 8, 1), (32, 8, 2))
LAUNCHES = ((1, 1), (2, 32), (3, 48))
OFF = {"complex64": 1e-5, "complex128": 1e-13}


def numbers(shape, call):
    rng = np.random.default_rng(call)
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


def there_and_back(shape, dtype, blocks, threads, calls=2, pairs=False):
    """Transform, compare, and transform back; PEs are late now and then.

    By `pairs`, as on GPUs.
    """
    me, n, late = shmem.my_pe(), shmem.n_pes(), lateness(0.05, 0.005)
    launch = {"blocks": blocks, "threads": whole_warps(threads), "dtype": dtype}
    swapped = shape[1], shape[0], *shape[2:]
    with FFT(shape=shape, **launch) as plan, FFT(shape=swapped, inverse=True, **launch) as back:
        x, out = (
            to_send(np.full((len(mine), *rest), 77, dtype))
            for mine, rest in ((plan.rows, shape[1:]), (plan.columns, swapped[1:]))
        )
        if pairs:
            plan._by_pairs = back._by_pairs = True
        assert (back.rows, back.columns) == (plan.columns, plan.rows)
        for call in range(calls):
            whole = numbers(shape, call).astype(dtype)
            x.copy_from(whole[plan.rows.start : plan.rows.stop])
            plan(x, out=out)
            want = reference(whole, n, me)
            late()
            np.testing.assert_allclose(out.numpy(), want, atol=OFF[dtype] * abs(want).max())
            x.copy_from(0)
            back(out, out=x)
            want = whole[plan.rows.start : plan.rows.stop]
            np.testing.assert_allclose(x.numpy(), want, atol=OFF[dtype] * abs(whole).max())


def every_shape(shapes, dtypes):
    shmem.init()
    launches = LAUNCHES[len(dtypes) == 1 :]
    for number, shape in enumerate(some_of(shapes, 3)):
        blocks, threads = launches[number % len(launches)]
        there_and_back(shape, dtypes[number % len(dtypes)], blocks, threads)
    shmem.finalize()


@pytest.mark.parametrize(
    ("n_pes", "shapes", "dtypes"),
    [
        (1, SHAPES[:3], ("complex64",)),
        (3, SHAPES[:5], ("complex64",)),
        *(pytest.param(n, SHAPES, tuple(OFF), marks=pytest.mark.sweep) for n in (1, 2, 3, 5, 8)),
    ],
)
def test_transforms_are_numpys(run_pes, n_pes, shapes, dtypes):
    run_pes(every_shape, n_pes, shapes, dtypes, timeout=120)


PAIRED = ((16, 64), (16, 32), (8, 16, 8), (8, 8, 32), (64, 16))  # bundles of rows, planes


def by_pairs(shapes, dtypes):
    shmem.init()
    assert not FFT(shape=(8, 8))._by_pairs
    for number, shape in enumerate(shapes):
        blocks, threads = LAUNCHES[1 + number % 2]
        there_and_back(shape, dtypes[number % len(dtypes)], blocks, threads, pairs=True)
    shmem.finalize()


@pytest.mark.parametrize(
    ("n_pes", "dtypes"),
    [
        (4, ("complex64",)),
        *(pytest.param(n, tuple(OFF), marks=pytest.mark.sweep) for n in (1, 2, 4, 8)),
    ],
)
def test_pairs_of_elements_are_transformed_as_on_gpus(run_pes, n_pes, dtypes):
    run_pes(by_pairs, n_pes, PAIRED[: 3 if len(dtypes) == 1 else None], dtypes, timeout=120)


def many_calls(calls):
    shmem.init()
    there_and_back((8, 16), "complex64", 2, 32, calls)
    shmem.finalize()


@pytest.mark.parametrize("calls", [150, pytest.param(1500, marks=pytest.mark.slow)])
def test_many_calls_without_a_barrier(run_pes, calls):
    run_pes(many_calls, 3, repeated(calls, if_checked=4))


@pytest.mark.cpu_backend  # on GPUs CUDA captures
def test_in_a_graph_of_two_teams_and_counted(run_pes):
    def body():
        shmem.init()
        me, stream = shmem.my_pe(), shmem.stream()
        teams = [shmem.team_split_strided(shmem.TEAM_WORLD, k, 2, 2) for k in (0, 1)]
        plan = FFT(shape=(16, 8, 2), team=teams[me % 2])
        x, out = (shmem.device_array(shape, "complex64") for shape in ((8, 8, 2), (4, 16, 2)))
        plan(x, out=out, stream=stream)
        with shmem.capture(stream) as graph:
            plan(x, out=out, stream=stream)
        for call in range(3):
            whole = numbers((16, 8, 2), 10 * call + me % 2).astype("complex64")
            x.copy_from(whole[plan.rows.start : plan.rows.stop])
            graph.launch(stream)
            want = reference(whole, 2, me // 2)
            np.testing.assert_allclose(out.numpy(), want, atol=1e-4)
        assert plan.sends() == (8 * 4 * 2 * 8, 8 + 1)
        shmem.finalize()

    run_pes(body, 4)


def test_what_a_plan_is_not_for(run_pes):
    def body():
        shmem.init()
        for given, said in (
            ({"shape": (8, 12)}, r"shape is \(8, 12\) and dtype complex64"),
            ({"shape": (8,)}, "two or three axes"),
            ({"shape": (8, 1, 8)}, "from 2 on"),
            ({"shape": (8, 8), "dtype": "float32"}, "dtype float32"),
            ({"shape": (2, 8)}, "the team has 3 PEs"),
        ):
            with pytest.raises(shmem.ArgumentError, match=said):
                FFT(**given)
        with FFT(shape=(4, 8)) as plan:
            right = [shmem.device_array(s, "complex64") for s in ((len(plan.rows), 8),
                     (len(plan.columns), 4))]  # fmt: skip
            wrong = shmem.device_array(3, "complex64")
            with pytest.raises(shmem.ArgumentError, match="x has shape"):
                plan(wrong, out=right[1])
            with pytest.raises(shmem.ArgumentError, match="out has shape"):
                plan(right[0], out=wrong)
        two = shmem.team_split_strided(shmem.TEAM_WORLD, 0, 1, 2)  # PE 2 is not in it
        FFT(shape=(2, 2), team=two).free()
        shmem.finalize()

    run_pes(body, 3)
