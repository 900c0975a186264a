"""Which accesses are compared: runs whose elements lie between each other's are not."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpushmem.check.races import _interleaved

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


def test_columns_of_a_matrix_are_between_each_other():
    """Four columns of numbers of 8 bytes: the others, and not the column itself."""
    starts, strides, sizes = np.arange(0, 32, 8), np.full(4, 32), np.full(4, 8)
    found = _interleaved(starts, strides, sizes, 8, 32, 8)
    assert found.tolist() == [True, False, True, True]
