"""Code of other compilers, made known to NVSHMEM with `init_module`."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numba import types

import gpushmem as shmem
from gpushmem.errors import ArgumentError, BackendUnavailable
from tests.nvshmem import emulation, host
from tests.nvshmem.emulation import driver
from tests.nvshmem.kernels import array_of
from tests.nvshmem.test_backend_launches import waiting

pytestmark = pytest.mark.skipif(emulation.missing() is not None, reason=str(emulation.missing()))

EXAMPLE = Path(__file__).parents[2] / "examples/cpp_kernel.py"
WITHOUT = 'extern "C" __global__ void nothing() {}'


def example():
    spec = importlib.util.spec_from_file_location("cpp_kernel", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["cpp_kernel"] = module
    spec.loader.exec_module(module)
    return module


def compile_example():
    return bytes(example().compiled("sm_90").code)


def with_nvshmem():
    """The code of a kernel that waits, which launches have left in the store, and its name there.

    Any code will do that has NVSHMEM's functions: C++ with its headers takes ten seconds.
    """
    from gpushmem.backends.nvshmem.compile import aot

    made = aot.artifact(waiting.py_func, (array_of(types.int64),), {}, "sm_90a")
    return made.code, made.about["entry"]


def perform(me, n):
    """Do what the example's kernels would have done."""
    from nvshmem import bindings

    def array(launch, number, shape, dtype):
        return driver.view(launch.integer(number), shape, dtype)

    def kernel(launch):
        ran.append(launch.name)
        if launch.name == "put_right":
            size = launch.integer(2)
            dst, ready = (bindings.ptr(launch.integer(k), (me + 1) % n) for k in (0, 3))
            driver.view(dst, size, "f4")[:] = array(launch, 1, size, "f4")
            driver.view(ready, 1, "u8")[:] = 1
            bindings.barrier_all()  # for the wait of the next: kernels run when launched here
        elif "fill" in launch.name:
            array(launch, 4, 1000, "f4")[:] = 1000 * me + np.arange(1000)
        else:
            assert array(launch, 11, 1, "u8")[0] == 1
            array(launch, 4, 1000, "f4")[:] *= 2

    ran = []
    driver.on_launch(kernel)
    return ran


@host.job
def run_example(me, n, cubin):
    from cuda.core import ObjectCode

    from tests.nvshmem.emulation.nvshmem_bindings import ready_libraries

    program = example()
    program.compiled = lambda arch: ObjectCode.from_cubin(cubin) if arch == "sm_90" else None
    ran = perform(me, n)
    program.main(SimpleNamespace(my_pe=me, n_pes=n))
    assert driver.failures == []
    assert [name.count("put_right") for name in ran] == [0, 1, 0]
    return len(ready_libraries)


@pytest.mark.parametrize("n", [1, 3])
def test_the_example_runs(elsewhere, n):
    cubin = elsewhere.submit(compile_example).result()
    found = host.run(n, run_example, cubin, limit=120)
    assert found == [3] * n, "two of Numba's kernels, and its own"


@host.in_pes(1, limit=120)
def test_every_form_of_loaded_code(me, n):
    import gc

    from cuda.bindings import driver as cuda
    from cuda.core import ObjectCode, Program, ProgramOptions
    from nvshmem import bindings
    from nvshmem import core as nvshmem

    from tests.nvshmem.emulation.nvshmem_bindings import ready_libraries

    def ok(result):
        assert int(result[0]) == 0, result
        return result[1]

    cubin, name = with_nvshmem()
    plain = bytes(Program(WITHOUT, "c++", ProgramOptions(arch="sm_90a")).compile("cubin").code)
    module = ok(cuda.cuModuleLoadData(cubin))
    function = ok(cuda.cuModuleGetFunction(module, name.encode()))
    library = ok(cuda.cuLibraryLoadData(cubin, [], [], 0, [], [], 0))
    kernel = ok(cuda.cuLibraryGetKernel(library, name.encode()))
    code = [ObjectCode.from_cubin(cubin) for _ in range(3)]

    class Triton:
        """A kernel that unloads its code with the last reference to it."""

        module = int(ok(cuda.cuModuleLoadData(cubin)))

        def __del__(self):
            cuda.cuModuleUnload(cuda.CUmodule(self.module))

    forms = [
        (code[0], code[0].handle), (code[1].get_kernel(name), code[1].handle),
        (nvshmem.NvshmemKernelObject.from_obj(code[2]), code[2].handle), (library, library),
        (kernel, library), (module, module), (function, module),
        (Triton(), Triton.module),
    ]  # fmt: skip
    for given, handle in forms:
        before = ready_libraries.get(int(handle), 0)
        assert shmem.init_module(given) is None
        assert ready_libraries[int(handle)] == before + 1, given
    del forms, given
    gc.collect()
    bindings.free(bindings.malloc(64))  # NVSHMEM writes to all code that it knows of: it is there

    with pytest.raises(
        ArgumentError, match=r"does not accept the code \(status 7\).*fit NVSHMEM 3\.\d"
    ):
        shmem.init_module(ObjectCode.from_cubin(plain))
    for wrong in (None, 5, int(library), cubin, "x", SimpleNamespace(module=None), ObjectCode):
        with pytest.raises(ArgumentError, match="init_module: loaded code is an ObjectCode or Ker"):
            shmem.init_module(wrong)
    with pytest.raises(ArgumentError, match=r"^init_module: .*CUDA_ERROR_INVALID_IMAGE"):
        shmem.init_module(ObjectCode.from_cubin(b"x" * 64))


@host.job
def from_a_thread(me, n):
    """With another GPU current: that of the PE is taken."""
    import threading

    from cuda.core import Device, ObjectCode

    def call():
        Device((me + 1) % 2).set_current()
        shmem.init_module(code)
        devices.append(Device().device_id)

    code, devices = ObjectCode.from_cubin(with_nvshmem()[0]), []
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return devices


def test_it_is_the_pes_own_gpu():
    assert host.run(2, from_a_thread, limit=120) == [[0], [1]]


@pytest.mark.cpu_backend
@pytest.mark.parametrize("backend", ["cpu", "null"])
def test_other_backends_say_that_they_run_no_such_code(run_pes, backend):
    def body():
        shmem.init(backend)
        with pytest.raises(BackendUnavailable, match=f"init_module: the backend {backend} runs no"):
            shmem.init_module(None)
        shmem.finalize()

    run_pes(body, 1)
