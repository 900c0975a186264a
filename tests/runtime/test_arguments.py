"""What hosts are called with: wrong kinds are refused before anything is done."""

import numpy as np
import pytest
from gpushmem.kernels import AllReduce

import gpushmem as shmem
from gpushmem.errors import ArgumentError, HeapExhausted, NotInitializedError, TeamError
from gpushmem.ops import OPS
from gpushmem.ops.roles import of_role


@pytest.mark.parametrize("team", [1.5, None, "world", np.zeros(2), True])
def test_what_is_no_team_is_refused(alone, team):
    a = shmem.zeros(4)
    for call in (
        lambda: shmem.barrier(team), lambda: shmem.sync(team, stream=shmem.stream()),
        lambda: shmem.reduce(team, a, a, "sum"), lambda: shmem.team_n_pes(team),
        lambda: shmem.team_split_strided(team, 0, 1, 1), lambda: shmem.multicast_array(a, team),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=r"(team|parent) must be a team, not "):
            call()
    for number in (7, 1 << 40, -3):
        with pytest.raises(TeamError, match=f"there is no team {number}"):
            shmem.barrier(number)


@pytest.mark.parametrize(
    "dtype", [object, "S3", "U1", "V7", ">f4", "longdouble", [("a", "i4"), ("b", object)], [], 3]
)
def test_dtypes_that_no_kernel_has_are_not_allocated(alone, dtype):
    a, used = shmem.zeros(4), shmem.heap_stats().used
    for call in (shmem.empty, shmem.zeros, shmem.device_array, lambda _, dtype: a.view(dtype)):
        said = r"supported are bool, int8 to int64, uint8 .* records of"
        with pytest.raises(TypeError, match=said):
            call(4, dtype)
    assert shmem.heap_stats().used == used
    for values in (["a"], [None], [{}]):
        with pytest.raises(TypeError, match="device arrays cannot have dtype"):
            shmem.array(values)


def test_failed_allocations_leave_nothing_behind(alone):
    used = shmem.heap_stats().used
    for call in (
        lambda: shmem.empty((1 << 40, 1 << 40)), lambda: shmem.zeros((0, 1 << 62, 2)),
        lambda: shmem.empty((1,) * 65), lambda: shmem.full(3, "abc", float),
        lambda: shmem.full(3, np.zeros(2)), lambda: shmem.full(3, -1, "no such"),
        lambda: AllReduce(size=1 << 40, dtype="float64", algorithm="two_shot", blocks=15),
    ):  # fmt: skip
        with pytest.raises((ArgumentError, HeapExhausted)):
            call()
    assert shmem.heap_stats().used == used


def test_calls_that_cannot_be_bound_name_the_function(alone):
    a = shmem.zeros(4)
    for call, message in (
        (lambda: shmem.put(a, a), r"put\(dst, src, pe, \*, stream=None\): missing .*'pe'"),
        (lambda: shmem.reduce(0, a, a, "sum", sream=None), "unexpected keyword argument 'sream'"),
        (lambda: shmem.zeros(), r"zeros\(\) missing 1 required positional argument: 'shape'"),
        (lambda: shmem.init(heap=3), r"init\(\) got an unexpected keyword argument 'heap'"),
        (lambda: a.numpy(3), "numpy.* takes 1 positional argument but 2 were given"),
        (lambda: AllReduce(), "AllReduce: missing a required .*argument: 'size'"),
        (
            lambda: AllReduce(size=4.0, dtype="float32"),
            "AllReduce: size must be an integer, not 4.0",
        ),
        (
            lambda: AllReduce(size=4, dtype="float32", team=0),
            "AllReduce: team must be a Team, not 0",
        ),
        (
            lambda: AllReduce(size=4, dtype="float32")(None),
            "AllReduce: x must be a device array, not None",
        ),
    ):
        with pytest.raises(ArgumentError, match=message):
            call()


def test_scalars_are_elements_of_the_array(alone):
    a, pairs = shmem.zeros(4), shmem.zeros(2, [("value", "f4"), ("from", "i4")])
    shmem.p(a, np.int8(3), 0)
    shmem.p(pairs, (2.5, 7), 0)
    assert (a[0], pairs[0].item()) == (3, (2.5, 7))
    for value in ([1, 2], np.ones(1), "1", None, b"1"):
        with pytest.raises(TypeError, match="p: value must be one element of float64, not "):
            shmem.p(a, value, 0)
    with pytest.raises(ArgumentError, match=r"atomic_add: value: .*out of bounds for int32"):
        shmem.atomic_add(shmem.zeros(1, "int32"), 1 << 40, 0)


def test_an_error_of_the_callers_object_is_kept_as_the_cause(alone):
    class Broken:
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("not today")

    with pytest.raises(ArgumentError, match="array: not today") as caught:
        shmem.array(Broken())
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_each_row_says_what_its_arguments_are():
    """Without a role that is known a call of the row would not be looked at."""
    from gpushmem.backends import argument_types
    from gpushmem.backends.host import call_arguments

    for op in OPS.values():
        for role in op.roles.values():
            assert not op.kernel or of_role(argument_types.TAKES, role), (op.name, role)
            assert not op.host or of_role(call_arguments.TAKES, role), (op.name, role)


def test_nothing_is_looked_at_before_init():
    for call in (lambda: shmem.barrier(1.5), lambda: shmem.array(3), lambda: shmem.zeros("x")):
        with pytest.raises(NotInitializedError):
            call()
