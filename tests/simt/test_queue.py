"""Queues of launches, which run without Python in between: order, failures, cancellation, ends."""

import gc
import random
import signal
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from numba import cuda

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.artifacts.launch_shape import shape_of
from gpushmem.errors import KernelError
from gpushmem.simt.base.embedder import Embedder, embed
from gpushmem.simt.run import cores, queue
from gpushmem.simt.run.graph import captured
from gpushmem.simt.run.kernel import Kernel, running
from gpushmem.simt.run.stream import Device

ONE = shape_of(1, 1)


def count(x, by):
    x[0] += by


def count_on_fibers(x, by):
    cuda.syncwarp()
    x[0] += by


def in_turn(x, turn, wrong):
    """Takes its turn, and notes if it was not."""
    if x[0] != turn:
        wrong[0] += 1
    x[0] = turn + 1


def fail_at(x, when):
    if x[0] == when:
        raise ValueError("now")
    x[0] += 1


def wait_for(flag, x):
    while cuda.atomic.add(flag, 0, 0) == 0:
        cuda.syncwarp()
    x[0] += 1


KERNELS = {f.__name__: Kernel(f) for f in (count, count_on_fibers, in_turn, fail_at, wait_for)}


def prepare(function, *args, shape=ONE):
    return KERNELS[function.__name__].prepare(shape, args)


def until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize("function", [count, count_on_fibers])
def test_one_launch_queued_many_times(function):
    device, x = Device(), np.zeros(1, np.int64)
    launch = prepare(function, x, 3)
    total = 0
    for n in [1, 2, 1000, 3, 5000, 1]:
        for _ in range(n):
            device.default.submit(launch)
        total += 3 * n
        device.synchronize()
        assert x[0] == total


def test_one_launch_on_many_streams_at_once():
    def add(x):
        cuda.syncwarp()
        cuda.atomic.add(x, 0, 1)

    device, x = Device(), np.zeros(1, np.int64)
    launch = Kernel(add).prepare(shape_of(2, 40), (x,))
    streams = [device.stream() for _ in range(4)]
    for _ in range(200):
        for stream in streams:
            stream.submit(launch)
    device.synchronize()
    assert x[0] == 200 * 4 * 80


@pytest.mark.parametrize("seed", range(5))
def test_work_on_the_default_stream_is_in_order_with_all_other(seed):
    """Every second launch is on the default stream, so each has one place in the order."""
    device, x, wrong = Device(), np.zeros(1, np.int64), np.zeros(1, np.int64)
    others, rng = [device.stream() for _ in range(3)], random.Random(seed)
    for turn in range(2000):
        stream = device.default if turn % 2 else rng.choice(others)
        if rng.random() < 0.1:  # in Python

            def take_turn(turn=turn):
                wrong[0] += x[0] != turn
                x[0] = turn + 1

            stream.submit(take_turn)
        else:
            stream.submit(prepare(in_turn, x, turn, wrong))
        if rng.random() < 0.01:
            stream.synchronize()
            assert x[0] == turn + 1
    device.synchronize()
    assert (x[0], wrong[0]) == (2000, 0)


def test_streams_do_not_wait_for_each_other():
    device, flag, x = Device(), np.zeros(1, np.int64), np.zeros(2, np.int64)
    held, free = device.stream(), device.stream()
    held.submit(prepare(wait_for, flag, x[:1]))
    for _ in range(100):
        free.submit(prepare(count, x[1:], 1))
    free.synchronize()
    assert x.tolist() == [0, 100]
    assert not held.done()
    flag[0] = 1
    device.synchronize()
    assert x.tolist() == [1, 100]


def test_a_failure_takes_the_rest_of_its_queue_and_no_other():
    device = Device()
    stream, other = device.stream(), device.stream()
    for _ in range(20):
        x, y = np.zeros(1, np.int64), np.zeros(1, np.int64)
        launch, calls = prepare(fail_at, x, 7), []
        for _ in range(50):
            stream.submit(launch)
            other.submit(prepare(count, y, 1))
        stream.submit(lambda calls=calls: calls.append(1))
        with pytest.raises(KernelError, match=r"kernel fail_at.*now"):
            stream.synchronize()
        stream.synchronize()
        other.synchronize()
        assert (x[0], y[0], calls) == (7, 50, [])
        stream.submit(prepare(count, x, 100))
        stream.synchronize()
        assert x[0] == 107


def test_a_failure_in_python_takes_the_launches_behind_it():
    device, x = Device(), np.zeros(1, np.int64)
    device.default.submit(prepare(count, x, 1))
    device.default.submit(lambda: 1 // 0)
    device.default.submit(prepare(count, x, 10))
    with pytest.raises(ZeroDivisionError):
        device.synchronize()
    assert x[0] == 1


def test_what_waits_is_cancelled_with_all_behind_it():
    device, flag, x = Device(), np.zeros(1, np.int64), np.zeros(1, np.int64)
    for _ in range(5):
        for _ in range(10):
            device.default.submit(prepare(wait_for, flag, x))
        until(running)
        (run,) = running()
        assert (run.name, run.blocks, run.fibers) == ("wait_for", 1, True)
        assert running() == {run}, "the same object while it runs"
        device.cancel()
        with pytest.raises(KernelError, match="cancelled"):
            device.synchronize()
        assert running() == set()
    assert x[0] == 0
    flag[0] = 1
    device.default.submit(prepare(wait_for, flag, x))
    device.synchronize()
    assert x[0] == 1, "a cancelled launch leaves nothing to the next in its place"


def test_arguments_live_until_the_launch_has_ended():
    class Owner(np.ndarray):  # can be referred to weakly
        pass

    device, flag, x = Device(), np.zeros(1, np.int64), np.zeros(1, np.int64)
    device.default.submit(prepare(wait_for, flag, x))
    argument = np.ones(1000, np.int64).view(Owner)
    alive = weakref.ref(argument)
    device.default.submit(prepare(count, argument, 1))
    del argument
    gc.collect()
    assert alive() is not None
    flag[0] = 1
    device.synchronize()
    gc.collect()
    assert alive() is None


def test_a_signal_handler_may_launch_at_any_time():
    """On the stream that the main thread submits to, or with an error that ends the submission."""
    device, x, y = Device(), np.zeros(1, np.int64), np.zeros(1, np.int64)
    stream, handled = device.stream(), [0]

    class Interrupt(Exception):
        pass

    handling = threading.Lock()

    def handler(*_):
        if handling.acquire(blocking=False):  # it is not interrupted by itself
            stream.submit(prepare(count, y, 1))
            handled[0] += 1
            if handled[0] % 5 == 0:
                stream.synchronize()
            handling.release()
            if handled[0] % 2 and sys._getframe(1).f_code.co_filename.endswith("stream.py"):
                raise Interrupt

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 1e-3, 2e-4)
    submitted = interrupted = 0
    try:
        end = time.monotonic() + 2
        while time.monotonic() < end:
            try:
                for _ in range(100):
                    stream.submit(prepare(count, x, 1))
                    submitted += 1
            except Interrupt:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    device.synchronize()
    assert handled[0] > 100
    assert y[0] == handled[0]
    assert submitted <= x[0] <= submitted + interrupted  # one may be queued and not counted
    with pytest.raises(KernelError, match="fail_at"):
        stream.submit(prepare(fail_at, x, int(x[0])))
        stream.synchronize()


def test_prints_are_in_order_and_before_the_end_of_the_wait(capfd):
    def show(k):
        print("launch", k)

    device, kernel = Device(), Kernel(show)
    for k in range(20):
        device.default.submit(kernel.prepare(ONE, (k,)))
    device.synchronize()
    assert capfd.readouterr().out == "".join(f"launch {k}\n" for k in range(20))


def test_a_grid_that_takes_long_is_shared_by_cores(monkeypatch):
    def mark(out):
        out[cuda.blockIdx.x] += 1
        if out[cuda.blockIdx.x] == 3:
            raise ValueError("third")

    monkeypatch.setenv(cores.VARIABLE, "3")
    usual, kernel = int(queue.of_process["worth"][0]), Kernel(mark)
    device, out = Device(), np.zeros(1000, np.int64)
    shared = []
    monkeypatch.setattr(cores, "run", lambda parts, run=cores.run: shared.append(run(parts)))
    try:
        queue.of_process["worth"] = -1
        launch = kernel.prepare(shape_of(1000, 1), (out,))
        for _ in range(2):
            device.default.submit(launch)
        device.synchronize()
        assert (out == 2).all()
        assert len(shared) == 2
        for _ in range(2):
            device.default.submit(launch)
        with pytest.raises(KernelError, match="third"):
            device.synchronize()
    finally:
        queue.of_process["worth"] = usual


def test_the_embedder_can_read_which_kernel_runs():
    place = np.zeros(40, np.uint8)
    embed(Embedder(None, lambda failure: failure, address_of(place)))

    def told():
        return place.tobytes().rstrip(b"\0").decode()

    try:
        device, flags, x = Device(), np.zeros((2, 1), np.int64), np.zeros(1, np.int64)
        first, second = device.stream(), device.stream()
        first.submit(prepare(wait_for, flags[0], x))
        until(lambda: told() == "wait_for")

        def a_kernel_whose_name_is_longer_than_forty_letters(flag):
            while cuda.atomic.add(flag, 0, 0) == 0:
                cuda.syncwarp()

        long = Kernel(a_kernel_whose_name_is_longer_than_forty_letters)
        second.submit(long.prepare(ONE, (flags[1],)))
        until(lambda: told() == long.name[:40])
        assert {run.name for run in running()} == {"wait_for", long.name}
        flags[1] = 1
        second.synchronize()
        assert told() == "wait_for"
        flags[0] = 1
        first.synchronize()
        assert told() == ""
    finally:
        embed(None)


def test_an_idle_stream_burns_no_processor_and_starts_at_once():
    device, x = Device(), np.zeros(1, np.int64)
    launch = prepare(count, x, 1)
    device.default.submit(launch)
    device.synchronize()
    time.sleep(0.05)
    began = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - began < 0.1
    device.default.submit(launch)
    until(lambda: x[0] == 2, 1)


def test_hosts_wait_for_different_parts_of_a_queue():
    device, flags, x = Device(), np.zeros((8, 1), np.int64), np.zeros(1, np.int64)
    seen = {}

    def wait(k, count):
        while not device.default.queue.comes(count)():
            pass
        seen[k] = int(x[0])

    threads = []
    for k in range(8):
        device.default.submit(prepare(wait_for, flags[k], x))
        threads.append(threading.Thread(target=wait, args=(k, device.default.queue.put_so_far)))
    for thread in threads[::-1]:
        thread.start()
    for k in range(8):
        assert sorted(seen) == list(range(k))
        flags[k] = 1
        until(lambda k=k: k in seen)
        assert seen[k] == k + 1
    for thread in threads:
        thread.join()


def test_a_stream_ends_with_its_last_reference():
    def workers():
        return sum(thread.name.startswith("Thread") for thread in threading.enumerate())

    device, x = Device(), np.zeros(1, np.int64)
    before = workers()
    for _ in range(10):
        stream = device.stream()
        stream.submit(prepare(count, x, 1))
    device.synchronize()
    assert x[0] == 10
    del stream
    gc.collect()
    until(lambda: workers() <= before)


# --- graphs


def test_a_graph_runs_what_was_captured_each_time():
    device, x = Device(), np.zeros(1, np.int64)
    stream, other = device.stream(), device.stream()
    calls = []
    with captured(stream, lambda of: of) as graph:
        for _ in range(10):
            stream.submit(prepare(count, x, 1))
            stream.submit(prepare(count_on_fibers, x, 10))
        stream.submit(lambda: calls.append(int(x[0])))
        stream.submit(prepare(count, x, 100))
    assert stream.done()
    assert x[0] == 0
    for _ in range(3):
        graph.launch(stream)
    graph.launch(device.default)
    graph.launch(other)
    device.synchronize()
    assert x[0] == 5 * 210
    assert calls == [110 + 210 * k for k in range(5)]
    with captured(other, lambda of: of) as twice:
        graph.launch(other)
        graph.launch(other)
    twice.launch(stream)
    stream.synchronize()
    assert x[0] == 7 * 210


def test_a_graph_keeps_arguments_and_ends_at_a_failure():
    class Owner(np.ndarray):
        pass

    device = Device()
    stream, x = device.stream(), np.zeros(1, np.int64).view(Owner)
    alive, y = weakref.ref(x), np.zeros(1, np.int64)
    with captured(stream, lambda of: of) as graph:
        for _ in range(10):
            stream.submit(prepare(fail_at, x, 25))
        stream.submit(prepare(count, y, 1))
    del x
    for _ in range(4):
        graph.launch(stream)
    with pytest.raises(KernelError, match=r"kernel fail_at.*now"):
        stream.synchronize()
    assert (alive()[0], y[0]) == (25, 2)
    alive()[0] = 26
    graph.launch(stream)
    stream.synchronize()
    assert (alive()[0], y[0]) == (36, 3)
    del graph
    gc.collect()
    assert alive() is None


def test_prints_of_a_graph_come_from_the_launch_that_prints(capfd):
    def show(k):
        if k % 2:
            print("launch", k)

    device, kernel = Device(), Kernel(show)
    stream = device.stream()
    with captured(stream, lambda of: of) as graph:
        for k in range(6):
            stream.submit(kernel.prepare(ONE, (k,)))
    graph.launch(stream)
    graph.launch(stream)
    stream.synchronize()
    assert capfd.readouterr().out == "launch 1\nlaunch 3\nlaunch 5\n" * 2
