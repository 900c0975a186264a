"""Fourier transforms over PEs, against NumPy."""

import numpy as np
import pytest
from gpushmem.kernels import FFT
from gpushmem.kernels.fft import reference
from gpushmem.kernels.fft_tiles import tiles_of

import gpushmem as shmem
from tests.pes import lateness, on_several_nodes, repeated, some_of, to_send, whole_warps

SHAPES = ((16, 64), (8, 8), (64, 8), (8, 16, 4), (16, 8, 32), (128, 16), (8, 8, 1), (32, 8, 2))
LAUNCHES = ((1, 1), (2, 32), (3, 48))
OFF = {"complex64": 1e-5, "complex128": 1e-13}


def numbers(shape, call):
    rng = np.random.default_rng(call)
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


def there_and_back(shape, dtype, blocks, threads, calls=2, method=None):
    """Transform, compare, and transform back; PEs are late now and then."""
    me, n, late = shmem.my_pe(), shmem.n_pes(), lateness(0.05, 0.005)
    launch = {"blocks": blocks, "threads": threads, "dtype": dtype, "method": method}
    swapped = shape[1], shape[0], *shape[2:]
    with FFT(shape=shape, **launch) as plan, FFT(shape=swapped, inverse=True, **launch) as back:
        x, out = (
            to_send(np.full((len(mine), *rest), 77, dtype))
            for mine, rest in ((plan.rows, shape[1:]), (plan.columns, swapped[1:]))
        )
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
        there_and_back(shape, dtypes[number % len(dtypes)], blocks, whole_warps(threads))
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


# Of 16, 32, 64, 128 and 256 along an axis: each last step, with none, one and two before.
TILED = ((32, 128), (64, 16, 32), (256, 64), (512, 32), (16, 32, 128))


def in_tiles(shapes, dtypes):
    shmem.init()
    for number, shape in enumerate(some_of(shapes, 3)):
        blocks, threads = ((1, None), (2, 32), (3, 64))[number % 3]
        there_and_back(shape, dtypes[number % len(dtypes)], blocks, threads, method="tiles")
    shmem.finalize()


@on_several_nodes("boxes are stored to")
@pytest.mark.parametrize(
    ("n_pes", "dtypes"),
    [
        (4, ("complex64",)),
        *(pytest.param(n, (dtype,), marks=pytest.mark.sweep) for n in (1, 2, 8) for dtype in OFF),
    ],
)
def test_tiles_are_transformed_as_on_gpus(run_pes, n_pes, dtypes):
    run_pes(in_tiles, n_pes, TILED[:3] if n_pes == 4 else TILED, dtypes, timeout=120)


def test_tiles_are_what_a_block_has_room_for():
    """Of 16 K complex64 at most; as many threads as there is work for."""
    assert tiles_of((1 << 14, 1 << 14, 1), 8, 8, None, 132) == ((0, 0, 0), 1024, 2048, 17 << 13)
    assert tiles_of((4096, 4096, 1), 8, 8, None, 132) == ((0, 2, 2), 1024, 128, 17 << 13)
    assert tiles_of((1024, 2048, 128), 8, 8, None, 132).logs == (2, 2, 2)
    assert tiles_of((4096, 4096, 1), 8, 16, None, 132).logs == (0, 1, 1)
    for shape, n, threads in (
        ((1 << 15, 64, 1), 8, None), ((64, 1 << 15, 1), 8, None), ((64, 96, 1), 3, None),
        ((64, 8, 1), 2, None), ((64, 64, 8), 2, None), ((64, 64, 1), 2, 48), ((64, 64, 1), 8, 64),
    ):  # fmt: skip
        assert tiles_of(shape, n, 8, threads, 132) is None


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
            ({"shape": (8, 8), "method": "tiles"}, "method is 'tiles', with shape"),
            ({"shape": (8, 8), "method": "pairs"}, "method is 'pairs'"),
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
