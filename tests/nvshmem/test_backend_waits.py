"""What host calls wait for, on the emulated driver: a call that would wait for a held stream fails.

A stream that is held is as one with a kernel that runs until the host does something.
"""

import gc
import time

import numpy as np
import pytest
from gpushmem.kernels import Plan

import gpushmem as shmem
from gpushmem.errors import WaitTimeout
from gpushmem.ops import OPS
from tests.nvshmem import emulation, host
from tests.nvshmem.emulation import driver
from tests.nvshmem.test_backend_operations import KERNELS, QUICK, arguments_of

pytestmark = pytest.mark.skipif(emulation.missing() is not None, reason=str(emulation.missing()))

POISON = -7
VIEWS = ("peer_array", "multicast_array")
QUESTIONS = ("my_pe", "n_pes", "pe_accessible", "ask_smem")  # wait for nothing
# Of all rows: those that hosts call on their own, without waiting for kernels.
ALONE = [
    op.name for op in OPS.values()
    if op.host and not op.facts.meets and not op.base.startswith("team")
    and op.base not in VIEWS + QUESTIONS
]  # fmt: skip
BY_CUBLAS = "gemm_batched", "gemm_scaled"  # see test_backend_operations
BY_NVSHMEM = [name for name in ALONE if name not in (*KERNELS, *BY_CUBLAS)]


@shmem.jit
def one(x):
    x[0] = 1


def given_to(op, n):
    """Arguments for a row, its signals' operation among them; what waits need not wait."""
    given = arguments_of(op, n)
    extra = {"op": shmem.SIGNAL_SET, "cmp": shmem.CMP_GE}
    given |= {name: extra[name] for name in op.params if name in extra}
    if op.base == "signal_wait_until":
        given["value"] = 0
    if op.base == "get":
        given["dst"] = given["dst"][:3]
    return {name: given[name] for name in op.params if name in given}


def own_stream():
    return shmem.runtime.current().backend._device.own


@host.job
def beside_the_default_stream(me, n, names):
    """Not even their first calls wait, if they were preloaded."""
    x = shmem.zeros(4)
    launch = one[1, 1].bind(x)
    for name in names:
        op = OPS[name]
        given = given_to(op, n)
        shmem.preload(op.function, **given)
        assert driver.launches() == [], "nothing is launched"
        driver.hold(0)
        launch()
        shmem.set_timeout(5)
        op.function(**given)
        assert driver.forget_waits() == [], name
        driver.let_go(0)
        driver.clear()


def test_operations_wait_for_no_kernel_of_the_default_stream():
    host.run(2, beside_the_default_stream, [*BY_NVSHMEM, *QUICK], limit=120)


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(8))
def test_no_operation_waits_for_a_kernel_of_the_default_stream(first):
    alone = [name for name in KERNELS if not OPS[name].facts.meets]  # others wait for the GPU first
    host.run(1, beside_the_default_stream, alone[first::8], limit=120)


@host.job
def own_is_held(me, n, names):
    """Waits for a call's own stream end with the timeout; calls on other streams do not wait."""
    stream = shmem.stream()
    for name in names:
        op = OPS[name]
        given = given_to(op, n)
        queued = "stream" in op.function.__signature__.parameters
        for more in ({}, {"stream": stream}) if queued else ({},):
            shmem.preload(op.function, **given, **more)
        own = own_stream()
        driver.hold(own)
        shmem.set_timeout(0.05)
        if queued:
            op.function(**given, stream=stream)
        began = time.monotonic()
        with pytest.raises(WaitTimeout, match=f"{name} has waited for 0"):
            op.function(**given)
        assert time.monotonic() - began < 1
        assert driver.forget_waits() == [], name
        driver.let_go(own)
        shmem.set_timeout(None)


def test_waits_for_an_operation_end_with_the_timeout():
    host.run(1, own_is_held, [*BY_NVSHMEM, *QUICK], limit=120)


@host.in_pes(1)
def test_copies(me, n):
    """Copies are of our own stream, and their waits end."""
    device = shmem.runtime.current().backend._device
    x = shmem.to_device(np.arange(6.0))
    driver.hold(0)
    assert device.read(x.native()).tolist() == [0, 1, 2, 3, 4, 5]
    device.write(x.native()[:1], 7)
    driver.let_go(0)
    driver.hold(device.own)
    shmem.set_timeout(0.05)
    for copy in (lambda: device.read(x.native()), lambda: device.write(x.native(), 9)):
        with pytest.raises(WaitTimeout):
            copy()
    driver.let_go(device.own)
    shmem.set_timeout(None)
    assert x.numpy().tolist() == [7, 1, 2, 3, 4, 5]


@host.in_pes(1)
def test_large_copies_go_in_pieces(me, n):
    """More than the pinned memory holds: contiguous, and rows with gaps between them."""
    from gpushmem.backends.nvshmem.gpu import device

    device.PIECE = 4096
    rows = np.random.default_rng(me).integers(0, 1000, (130, 40)).astype(np.int64)
    x = shmem.to_device(rows)
    assert (x.numpy() == rows).all()
    for index in ((slice(None), slice(3, 20)), slice(None, None, 3), (slice(None), 5)):
        assert (x[index].numpy() == rows[index]).all()
        rows[index] = x[index] = -rows[index]
        assert (x.numpy() == rows).all()


# --- loading


@host.job
def first_launches(me, n):
    """A launch that was not preloaded waits for all that runs: CUDA may, so the emulation does."""
    x, stream = shmem.zeros(4), shmem.stream(nonblocking=True)
    driver.hold(stream)
    with pytest.raises(Exception, match=r"LAUNCH_TIMEOUT|waits for"):
        one[1, 1](x)
    (text,) = driver.forget_waits()
    assert text.endswith(f"waits for stream {stream.__cuda_stream__()[1]:#x}, which is held")
    driver.let_go(stream)
    shmem.preload(one[1, 1], x)
    shmem.preload(one[1, 1], np.zeros(3, np.int32))
    assert driver.launches() == []
    driver.hold(stream)
    one[1, 1](x)
    assert len(driver.launches()) == 1
    driver.let_go(stream)


@pytest.mark.parametrize("loading", ["EAGER", "LAZY"])
def test_a_first_launch_may_wait_for_all_kernels(loading):
    host.run(1, first_launches, CUDA_MODULE_LOADING=loading)


def loading(asked):
    from cuda.bindings import driver as cuda

    host.init()
    _, mode = cuda.cuModuleGetLoadingMode()
    shmem.finalize()
    return mode.name


@pytest.mark.parametrize("asked", ["", "LAZY"])
def test_code_is_loaded_eagerly_unless_the_user_wants_it_otherwise(asked):
    (mode,) = host.run(1, loading, asked, CUDA_MODULE_LOADING=asked)
    assert mode == f"CU_MODULE_{asked or 'EAGER'}_LOADING"


@host.in_pes(1, limit=120)
def test_code_that_nvshmem_knows_stays_loaded(me, n):
    """A kernel that goes with its function stays loaded, as NVSHMEM knows its code."""
    from tests.nvshmem.emulation import nvshmem_bindings

    def call():
        @shmem.jit
        def kernel(x):
            shmem.p(x, 3.0, 0)

        kernel[1, 1](shmem.device_array(3))

    call()
    gc.collect()
    stream = shmem.stream()
    driver.hold(stream)
    call()  # the same code, found again: nothing is loaded
    gc.collect()
    driver.let_go(stream)
    assert len({launch.library for launch in driver.launches()}) == 1
    assert set(nvshmem_bindings.ready_libraries.values()) == {1}
    shmem.zeros(3)  # NVSHMEM writes to all that it was told of


# --- streams


class Wrapped:
    """A stream as PyTorch gives them: a new object each time."""

    def __init__(self, stream):
        self.cuda_stream = stream.__cuda_stream__()[1] if stream else 0


@host.in_pes(1)
def test_other_libraries_get_a_streams_handle_at_once(me, n):
    stream, seen = shmem.stream(), []
    handle = stream.__cuda_stream__()[1]
    driver.hold(stream)
    for given in (stream, Wrapped(stream), 0):
        shmem.on_stream(given, seen.append)
    assert seen == [handle, handle, 0]
    driver.let_go(stream)


@host.in_pes(1)
def test_one_stream_waits_for_another(me, n):
    a, b, x = shmem.stream(), shmem.stream(), shmem.zeros(4)
    on = {stream: one[1, 1, stream].bind(x) for stream in (a, b, 0)}
    for first, second in ((a, b), (a, 0), (0, b)):
        driver.clear()
        driver.hold(first)
        on[first]()
        assert shmem.wait_stream(second, Wrapped(first))
        on[second]()
        assert driver.launches() == []
        driver.let_go(first)
        handles = [launch.stream for launch in driver.launches()]
        assert len(set(handles)) == len(handles) == 2
        if first:
            assert handles[0] == first.__cuda_stream__()[1]
    driver.hold(a)
    on[a]()
    for same in ((a, Wrapped(a)), (0, Wrapped(0)), (None, 0), (Wrapped(b), Wrapped(b))):
        assert not shmem.wait_stream(*same)
    driver.clear()
    on[b]()
    assert len(driver.launches()) == 1
    driver.let_go(a)


@shmem.jit
def step(x, team, epochs):
    x[0] += 1


class Steps(Plan):
    """A plan of one small kernel."""

    def __call__(self, x, *, stream=0):
        self.launch(step, stream, x)


@host.in_pes(1)
def test_plans_on_streams_that_others_wrap(me, n):
    from cuda.core import Device

    plan, x = Steps(), shmem.zeros(4)
    a, b = (shmem.stream(nonblocking=True) for _ in range(2))
    plan(x)
    driver.hold(a)  # nobody waits for all streams
    plan(x, stream=Wrapped(b))
    (bound,) = plan._bound.values()
    for _ in range(3):
        plan(x, stream=Wrapped(b))
        assert list(plan._bound.values()) == [bound], "another wrapper of the same stream"
    plan(x, stream=Wrapped(a))
    driver.clear()
    plan(x, stream=b)
    assert driver.launches() == [], "on b, behind what waits on a"
    driver.let_go(a)
    assert [launch.stream for launch in driver.launches()][1:] == [b.__cuda_stream__()[1]]
    driver.clear()
    builder = Device().create_graph_builder()
    builder.begin_building()
    plan(x, stream=builder)
    plan(x, stream=Wrapped(builder.stream))
    graph = builder.end_building().complete()
    plan(x)
    assert len(driver.launches()) == 1
    graph.launch(Device().create_stream())
    assert len(driver.launches()) == 3
    plan.free()


# --- freeing


@host.in_pes(2)
def test_arrays_are_freed_without_waiting(me, n):
    """Arrays go at any time, in a capture and while kernels run: their memory goes later."""
    from cuda.core import Device

    stream, before = shmem.stream(), driver.memory_used(me)
    x = shmem.device_array(1 << 20, np.uint8)
    driver.hold(stream)
    del x
    gc.collect()
    assert driver.waits() == []
    assert driver.memory_used(me) - before == 1 << 20, "a kernel may use it"
    driver.let_go(stream)
    y = shmem.device_array(1 << 20, np.uint8)
    builder = Device().create_graph_builder()
    builder.begin_building()
    del y
    gc.collect()
    builder.end_building().complete()
    shmem.synchronize()
    assert driver.memory_used(me) == before
    shmem.synchronize()
    for _ in range(40):  # more than the GPU has, without any wait between
        shmem.device_array(300 << 20, np.uint8)


@host.job
def nearly_full(me, n):
    """What was freed is waited for when there is no room else; then there is none."""
    for _ in range(5):
        shmem.device_array(300 << 20, np.uint8)
    with pytest.raises(shmem.HeapExhausted, match=f"{900 << 20} bytes"):
        shmem.device_array(900 << 20, np.uint8)


@pytest.mark.parametrize("pes_of_a_node", [1, 2])
def test_a_full_gpu_is_waited_for(pes_of_a_node):
    host.run(2, nearly_full, EMULATION_MEMORY=700 << 20, EMULATION_NODE_PES=pes_of_a_node)


@host.in_pes(1)
def test_a_wait_that_times_out_frees_nothing(me, n):
    """A wait that ends early frees nothing; the next one does."""
    before = driver.memory_used(me)
    x, stream = shmem.device_array(1 << 20, np.uint8), shmem.stream()
    del x
    driver.hold(stream)
    shmem.set_timeout(0.05)
    with pytest.raises(WaitTimeout):
        shmem.synchronize()
    assert driver.memory_used(me) > before
    driver.let_go(stream)
    shmem.synchronize()
    assert driver.memory_used(me) == before


@host.job
def slow_loading(me, n):
    device, told = shmem.runtime.current().backend._device, []
    device.late = told.append
    shmem.set_timeout(0.3)
    with device.loading("`quick`"):
        pass
    with device.loading("`tell`"):  # as cuLibraryLoadData does beside a kernel that waits
        time.sleep(0.6)
    shmem.set_timeout(None)
    return told


def test_loading_that_waits_ends_with_the_timeout():
    ((said,),) = host.run(1, slow_loading)
    assert said == (
        "loading the code of `tell` has waited for 0.3 s: the driver loads code when no kernel is "
        "running on this GPU. Call gpushmem.preload for it before you launch a kernel that waits"
    )
