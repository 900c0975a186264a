"""Which accesses are compared: runs whose elements lie between each other's are not."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpushmem.check.races import _interleaved, _overlaps

SIZE = st.integers(1, 8)


@st.composite
def runs(draw):
    """Start, stride and size of a run, and how many elements it has."""
    times = draw(st.integers(1, 5))
    stride = draw(st.integers(-20, 20)) if times > 1 else 0
    return draw(st.integers(0, 60)), stride, draw(SIZE), times


def touched(start, stride, size, times):
    return {start + k * stride + byte for k in range(times) for byte in range(size)}


@given(runs(), runs())
def test_runs_between_each_other_share_no_byte(one, other):
    apart = _interleaved(*(np.array([number]) for number in one[:3]), *other[:3])
    assert not (apart and touched(*one) & touched(*other))


@given(runs(), runs())
def test_elements_overlap_that_share_a_byte_and_no_others(one, other):
    first, second = (
        SimpleNamespace(start=b, stride=d, size=n, times=k, step=1, end=b + d * (k - 1) + n)
        for b, d, n, k in (one, other)
    )
    elements = [[touched(b + i * d, 0, n, 1) for i in range(k)] for b, d, n, k in (one, other)]
    assert {*_overlaps(first, second)} == {
        (i, j) for i, a in enumerate(elements[0]) for j, b in enumerate(elements[1]) if a & b
    }


def test_columns_of_a_matrix_are_between_each_other():
    """Four columns of numbers of 8 bytes: the others, and not the column itself."""
    starts, strides, sizes = np.arange(0, 32, 8), np.full(4, 32), np.full(4, 8)
    found = _interleaved(starts, strides, sizes, 8, 32, 8)
    assert found.tolist() == [True, False, True, True]
