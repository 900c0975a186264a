"""The emulated driver, by real cuda.core. It says nothing about GPUs: see `emulation`."""

import ctypes
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.nvshmem import emulation
from tests.nvshmem.emulation import driver, pes

pytestmark = pytest.mark.skipif(emulation.missing() is not None, reason=str(emulation.missing()))

SOURCE = """
__device__ int counter = 41;
__constant__ unsigned char nvshmemi_device_lib_version_d[24];
extern "C" __global__ void scale(float *x, int n, double by, signed char flag)
{
    __shared__ float part[256];
    part[threadIdx.x] = x[threadIdx.x % n] * by;
    __syncthreads();
    x[threadIdx.x] = part[255 - threadIdx.x] + flag + counter + nvshmemi_device_lib_version_d[n];
}
extern "C" __global__ void __launch_bounds__(128) narrow(int *x) { *x = 1; }
"""


def compile_source():
    """Return a cubin of SOURCE: NVRTC needs no GPU."""
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(arch="sm_90")
    names = ("&counter", "&nvshmemi_device_lib_version_d")  # else nobody sees them
    return Program(SOURCE, "c++", options).compile("cubin", name_expressions=names).code


@pytest.fixture(scope="module")
def cubin():
    return pes.run(1, compile_source)[0]


def started(device=0):
    from cuda.core import Device

    device = Device(device)
    device.set_current()
    return device, device.create_stream()


def ok(result):
    error, *values = result
    assert int(error) == 0, error
    return values[0] if values else None


@pes.in_pes(1)
def test_devices():
    from cuda.core import LEGACY_DEFAULT_STREAM, Device, EventOptions, Stream, system

    assert len(Device.get_all_devices()) == 2
    assert system.get_num_devices() == 2
    device, stream = started(1)
    assert tuple(device.compute_capability) == (9, 0)
    assert device.properties.multiprocessor_count == 132
    assert device.pci_bus_id == "0000:02:00.0"
    assert Device().device_id == 1
    timed = EventOptions(timing_enabled=True)
    first, last = stream.record(options=timed), stream.record(options=timed)
    stream.wait(first)
    for wait in (stream.sync, LEGACY_DEFAULT_STREAM.sync, device.sync, last.sync):
        wait()
    assert last - first >= 0
    assert Stream.from_handle(int(stream.handle)).device.device_id == 1


def visible():
    from cuda.core import Device

    return [(device.pci_bus_id, device.device_id) for device in Device.get_all_devices()]


def test_visible_devices():
    env = {"EMULATION_DEVICES": 4, "CUDA_VISIBLE_DEVICES": "3,1"}
    assert pes.run(1, visible, env=env) == [[("0000:04:00.0", 0), ("0000:02:00.0", 1)]]


@pes.in_pes(1)
def test_copies():
    from cuda.core import Buffer, LegacyPinnedMemoryResource

    device, stream = started()
    memory = device.allocate(4096, stream=stream)
    pinned = LegacyPinnedMemoryResource().allocate(4096)
    host = np.from_dlpack(pinned)
    host[:] = np.arange(4096) % 100
    memory.copy_from(pinned, stream=stream)
    seen = driver.view(memory.handle, 4096, np.int8)
    assert (seen == host).all()
    memory.fill(np.int32(7), stream=stream)
    assert (seen.view(np.int32) == 7).all()
    Buffer.from_handle(int(memory.handle), 16).copy_to(
        Buffer.from_handle(int(pinned.handle), 16), stream=stream
    )
    assert host[:16].view(np.int32).tolist() == [7] * 4
    assert host[16] == 16
    assert driver.memory_used(0) == 4096
    memory.close(stream)
    assert driver.memory_used(0) == 0
    with pytest.raises(ValueError, match="no device may use"):
        driver.view(seen.ctypes.data, 1, np.int8)


@pes.in_pes(1, env={"EMULATION_MEMORY": 1 << 20})
def test_pointers():
    from cuda.bindings import driver as cuda

    started()
    host = np.arange(64, dtype=np.uint8)
    memory = ok(cuda.cuMemAlloc(64))
    address = host.ctypes.data
    ok(cuda.cuMemcpyHtoD(memory, address, 64))
    invalid = cuda.CUresult.CUDA_ERROR_INVALID_VALUE
    for copy in (
        lambda: cuda.cuMemcpyHtoD(address, address, 64),  # not a device's
        lambda: cuda.cuMemcpyDtoH(address, address, 64),
        lambda: cuda.cuMemcpyDtoD(memory, address, 64),
        lambda: cuda.cuMemsetD8(address, 0, 64),
        lambda: cuda.cuMemcpyDtoH(address, int(memory) + 1, 64),  # beyond its end
        lambda: cuda.cuMemcpyDtoH(int(memory), memory, 64),  # not the host's
        lambda: cuda.cuMemFree(int(memory) + 8),
        lambda: cuda.cuMemAlloc(0),
    ):
        assert copy()[0] == invalid
    ok(cuda.cuMemHostRegister(address, 64, 0))
    assert cuda.cuMemHostRegister(address + 8, 8, 0)[0].name.endswith("ALREADY_REGISTERED")
    ok(cuda.cuMemcpyDtoD(memory, address, 64))
    kind = cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    assert int(ok(cuda.cuPointerGetAttribute(kind, address))) == 1
    assert int(ok(cuda.cuPointerGetAttribute(kind, memory))) == 2
    ok(cuda.cuMemHostUnregister(address))
    assert cuda.cuPointerGetAttribute(kind, address)[0] == invalid
    assert cuda.cuMemHostUnregister(address)[0].name.endswith("NOT_REGISTERED")
    ok(cuda.cuMemFree(memory))
    assert cuda.cuMemFree(memory)[0] == invalid
    assert cuda.cuMemcpyDtoH(address, memory, 64)[0] == invalid
    ok(cuda.cuMemAlloc(600 << 10))
    assert cuda.cuMemAlloc(600 << 10)[0].name.endswith("OUT_OF_MEMORY")


def follow_a_device_pointer():
    from cuda.bindings import driver as cuda

    started()
    ctypes.string_at(int(ok(cuda.cuMemAlloc(64))), 1)


def test_the_host_cannot_follow_a_device_pointer():
    with pytest.raises(pes.PesFailed, match=r"exit -11(.|\n)*in follow_a_device_pointer"):
        pes.run(1, follow_a_device_pointer)


def streams():
    from cuda.bindings import driver as cuda

    started()
    stream = ok(cuda.cuStreamCreate(0))
    ok(cuda.cuStreamDestroy(stream))
    assert cuda.cuStreamSynchronize(stream)[0].name.endswith("INVALID_HANDLE")
    assert cuda.cuStreamDestroy(stream)[0].name.endswith("INVALID_HANDLE")
    if not os.fork():
        os._exit(int(cuda.cuMemAlloc(64)[0]))
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 3, "CUDA_ERROR_NOT_INITIALIZED"


def test_streams():
    pes.run(1, streams)


def launched(cubin):
    from cuda.core import LaunchConfig, ObjectCode, launch

    device, stream = started()
    library = ObjectCode.from_cubin(cubin)
    with pytest.raises(Exception, match="NOT_FOUND"):
        library.get_kernel("absent")
    kernel = library.get_kernel("scale")
    assert [info.size for info in kernel.arguments_info] == [8, 4, 8, 1]
    assert kernel.attributes.shared_size_bytes == 1024
    x = device.allocate(1024, stream=stream)
    config = LaunchConfig(grid=(3, 2), block=(16, 4, 2), shmem_size=64)
    launch(stream, config, kernel, x, np.int32(-5), 2.5, np.int8(-1))
    cooperative = LaunchConfig(grid=8, block=64, is_cooperative=True)
    launch(stream, cooperative, kernel, int(x.handle), ctypes.c_int(6), 0.5, ctypes.c_int8(1))
    first, second = driver.launches()
    assert (first.name, first.grid, first.block, first.shared) == (
        "scale", (3, 2, 1), (16, 4, 2), 64,
    )  # fmt: skip
    assert first.stream == int(stream.handle)
    assert first.library == int(library.handle)
    assert [len(param) for param in first.params] == [8, 4, 8, 1]
    assert first.integer(0) == int(x.handle)
    assert (first.value(1, "i4"), first.value(2, "f8"), first.value(3, "i1")) == (-5, 2.5, -1)
    assert (first.cooperative, second.cooperative) == (False, True)
    assert second.value(1, "i4") == 6


def test_launches(cubin):
    pes.run(1, launched, cubin)


def refused(cubin):
    from cuda.bindings import driver as cuda
    from cuda.core import LaunchConfig, ObjectCode, launch

    _, stream = started()
    library = ObjectCode.from_cubin(cubin)
    kernel, narrow = library.get_kernel("scale"), library.get_kernel("narrow")

    def error(kernel, *args, **config):
        with pytest.raises(Exception) as raised:
            launch(stream, LaunchConfig(**config), kernel, *args)
        return str(raised.value)

    args = (0, np.int32(1), 1.0, np.int8(0))
    assert "INVALID_VALUE" in error(kernel, *args, grid=1, block=1025)
    assert "INVALID_VALUE" in error(narrow, 0, grid=1, block=129)
    assert "INVALID_VALUE" in error(kernel, *args, grid=(1, 65536), block=1)
    assert "INVALID_VALUE" in error(kernel, *args, grid=1, block=1, shmem_size=49 << 10)
    assert "3 arguments for a kernel of 4" in error(kernel, *args[:3], grid=1, block=1)
    wrong = (0, 1, np.float32(1), np.int8(0))
    assert "argument 2, np.float32(1.0), has 4 bytes, not 8" in error(
        kernel, *wrong, grid=1, block=1
    )
    resident = kernel.occupancy.max_active_blocks_per_multiprocessor(1024, 0) * 132
    assert resident == 2 * 132
    # cuda.core asks before the driver does
    assert "exceeds the limit" in error(
        kernel, *args, grid=resident + 1, block=1024, is_cooperative=True
    )
    too_large = cuda.cuLaunchCooperativeKernel(
        int(kernel.handle), resident + 1, 1, 1, 1024, 1, 1, 0, stream.handle, 0
    )
    assert too_large[0].name.endswith("COOPERATIVE_LAUNCH_TOO_LARGE")
    assert driver.launches() == []


def test_launches_that_cuda_refuses(cubin):
    pes.run(1, refused, cubin)


def emulated_kernel(cubin):
    from cuda.bindings import driver as cuda
    from cuda.core import LaunchConfig, ObjectCode, launch

    device, stream = started()
    library = ObjectCode.from_cubin(cubin)
    x = device.allocate(16, stream=stream)

    def narrow(launch):
        driver.view(launch.integer(0), 4, np.int32)[:] = launch.grid[0]

    driver.on_launch(narrow)
    launch(stream, LaunchConfig(grid=9, block=1), library.get_kernel("narrow"), x)
    assert driver.view(x.handle, 4, np.int32).tolist() == [9] * 4
    # A kernel that faults is heard of later, by every call.
    launch(stream, LaunchConfig(grid=9, block=1), library.get_kernel("narrow"), np.int64(64))
    for _ in range(2):
        with pytest.raises(Exception, match="LAUNCH_FAILED"):
            stream.sync()
    assert "no device may use" in str(driver.failures[0])
    ok(cuda.cuDevicePrimaryCtxReset(0))
    stream.sync()


def test_a_callback_in_place_of_a_kernel(cubin):
    pes.run(1, emulated_kernel, cubin)


def variables(cubin):
    from cuda.bindings import driver as cuda
    from cuda.core import ObjectCode

    started()
    library = ObjectCode.from_cubin(cubin)
    error, address, n = cuda.cuLibraryGetGlobal(int(library.handle), b"counter")
    assert (int(error), n) == (0, 4)
    assert driver.view(address, 1, np.int32)[0] == 41
    assert cuda.cuLibraryGetGlobal(int(library.handle), b"x")[0].name.endswith("NOT_FOUND")
    other = bytearray(cubin)
    other[49] = 100  # sm_100, in the flags
    assert cuda.cuLibraryLoadData(bytes(other), [], [], 0, [], [], 0)[0].name.endswith("FOR_GPU")
    assert cuda.cuLibraryLoadData(b"x" * 64, [], [], 0, [], [], 0)[0].name.endswith("_IMAGE")


def test_variables(cubin):
    pes.run(1, variables, cubin)


def captured(cubin):
    from cuda.bindings import driver as cuda
    from cuda.core import LaunchConfig, ObjectCode, launch

    device, stream = started()
    kernel = ObjectCode.from_cubin(cubin).get_kernel("narrow")
    x = device.allocate(16, stream=stream)
    x.fill(1, stream=stream)
    builder = device.create_graph_builder()
    builder.begin_building()
    launch(builder, LaunchConfig(grid=1, block=1), kernel, x)
    x.fill(2, stream=builder)
    graph = builder.end_building().complete()
    seen = driver.view(x.handle, 16, np.uint8)
    assert (len(driver.launches()), seen[0]) == (0, 1)
    for _ in range(2):
        graph.launch(stream)
    assert [one.replayed for one in driver.launches()] == [True, True]
    assert seen[0] == 2
    mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    ok(cuda.cuStreamBeginCapture(stream.handle, mode))
    assert cuda.cuMemAlloc(64)[0].name.endswith("STREAM_CAPTURE_UNSUPPORTED")
    assert cuda.cuStreamEndCapture(stream.handle)[0].name.endswith("STREAM_CAPTURE_INVALIDATED")
    stream.sync()


def test_graphs(cubin):
    pes.run(1, captured, cubin)


def test_what_is_not_there_says_so():
    program = "from cuda.bindings import driver as d; d.cuInit(0); print(d.cuMulticastCreate(None))"
    env = emulation.environment(EMULATION_TRACE=1)
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False
    )
    assert "ERROR_NOT_SUPPORTED" in done.stdout, done.stderr
    assert "cuMulticastCreate (12010) is not supported" in done.stderr


# --- what waits


def blocking_calls():
    """Each call that CUDA lets wait, with the default stream held, a blocking one, and another."""
    from cuda.bindings import driver as cuda

    started()
    memory, more = ok(cuda.cuMemAlloc(64)), ok(cuda.cuMemAlloc(64))
    pinned = ok(cuda.cuMemHostAlloc(64, 0))
    host = np.zeros(8)
    at = host.ctypes.data
    blocking = ok(cuda.cuStreamCreate(0))
    beside = ok(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING))
    default = {
        "cuMemcpyDtoH": lambda: cuda.cuMemcpyDtoH(at, memory, 64),
        "cuMemcpyHtoD": lambda: cuda.cuMemcpyHtoD(memory, at, 64),
    }
    whole = {
        "cuCtxSynchronize": lambda: cuda.cuCtxSynchronize(),
        "cuMemFree": lambda: cuda.cuMemFree(more),
        "cuMemFreeHost": lambda: cuda.cuMemFreeHost(pinned),
    }
    found = []
    for stream, name in ((0, "the default stream"), (blocking, "stream"), (beside, "stream")):
        driver.hold(int(stream))
        for call, do in (default | whole).items():
            driver.forget_waits()
            error = int(do()[0])
            waits = driver.forget_waits()
            if stream is beside and call in default:
                assert (error, waits) == (0, [])
            else:
                assert error == int(cuda.CUresult.CUDA_ERROR_LAUNCH_TIMEOUT), call
                assert waits[0].startswith(f"{call} waits for {name}"), waits
                assert waits[0].endswith(", which is held")
                found.append(call)
        # Pinned memory's copies are asynchronous, others not.
        assert int(cuda.cuMemcpyDtoHAsync(pinned, memory, 64, stream)[0]) == 0
        assert int(cuda.cuMemcpyDtoHAsync(at, memory, 64, stream)[0])
        assert "cuMemcpyDtoHAsync waits for" in driver.forget_waits()[0]
        driver.let_go(int(stream))
    for do in whole.values():
        ok(do())
    return found


def test_calls_wait_as_those_of_cuda_do():
    assert len(pes.run(1, blocking_calls)[0]) == 13


def events_of_held_streams():
    from cuda.bindings import driver as cuda

    started()
    memory = ok(cuda.cuMemAlloc(4))
    streams = [ok(cuda.cuStreamCreate(1)) for _ in range(3)]
    event = ok(cuda.cuEventCreate(0))
    ok(cuda.cuMemsetD32(memory, 1, 1))
    driver.hold(int(streams[0]))
    ok(cuda.cuMemsetD32Async(memory, 2, 1, streams[0]))
    ok(cuda.cuEventRecord(event, streams[0]))
    ok(cuda.cuStreamWaitEvent(streams[1], event, 0))
    ok(cuda.cuMemsetD32Async(memory, 3, 1, streams[1]))
    seen = [driver.view(memory, 1, np.int32)[0]]
    ready = [int(cuda.cuStreamQuery(stream)[0]) == 0 for stream in streams]
    assert int(cuda.cuEventQuery(event)[0]) == int(cuda.CUresult.CUDA_ERROR_NOT_READY)
    assert int(cuda.cuEventSynchronize(event)[0])
    driver.forget_waits()
    driver.let_go(int(streams[0]))
    ok(cuda.cuEventSynchronize(event))
    seen.append(driver.view(memory, 1, np.int32)[0])
    return [int(value) for value in seen], ready


def test_a_stream_that_waits_for_an_event_is_held_up():
    assert pes.run(1, events_of_held_streams) == [([1, 3], [False, False, True])]


def waits_passed_over():
    from cuda.bindings import driver as cuda

    started()
    memory = ok(cuda.cuMemAlloc(4))
    driver.hold(0)
    cuda.cuMemFree(memory)


def test_an_error_that_is_passed_over_fails_the_pe():
    with pytest.raises(pes.PesFailed, match="cuMemFree waits for the default stream, which is"):
        pes.run(1, waits_passed_over)
