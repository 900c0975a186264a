"""What `kernel[grid, block]` gives: a launch that is shown, called and bound."""

import threading
import time

import numpy as np
import pytest

import gpushmem as shmem
from gpushmem.errors import ArgumentError, NotInitializedError
from gpushmem.kernel import Kernel, Launch
from tests.conftest import cli


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


def test_attributes_of_a_launch_have_no_effect_without_a_gpu(alone):
    x, stream = shmem.zeros(1), shmem.stream(priority=-5)
    for launch in (
        count.configure(1, 1), count.configure((4, 2), 1, stream, 16, cluster=(2, 2)),
        count.configure(8, 1, cluster=8), count.configure(1, 1, cluster=1),
        count.configure(1, 1, programmatic_stream_serialization=True),
    ):  # fmt: skip
        x.copy_from(0)
        launch(x, 1)
        launch.bind(x, 1)()
        assert x.numpy()[0] > 0
    for percent in (-1, 0, 100, "maxl1", "MaxShared", "default"):
        shmem.jit(count.py_func, shared_memory_carveout=percent)[1, 1](x, 1)
    shmem.preload(count.configure(2, 1, cluster=2), x, 1)
    assert repr(count.configure(2, 1, cluster=2)) == "<kernel count[2, 1, 0, 0, 2, False]>"


def test_a_dependent_launch_may_wait_for_the_one_before(run_pes):
    def body():
        from llvmlite import ir
        from numba.cuda import types
        from numba.cuda.extending import intrinsic

        @intrinsic
        def wait_for_the_one_before(typingctx):
            def codegen(context, builder, sig, args):
                nothing = ir.FunctionType(ir.VoidType(), [])
                text = "griddepcontrol.wait;"
                builder.call(ir.InlineAsm(nothing, text, "~{memory}", side_effect=True), [])
                return context.get_dummy_value()

            return types.none(), codegen

        @shmem.jit
        def add(x):
            wait_for_the_one_before()
            x[0] += 1

        shmem.init()
        x, stream = shmem.zeros(1), shmem.stream()
        for _ in range(3):
            add.configure(1, 1, stream, programmatic_stream_serialization=True)(x)
        result = x.numpy()[0]
        shmem.finalize()
        return result

    assert run_pes(body, 1) == [3]


@pytest.mark.parametrize(
    ("grid", "cluster", "said"),
    [
        (5, 2, "grid dimension x is 5, which is not divisible by the cluster's 2: the grid counts"),
        ((4, 3), (2, 2), "grid dimension y is 3, which is not divisible by the cluster's 2"),
        (16, 16, "cluster dimension x is 16; it must be 1 to 8"),
        ((4, 4, 4), (2, 4, 2), "a cluster of 2 x 4 x 2 has 16 blocks; at most 8 are possible"),
        (4, 0, "cluster dimension x is 0; it must be 1 to 8"),
        (4, "2", "cluster must be an int or a tuple of up to 3 ints, not '2'"),
        (4, (1, 1, 1, 1), "cluster must have 1 to 3 dimensions, not 4"),
    ],
)
def test_clusters_are_checked_without_a_gpu(alone, grid, cluster, said):
    with pytest.raises(ArgumentError, match=said):
        count.configure(grid, 1, cluster=cluster)(shmem.zeros(1), 1)


def test_attributes_of_other_kinds_are_refused(alone):
    with pytest.raises(ArgumentError, match="serialization must be True or False, not 1"):
        count.configure(1, 1, programmatic_stream_serialization=1)
    with pytest.raises(ArgumentError, match="unexpected keyword argument 'clusters'"):
        count.configure(1, 1, clusters=2)
    with pytest.raises(ArgumentError, match="stream: priority must be -5 to 0, not 1"):
        shmem.stream(1)
    for value in (101, -2, "most", None, 0.5):
        kernel = shmem.jit(count.py_func, shared_memory_carveout=value)
        with pytest.raises(ArgumentError, match=r"jit: shared_memory_carveout must be 0 to 100 \("):
            kernel[1, 1](shmem.zeros(1), 1)


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
    flag, nothing = shmem.zeros(1, "uint64"), shmem.zeros(1)
    a, b = (shmem.stream(nonblocking=True) for _ in range(2))
    shmem.signal_wait_until(flag, shmem.CMP_EQ, 1, stream=a)
    count[1, 1, a](x, 10)
    shmem.wait_stream(b, a)  # the host goes on
    shmem.put(x, nothing, 0, stream=b)
    count[1, 1, b](x, 7)
    shmem.signal_op(flag, 1, shmem.SIGNAL_SET, 0)
    assert x.numpy()[0] == 7


def test_other_libraries_are_called_in_a_streams_order(alone):
    x, flag, stream, seen = shmem.zeros(1), shmem.zeros(1, "uint64"), shmem.stream(), []

    def look(handle):
        seen.append((handle, float(np.asarray(x)[0])))

    shmem.signal_wait_until(flag, shmem.CMP_EQ, 1, stream=stream)
    count[1, 1, stream](x, 2)
    shmem.on_stream(stream, look)
    count[1, 1, stream](x, 3)
    assert not seen
    shmem.signal_op(flag, 1, shmem.SIGNAL_SET, 0)
    stream.synchronize()
    assert seen == [(None, 2)]
    with shmem.capture(stream) as graph:
        count[1, 1, stream](x, 10)
        shmem.on_stream(stream, look)
    for _ in range(2):
        graph.launch(stream)
    stream.synchronize()
    assert seen[1:] == [(None, 15), (None, 25)]
    shmem.on_stream(0, lambda handle: 1 / 0)
    count[1, 1](x, 1)  # is skipped
    with pytest.raises(ZeroDivisionError):
        shmem.synchronize()
    assert x.numpy()[0] == 25
    with pytest.raises(ArgumentError, match="call is 3, and must be a function"):
        shmem.on_stream(stream, 3)


def test_a_graph_is_captured_and_launched(alone):
    x, y, stream = shmem.zeros(1), shmem.zeros(1), shmem.stream()
    signal = shmem.zeros(1, "uint64")
    bound = count[1, 1, stream].bind(x, 2)
    with shmem.capture(stream) as graph:
        bound()
        count[1, 1, stream](x, 3)
        shmem.put(y, x, 0, stream=stream)
        shmem.atomic_add(signal, 1, 0, stream=stream)
        shmem.signal_wait_until(signal, shmem.CMP_GE, 1, stream=stream)
        count[1, 1, stream](x, 10)
        count[1, 1](y, 1000)  # on another stream: it runs now
    assert (x.numpy()[0], y.numpy()[0]) == (0, 1000)
    graph.launch(stream)
    stream.synchronize()
    assert (x.numpy()[0], y.numpy()[0], signal.numpy()[0]) == (15, 5, 1)
    graph.launch()
    graph.launch(shmem.stream())
    assert (x.numpy()[0], y.numpy()[0], signal.numpy()[0]) == (45, 35, 3)
    bound()
    assert x.numpy()[0] == 47


def test_a_stream_joins_the_capture_of_one_that_it_waits_for(alone):
    x, y = shmem.zeros(1), shmem.zeros(1)
    stream, beside, other = (shmem.stream(nonblocking=True) for _ in range(3))
    count[1, 1, beside](y, 1)  # before the capture
    bound = count[1, 1, beside].bind(y, 10)
    with shmem.capture(stream) as graph:
        count[1, 1, stream](x, 3)
        shmem.wait_stream(stream, other)  # which is not captured
        assert not shmem.is_capturing(beside)
        shmem.wait_stream(beside, stream)
        assert shmem.is_capturing(beside)
        assert not shmem.is_capturing(other)
        shmem.put(y, x, 0, stream=beside)
        bound()
        shmem.wait_stream(stream, beside)
        shmem.put(x, y, 0, stream=stream)
    assert not shmem.is_capturing(beside)
    assert (x.numpy()[0], y.numpy()[0]) == (0, 1)
    for want in (13, 26, 39):
        graph.launch(other)
        assert (x.numpy()[0], y.numpy()[0]) == (want, want)
    bound()
    assert y.numpy()[0] == 49


def test_what_a_capture_cannot_do_is_refused(alone):
    x, stream = shmem.zeros(1), shmem.stream()
    cannot = pytest.raises(ArgumentError, match="the default stream cannot be captured")
    with cannot, shmem.capture(0):
        pass
    with pytest.raises(ArgumentError, match="a stream comes from gpushmem"):
        shmem.capture("a stream")
    for wait in (
        shmem.synchronize, stream.synchronize, x.numpy, shmem.barrier_all,
        lambda: count[1, 1, stream](np.zeros(1), 1), lambda: shmem.wait_stream(0, stream),
        lambda: shmem.zeros(1),
    ):  # fmt: skip
        captured = pytest.raises(ArgumentError, match="a stream is being captured")
        with captured, shmem.capture(stream) as graph:
            wait()
        with pytest.raises(ArgumentError, match="before its capture has ended"):
            graph.launch()
    already = pytest.raises(ArgumentError, match="captured already")
    with shmem.capture(stream), already, shmem.capture(stream):
        pass
    count[1, 1, stream](x, 1)
    assert x.numpy()[0] == 1


def test_other_threads_wait_while_a_stream_is_captured(alone):
    """For what runs: the capture is the business of its thread."""
    x, stream, seen = shmem.zeros(1), shmem.stream(), []

    def wait():
        count[1, 1](x, 2)
        shmem.synchronize()
        seen.append(x.numpy()[0])

    with shmem.capture(stream) as graph:
        count[1, 1, stream](x, 10)
        other = threading.Thread(target=wait)
        other.start()
        other.join()
    assert seen == [2]
    graph.launch(stream)
    assert x.numpy()[0] == 12


GRAPH = """
import gpushmem as shmem

@shmem.jit
def count(x, pe):
    shmem.put(x[1:], x[:1], pe)
    x[0] += 1

with shmem.session():
    x, stream = shmem.zeros(2), shmem.stream()
    with shmem.capture(stream) as graph:
        for _ in range(3):
            count[1, 1, stream](x, shmem.my_pe())
            shmem.quiet(stream=stream)
    for _ in range(4):
        graph.launch(stream)
    stream.synchronize()
    print(x.numpy().tolist())
"""


@pytest.mark.parametrize("option", [("--check",), ("--memory", "weak", "--seed", "1")])
def test_launches_of_a_graph_are_seen_one_by_one(tmp_path, option):
    script = tmp_path / "graph.py"
    script.write_text(GRAPH)
    done = cli("run", "-n", "1", *option, script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[12.0, 11.0]" in done.stdout


@shmem.jit
def to_no_pe(x):
    shmem.p(x, 1, 7)


@shmem.jit
def wait_for_one(signal):
    shmem.signal_wait_until(signal, shmem.CMP_GE, 1)


def poll(ask):
    end = time.monotonic() + 20
    while time.monotonic() < end:
        ask()


@pytest.mark.parametrize("name", ["signal_fetch", "test", "atomic_fetch"])
def test_who_polls_hears_that_a_kernel_has_failed(alone, name):
    x, signal = shmem.zeros(1), shmem.zeros(1, "uint64")
    ask = {
        "signal_fetch": lambda: shmem.signal_fetch(signal),
        "test": lambda: shmem.test(signal, shmem.CMP_GE, 1),
        "atomic_fetch": lambda: shmem.atomic_fetch(signal, 0),
    }[name]
    for stream in (0, shmem.stream()):
        to_no_pe[1, 1, stream](x)
        with pytest.raises(ArgumentError, match=r"kernel to_no_pe, .*PE 7"):
            poll(ask)
        ask()
        count[1, 1, stream](x, 1)
        shmem.synchronize()
    assert x.numpy()[0] == 2


def test_who_polls_does_not_wait_for_what_a_failed_stream_waits_for(alone):
    x, signal = shmem.zeros(1), shmem.zeros(1, "uint64")
    failing, other = shmem.stream(), shmem.stream()
    wait_for_one[1, 1, other](signal)
    to_no_pe[1, 1, failing](x)
    shmem.wait_stream(failing, other)
    for _ in range(2):
        with pytest.raises(ArgumentError, match="kernel to_no_pe"):
            poll(lambda: shmem.signal_fetch(signal))
    shmem.signal_op(signal, 1, shmem.SIGNAL_SET, 0)
    with pytest.raises(ArgumentError, match="kernel to_no_pe"):
        shmem.synchronize()
    assert shmem.signal_fetch(signal) == 1
