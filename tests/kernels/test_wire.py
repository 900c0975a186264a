"""Numbers as 8-bit floats with scales, and all-reduces that send them, against ml_dtypes."""

import numpy as np
import pytest
from gpushmem.kernels import AllReduce
from gpushmem.kernels.all_reduce_wire import reference
from gpushmem.kernels.wire import WIRES, row_bytes

import gpushmem as shmem
from tests.pes import lateness, repeated, to_send

DTYPES = "float32", "float16", "bfloat16"
ALGORITHMS = "one_shot", "two_shot"
WIRE = {"wire": "float8_e4m3"}
quantise, sum_rows, through = WIRES["float8_e4m3"]
KINDS = [(algorithm, dtype) for algorithm in ALGORITHMS for dtype in DTYPES]


@shmem.jit
def there(rows, x):
    quantise(rows[0], x)


@shmem.jit
def back(x, rows):
    sum_rows(x, rows)


def far_apart(seed, size):
    """Numbers of very different sizes, both signs."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=size) * np.exp(1.5 * rng.normal(size=size))


def exact(pe, size):
    """Numbers whose scales are powers of two: sums of them are exact, fused or not."""
    x = np.random.default_rng(pe).integers(-100, 100, size) * 2.0 ** (pe % 3)
    x[::32] = 448 * 2.0 ** (pe % 3)  # parts begin at multiples of 32
    return x


def bound(x):
    """How far what arrives is from `x` at most."""
    wide = np.zeros(-(-x.size // 128) * 128)
    wide[: x.size] = np.abs(x)
    largest = np.repeat(wide.reshape(-1, 128).max(axis=1), 128)[: x.size]
    return np.minimum(np.maximum(wide[: x.size] / 16, largest / 458752), largest / 28)


@pytest.mark.parametrize(
    "dtype", ["float32", *(pytest.param(d, marks=pytest.mark.sweep) for d in DTYPES[1:])]
)
def test_what_arrives_is_what_ml_dtypes_says(alone, dtype):
    """Bytes behind a row stay as they are: 255 is not a code that is sent."""
    for size in (0, 1, 5, 128, 129, 1000):
        for threads in (1, 4, 32, 64):
            x = far_apart(size, size).astype(dtype)
            row = np.full((1, row_bytes(size) + 16), 255, "uint8")
            rows, out = shmem.to_device(row), shmem.to_device(np.ones(size, "float32"))
            there[1, threads](rows, shmem.to_device(x))
            back[1, threads](out, rows)
            got = out.numpy()
            np.testing.assert_array_equal(got, through(x), f"{size} {threads}")
            error = np.abs(got - x.astype(float))
            assert (error <= bound(x.astype(float)) * (1 + 1e-6)).all()
            assert (rows.numpy()[0, row_bytes(size) :] == 255).all()


def test_zeros_tiny_numbers_infinities_and_nan(alone):
    x = np.ones(512, "float32")
    x[:128], x[128:256] = 0, 1e-38
    x[300], x[400] = np.inf, np.nan
    rows, out = shmem.to_device(np.zeros((1, row_bytes(512)), "uint8")), shmem.device_array(512)
    there[1, 32](rows, shmem.to_device(x))
    back[1, 32](out, rows)
    got = out.numpy()
    assert not got[:256].any()
    assert np.isnan(got[256:]).all()


def check_exact(plan, me, n):
    """Calls with numbers of which every sum is known to the bit."""
    for call in range(3):
        parts = [exact(pe + call, plan.size).astype(plan.dtype) for pe in range(n)]
        x = to_send(parts[me])
        plan(x)
        wanted = reference(parts, plan).astype("float32")
        np.testing.assert_array_equal(x.numpy().astype("float32"), wanted, plan.algorithm)


def check_error(plan, me, n):
    """Any numbers: returns the bits of their sum. By the largest of all, groups begin anywhere."""
    parts = [far_apart(pe, plan.size).astype(plan.dtype) for pe in range(n)]
    x = to_send(parts[me])
    plan(x)
    wide = np.array(parts, "float64")
    addends, most = np.abs(wide).sum(axis=0), np.abs(wide).max(axis=1, initial=0).sum() / 458752
    error = np.abs(x.numpy().astype("float64") - wide.sum(axis=0))
    once = addends / 16 + most
    assert (error <= once * (1 if plan.algorithm == "one_shot" else 2 + 1 / 16) * 1.001).all()
    assert plan.size < 100 or error.mean() > addends.mean() / 1000  # something has been rounded
    return x.numpy().tobytes()


def check_what_is_sent(plan, me, n):
    """Boxes are painted with 255: no number's code is that, nor a byte of a scale."""
    for box in plan.inboxes:
        box.copy_from(255)
    shmem.barrier_all()
    plan(to_send(exact(me, plan.size).astype(plan.dtype)))
    shmem.barrier_all()
    written = sum(np.count_nonzero(box.numpy() != 255) for box in plan.inboxes)
    shmem.barrier_all()
    two = plan.algorithm == "two_shot"
    numbers, rounds = (plan.size // n, 2) if two else (plan.size, 1)
    says = plan.sends()[0]
    assert says == rounds * (n - 1) * row_bytes(numbers)
    # Besides, rows that a PE keeps, and those that it has made to send; scales are filled up.
    rows = rounds * n + (n - 1) * two
    assert written == rows * (numbers + numbers // 32)


@pytest.mark.parametrize(
    ("n_pes", "kinds"),
    [
        (3, [("one_shot", "float16"), ("two_shot", "float32")]),
        *(pytest.param(n, KINDS, marks=pytest.mark.sweep) for n in (1, 2, 4, 5, 8)),
    ],
)
def test_sums_errors_bits_and_what_is_sent(run_pes, n_pes, kinds):
    def body():
        shmem.init()
        me, n, bits = shmem.my_pe(), shmem.n_pes(), []
        for algorithm, dtype in kinds:
            for size, blocks, threads in ((0, 1, 64), (1, 2, 64), (1000, 3, 32), (5000, 2, 64)):
                options = {"blocks": blocks, "threads": threads, "wire": "float8_e4m3"}
                plan = AllReduce(size=size, dtype=dtype, algorithm=algorithm, **options)
                check_exact(plan, me, n)
                bits.append(check_error(plan, me, n))
                plan.free()
            plan = AllReduce(
                size=640 * n, dtype=dtype, algorithm=algorithm, **options | {"blocks": 1}
            )
            check_what_is_sent(plan, me, n)
        shmem.finalize()
        return bits

    results = run_pes(body, n_pes)
    assert all(bits == results[0] for bits in results)


@pytest.mark.parametrize(
    "algorithm", ["two_shot", pytest.param("one_shot", marks=pytest.mark.sweep)]
)
def test_many_calls_without_a_barrier(run_pes, algorithm):
    calls = repeated(200, if_checked=10)

    def body():
        shmem.init()
        me, n, size = shmem.my_pe(), shmem.n_pes(), 300
        plan = AllReduce(
            size=size, dtype="float32", algorithm=algorithm, blocks=2, threads=32, **WIRE
        )  # fmt: skip
        plan.piece = 64
        x, late = to_send(np.zeros(size, "float32")), lateness(0.05, 0.01)
        for call in range(calls):
            parts = [exact(pe + call, size).astype("float32") for pe in range(n)]
            x.copy_from(parts[me])
            late()
            plan(x)
            np.testing.assert_array_equal(x.numpy(), reference(parts, plan), f"call {call}")
        shmem.finalize()

    run_pes(body, 3)


def test_what_a_wire_cannot_be(alone):
    for options, said in (
        ({"wire": "int8"}, "wire is 'int8'; with a wire it can be float8_e4m3"),
        (WIRE | {"algorithm": "ring"}, "algorithm is 'ring'; with a wire it can be one_shot, two"),
        (WIRE | {"dtype": "float64"}, "dtype is 'float64'; with a wire it can be float16"),
    ):
        with pytest.raises(shmem.ArgumentError, match=said):
            AllReduce(**{"size": 8, "dtype": "float32"} | options)
