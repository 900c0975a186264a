"""A launch like one before takes fewer steps (`Kernel.again`); on the GPU it is the same launch."""

import threading
from importlib.util import find_spec

import ml_dtypes
import numpy as np
import pytest

import gpushmem as shmem
from gpushmem.errors import ArgumentError, SymmetryError
from tests.nvshmem import emulation, host
from tests.nvshmem.emulation import driver

pytestmark = pytest.mark.skipif(emulation.missing() is not None, reason=str(emulation.missing()))


@shmem.jit
def six(a, b, c, d, e, f):
    pass


@shmem.jit
def two(x, n):
    pass


@shmem.jit(collective=True)
def together(x):
    pass


def taken():
    """The launches since the last call."""
    launches = driver.launches()
    driver.clear()
    return launches


def noted():
    """A list to which each launch from now on adds whether it was like one before."""
    from gpushmem.backends.nvshmem.kernels import Kernel

    found, real = [], Kernel.again

    def again(*args):
        found.append(real(*args))
        return found[-1]

    Kernel.again = again
    return found


def rows():
    """What is launched: what a kernel takes, and whether the second time is quick."""
    x, y = shmem.zeros((4, 6), "float32"), shmem.to_device(np.arange(24).reshape(4, 6))
    small, flags = shmem.zeros(8, ml_dtypes.bfloat16), shmem.zeros(3, bool)
    teams = shmem.TEAM_WORLD, shmem.TEAM_NODE
    records, pairs = shmem.zeros(4, [("a", "i4"), ("b", "f8")]), shmem.zeros(3, "complex64")

    def made():
        yield True, (x, x[0], x[::2, 1:], x[:, 2], x.T, y)
        yield True, (x[1:], x[3], x[:, :2], x[1:, 3], x[:, 1:2].T, y)  # the same types
        yield True, (x, x[0], x[::2, 1:], x[:, 2], x.T, y[0])  # and now one is another
        yield True, (x, x[0], x[::2, 1:], x[:, 2], x.T, y.view("float64"))
        yield True, (x, x[0], x[::2, 1:], x[:, 2], y.T, y)
        yield True, (x[:, ::-1], x[:0], x[1, 2, ...], small, records[1:], flags)
        yield True, (pairs, shmem.peer_array(pairs, 0), x.reshape(2, 3, 4), 3, 2.5, True)
        yield True, (3, -3, 2**63 - 1, 1 - 2**63, -0.5, False)
        yield True, (3, -3, 2, 1, np.float32(-0.5), np.bool_(True))
        yield False, (3, -3, 2, 2**63, -0.5, False)  # a type of its own
        yield True, tuple(np.dtype(c).type(100 + k) for k, c in enumerate("bhilBH"))
        yield True, (*map(np.uint32, (1, 2**32 - 1)), np.uint64(2**64 - 1), np.float16(2), *teams)
        yield False, (1j, np.complex64(1 - 2j), None, (1, 2), (x, 3), (x[1:], x[0]))

    return made


@host.in_pes(1, limit=120)
def test_they_are_the_launches_of_bind(me, n):
    from numba.cuda.typing.typeof import Purpose, typeof

    found, made, expected = noted(), rows(), []
    for _, args in made():
        for array in (a.native() for a in args if isinstance(a, shmem.DeviceArray)):
            assert array.type == typeof(array.layout, Purpose.argument)
        six[2, 32](*args)
        six[2, 32].bind(*args)()
        first, slow = taken()
        assert first == slow
        expected.append(slow)
    for step in (1, -1, 2):
        for (quick, args), launch in list(zip(made(), expected, strict=True))[::step]:
            del found[:]
            six[2, 32](*args)
            assert found == [quick], args
            assert taken() == [launch], args


@host.in_pes(1)
def test_released_arrays_are_refused(me, n):
    found, buffer = noted(), np.zeros(4)
    for make, release in (
        (shmem.zeros, shmem.free),
        (lambda k: shmem.register(buffer), shmem.unregister),
    ):
        x = make(4)
        for _ in range(2):
            two[1, 1](x, 1)
        assert found.pop()
        view, launches = x[1:], taken()
        release(x)
        for array in (x, view):
            with pytest.raises((SymmetryError, ArgumentError), match="used after"):
                two[1, 1](array, 1)
        assert len(launches) == 2
        assert taken() == []


@host.in_pes(1)
def test_each_goes_to_its_stream_and_has_its_shape(me, n):
    from cuda.core import Device

    found, x = noted(), shmem.zeros(4)
    streams = shmem.stream(), Device().create_stream(), 0, shmem.stream(), None
    two[1, 32](x, 1)
    for grid in (1, 3, (2, 2)):
        two[grid, 32](x, 1)
        del found[:]
        for stream in streams:
            two[grid, 32, stream](x, 1)
            two[grid, 32, stream, 64](x, 1)
            two.configure(grid, 32, stream, cluster=1)(x, 1)
        shape = grid if isinstance(grid, tuple) else (grid, 1)
        launches = taken()[-3 * len(streams) :]
        assert [(k.grid, k.shared, k.cluster) for k in launches] == [
            ((*shape, 1), shared, cluster)
            for _ in streams
            for shared, cluster in ((0, (0, 0, 0)), (64, (0, 0, 0)), (0, (1, 1, 1)))
        ]
        went_to = [k.stream for k in launches]
        assert went_to[::3] == went_to[1::3] == went_to[2::3]
        assert went_to[6] == went_to[12]  # the default stream
        for k in (0, 1, 3):
            assert went_to[3 * k] == streams[k].__cuda_stream__()[1]
        assert found == [True, False, False] + 12 * [True]
    for wrong in ((1.0, 32), (1, 32.0), (1, 32, 0, 64.0), (True, 33.5), (1, 32, "a")):
        with pytest.raises(ArgumentError):
            two[wrong](x, 1)
    assert taken() == []


@host.in_pes(1)
def test_a_graph_has_them(me, n):
    from cuda.core import Device

    found, x, stream = noted(), shmem.zeros(4), Device().create_stream()
    two[1, 1](x, 1)
    driver.clear()
    builder = stream.create_graph_builder()
    builder.begin_building()
    for k in range(3):
        two[1, 1, builder](x, k)
        two[1, 1, stream](x, 10 + k)  # captured, too
    graph = builder.end_building().complete()
    assert found[1:] == 6 * [True]
    assert driver.launches() == []
    graph.launch(Device().create_stream())
    assert [k.integer(7) for k in taken()] == [0, 10, 1, 11, 2, 12]


@host.in_pes(1)
def test_threads_launch_at_once(me, n):
    """Each has its stream, and neither has made the GPU its current one."""
    found, many, errors = noted(), 500, []
    x, y = shmem.zeros(4), shmem.zeros((4, 4), "int32")
    for kernel in (together, two):
        kernel[1, 32](*(x, y)[: 1 + (kernel is two)])
        kernel[1, 32](*(y, x)[: 1 + (kernel is two)])
    driver.clear()

    def launch(mine, other, stream):
        try:
            for _ in range(many):
                two[1, 32, stream](mine, other)
                together[1, 32, stream](mine)
        except Exception as error:
            errors.append(error)

    streams = shmem.stream(), shmem.stream()
    pairs = zip(((x, y), (y, x)), streams, strict=True)
    threads = [threading.Thread(target=launch, args=(*args, stream)) for args, stream in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert found[4:] == 4 * many * [True]
    launches = taken()
    for stream in streams:
        mine = [k.params for k in launches if k.stream == stream.__cuda_stream__()[1]]
        assert len(mine) == 2 * many
        assert all(params == mine[k % 2] for k, params in enumerate(mine))
        assert mine[0][: len(mine[1])] == mine[1]


@host.in_pes(1)
def test_after_finalize_they_begin_anew(me, n):
    found = noted()
    for _ in range(2):
        x = shmem.zeros(4)
        two[1, 1](x, 1)
        two[1, 1](x, 1)
        assert found == [False, True]
        found.clear()
        shmem.finalize()
        with pytest.raises(shmem.NotInitializedError):
            two[1, 1](x, 1)
        shmem.init("nvshmem", heap_size=host.HEAP)


@pytest.mark.sweep
@pytest.mark.skipif(find_spec("numba_cuda_mlir") is None, reason="numba-cuda-mlir is not installed")
@host.in_pes(1, limit=120, GPUSHMEM_COMPILER="numba-cuda-mlir")
def test_kernels_of_numba_cuda_mlir_get_its_parameters(me, n):
    found, x, y = noted(), shmem.zeros((4, 6), "float32"), shmem.zeros(8)
    for args in ((x, x[:, 1:3], y[::2], 3, 2.5, True), (x[1:], x[:, 2:4], y[1::2], 4, -2.5, False)):
        six[2, 32].bind(*args)()
        six[2, 32](*args)
        expected, quick = taken()
        assert quick == expected
        assert len(quick.params) == 7 + 7 + 5 + 3
    assert found == [True, True]
