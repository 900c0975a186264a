"""What `kernel[grid, block]` gives: a launch that is shown, called and bound."""

import numpy as np
import pytest

import gpushmem as shmem
from gpushmem.errors import ArgumentError, NotInitializedError
from gpushmem.kernel import Kernel, Launch


@shmem.jit
def count(x, by):
    x[0] += by


def test_launches_are_shown_as_they_are_written():
    assert repr(count) == "<kernel count>"
    assert repr(count[1, 128]) == "<kernel count[1, 128]>"
    assert repr(count[(2, 2), 1, 0, 64]) == "<kernel count[(2, 2), 1, 0, 64]>"
    launch = count[3, 4]
    assert isinstance(count, Kernel)
    assert isinstance(launch, Launch)
    assert (launch.kernel, launch.config) == (count, (3, 4))
    for config in (1, (1,), (1, 1, 0, 0, 0)):
        with pytest.raises(ArgumentError, match=r"launch it as kernel\[grid, block\]"):
            count[config]
    with pytest.raises(NotInitializedError, match="kernel count"):
        launch(1, 2)
    with pytest.raises(NotInitializedError, match="kernel count"):
        launch.bind(1, 2)


def test_a_launch_is_called_any_number_of_times(alone):
    x, stream = shmem.zeros(1), shmem.stream()
    once = count[1, 1]
    once(x, 1)
    once(x, 2)
    count[1, 1, stream, 16](x, 3)
    bound = once.bind(x, 10)
    bound()
    bound()
    on_stream = count[1, 1, stream].bind(x, 100)
    on_stream()
    stream.synchronize()
    assert x.numpy()[0] == 126


def test_what_is_preloaded_is_not_called(alone):
    x, y = shmem.zeros(4), shmem.ones(4)
    for launch in (count[1, 1], count[1, 1, shmem.stream()]):
        shmem.preload(launch, x, 1)
    shmem.preload(count[1, 1], np.zeros(3), 1)
    for call, *args in (
        (shmem.put, x, y, 0), (shmem.atomic_add, x, 1, 0), (shmem.barrier_all,),
        (shmem.wait_until, shmem.zeros(1, int), shmem.CMP_EQ, 5),
    ):  # fmt: skip
        shmem.preload(call, *args)
    shmem.synchronize()
    assert x.numpy().tolist() == [0, 0, 0, 0]
    with pytest.raises(ArgumentError, match="atomic_add"):
        shmem.preload(shmem.atomic_add, x)
    for wrong in (count, shmem.put_block, shmem.zeros, 5):
        with pytest.raises(ArgumentError, match=r"preload takes kernel\[grid, block\]"):
            shmem.preload(wrong, x)


def test_streams_wait_for_each_other(alone):
    x, a, b = shmem.zeros(1), shmem.stream(), shmem.stream()
    count[1, 1, a](x, 1)
    assert shmem.wait_stream(b, a)
    count[1, 1, b](x, 2)
    assert shmem.wait_stream(0, b)
    assert not shmem.wait_stream(a, a)
    assert not shmem.wait_stream(0, 0)
    assert x.numpy()[0] == 3
