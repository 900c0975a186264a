"""Arrays compare, compute and print as NumPy's do where the memory is the host's."""

import operator

import numpy as np
import pytest

import gpushmem as shmem
from gpushmem.errors import ArgumentError

pytestmark = pytest.mark.host_memory
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv, operator.matmul]


def both(values):
    """The same values in symmetric and in ordinary device memory."""
    return shmem.array(values), shmem.to_device(values)


@pytest.mark.parametrize("op", [*COMPARISONS, *ARITHMETIC])
def test_operators_are_numpys(alone, op):
    values, others = np.arange(1.0, 5), np.array([1.0, 1, 3, 2])
    for a, b in zip(both(values), both(others), strict=True):
        for x, y in ((a, b), (a, others), (values, b)):
            got = op(x, y)
            assert not isinstance(got, shmem.DeviceArray)
            np.testing.assert_array_equal(got, op(values, others), strict=True)
        if op is not operator.matmul:
            np.testing.assert_array_equal(op(a, 1), op(values, 1), strict=True)
            np.testing.assert_array_equal(op(1, a), op(1, values), strict=True)


def test_comparing_with_anything_is_numpys(alone):
    values = np.arange(3)
    for a in both(values):
        for other in (None, "x", [0, 5, 2], np.int8(1)):
            for op in (operator.eq, operator.ne):
                np.testing.assert_array_equal(op(a, other), op(values, other), strict=True)
        assert (2 in a, 7 in a, 2 not in a) == (True, False, False)
        with pytest.raises(ArgumentError, match="could not be broadcast"):
            a == np.zeros(5)  # noqa: B015


def test_in_place_operators_change_the_array(alone):
    for same in both(np.arange(4, dtype="int32")):
        a = same
        a += 10
        a[1:] *= 2
        assert a is same
        assert a.numpy().tolist() == [10, 22, 24, 26]
        with pytest.raises(TypeError, match="Cannot cast"):
            a += 0.5


def test_truth_and_hash_are_numpys(alone):
    for a in both(np.zeros(3)):
        with pytest.raises(ValueError, match=r"ambiguous. Use a.any\(\)"):
            bool(a)
        assert not a[:1]
        assert a[:1] + 1
        with pytest.raises(TypeError, match="unhashable"):
            hash(a)


def test_functions_of_numpy(alone):
    for a in both(np.arange(4.0)):
        assert np.sum(a) == 6
        assert np.sqrt(a).tolist() == np.sqrt(np.arange(4.0)).tolist()
        assert np.add(a, 1, out=a) is a
        assert a.numpy().tolist() == [1, 2, 3, 4]
        assert np.add.reduce(a, where=a > 1) == 9
        assert [float(x) for x in a] == [1, 2, 3, 4]


def test_arrays_print_as_numpys(alone):
    values = np.arange(6, dtype="float32").reshape(2, 3)
    symmetric, device = both(values)
    assert str(symmetric) == str(device) == f"{device}" == str(values)
    assert repr(device) == (
        "DeviceArray([[0., 1., 2.],\n             [3., 4., 5.]], shape=(2, 3), dtype=float32)"
    )
    assert repr(symmetric[1, :2]) == (
        "SymmetricArray([3., 4.], shape=(2,), dtype=float32, pe=0, offset=0xc)"
    )
    assert "..." in repr(shmem.zeros(5000))
    assert repr(shmem.zeros((0, 3))).startswith("SymmetricArray([], shape=(0, 3), dtype=float64")
    with pytest.raises(TypeError, match="unsupported format string"):
        f"{device:.3f}"


def test_looking_waits_for_the_kernels_before(alone):
    @shmem.jit
    def count(x, times):
        for k in range(times):
            shmem.p(x, k + 1, 0)

    a = shmem.zeros(1, "int64")
    for times, look in enumerate((lambda: a == 2_000_000, lambda: str(a) == "[2000000]"), 1):
        a[0] = -times
        count[1, 1](a, 2_000_000)
        assert look()


def test_what_would_silently_be_a_copy_is_refused(alone):
    """NumPy copies there: what is written to the copy is lost."""
    a = shmem.zeros((3, 4))
    for index in ([0, 1], np.array([True, False, True]), True, 1.0, "x"):
        with pytest.raises(IndexError, match="indexed by integers and slices, not by"):
            a[index]
        with pytest.raises(IndexError, match="copy it to the host first"):
            a[index] = 1
    with pytest.raises(ValueError, match="cannot be reshaped without a copy"):
        a.T.reshape(-1)
    assert a[:0].T.reshape(-1).shape == (0,)
