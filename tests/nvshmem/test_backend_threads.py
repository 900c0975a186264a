"""Threads, and libraries that make another GPU the current one, under the emulation."""

import threading

import numpy as np
import pytest

import gpushmem as shmem
from tests.nvshmem import emulation, host

pytestmark = pytest.mark.skipif(emulation.missing() is not None, reason=str(emulation.missing()))


def put_to_the_right(me, n, dst):
    src = shmem.to_device(np.full(4, 1000 * me + 7.0))
    shmem.put(dst, src, (me + 1) % n)
    stream = shmem.stream()
    shmem.put(dst[:1], src[:1], (me + 1) % n, stream=stream)
    stream.synchronize()
    shmem.barrier_all()
    return dst.numpy().tolist()


@host.job
def in_another_thread(me, n):
    dst = shmem.full(4, -1.0)
    errors, seen = [], []

    def body():
        try:
            seen.append(put_to_the_right(me, n, dst))
        except Exception as error:
            errors.append(repr(error))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return errors, seen


@host.job
def beside_another_gpu(me, n):
    from cuda.core import Device

    dst = shmem.full(4, -1.0)
    mine = Device().device_id
    Device((mine + 1) % 2).set_current()
    return mine, put_to_the_right(me, n, dst)


def test_any_thread_may_call():
    for pe, (errors, seen) in enumerate(host.run(2, in_another_thread)):
        assert errors == []
        assert seen == [[1000 * (1 - pe) + 7.0] * 4]


def test_another_gpu_may_be_current():
    for pe, (mine, seen) in enumerate(host.run(2, beside_another_gpu)):
        assert mine == pe
        assert seen == [1000 * (1 - pe) + 7.0] * 4
