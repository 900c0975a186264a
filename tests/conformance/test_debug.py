"""debug=True: a remote operation reaches memory of one allocated array only, or says so."""

import numpy as np
import pytest

import gpushmem as shmem
from gpushmem import runtime
from gpushmem.artifacts.argument_packing import address_of
from gpushmem.backends.base import Config
from gpushmem.errors import KernelError, SymmetryError


def launch(kernel, *natives):
    """Launch on native arrays, as a program with a pointer of its own would."""
    backend = runtime.current().backend
    backend.prepare(backend.kernel(kernel.py_func, {"debug": True}), Config(1, 1), natives)()
    backend.synchronize()


@shmem.jit
def put_one(dst, src, pe):
    shmem.put(dst, src, pe)


@pytest.mark.checked
def test_a_freed_array_is_not_written(run_pes):
    def body():
        shmem.init()
        a, b, c = (shmem.zeros(100, "int32") for _ in range(3))
        mine = shmem.to_device(np.ones(100, "int32"))
        native = b.native()
        launch(put_one, native, mine.native(), shmem.my_pe())
        shmem.free(b)
        offset = address_of(native) - address_of(a.native())
        message = rf"in put_one: put: .* 400 bytes at offset {offset:#x} .* is not in one alloc"
        with pytest.raises(SymmetryError, match=message):
            launch(put_one, native, mine.native(), 0)
        d = shmem.zeros(100, "int32")  # in its place
        with pytest.raises(SymmetryError, match=r"of 2048 bytes at offset 0x0"):
            whole = a.native().base  # the heap's memory
            long = np.ndarray(512, "int32", buffer=whole.data, offset=shmem.my_pe() * (64 << 20))
            launch(put_one, long, long, 0)
        shmem.barrier_all()
        result = [x.numpy().any() for x in (a, c, d)]
        shmem.finalize()
        return result

    assert run_pes(body, 2) == [[False] * 3] * 2


@pytest.mark.checked
def test_ends_and_edges_of_arrays_are_allowed(run_pes):
    @shmem.jit(debug=True)
    def sweep(x, values, count):
        for i in range(x.size):
            shmem.p(x[i:], values[i], shmem.my_pe())
            shmem.fence()
            shmem.put(x[i:], values[i:], shmem.my_pe())
            shmem.fence()
            shmem.atomic_add(x[i:], 1, shmem.my_pe())
            shmem.fence()
        shmem.put(x[x.size :], values[x.size :], shmem.my_pe())
        shmem.quiet()
        count[0] += x.size

    def body():
        shmem.init()
        count = np.zeros(1, int)
        arrays = [shmem.zeros(n, "int64") for n in (1, 33, 7, 32, 64, 100)]
        shmem.free(arrays.pop(2))
        for x in arrays:
            sweep[1, 1](x, np.arange(x.size), count)
            assert (x.numpy() == np.arange(x.size) + 1).all()
        shmem.finalize()
        return int(count[0])

    assert run_pes(body, 1) == [1 + 33 + 32 + 64 + 100]


@pytest.mark.checked
def test_indices_are_checked_in_symmetric_arrays_too(run_pes):
    @shmem.jit(debug=True)
    def beyond(x, i):
        x[i] = 1

    @shmem.jit(debug=True)
    def far(x, pe, i):
        shmem.peer_array(x, pe)[i] = 1

    def body():
        shmem.init()
        x, y = shmem.zeros(4), shmem.zeros(4)
        for kernel, args in ((beyond, (4,)), (far, (1, 4))):
            kernel[1, 1](x, *args)
            with pytest.raises(KernelError, match=f"in {kernel.py_func.__name__}: IndexError"):
                shmem.synchronize()
        shmem.barrier_all()
        assert not y.numpy().any()
        shmem.finalize()

    run_pes(body, 2)
