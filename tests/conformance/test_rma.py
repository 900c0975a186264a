"""put, get, iput, iget, p and g: every scope and dtype; whole, sliced, strided, empty."""

import numpy as np
import pytest
from numba.core.errors import TypingError

import gpushmem as shmem
from gpushmem.errors import ArgumentError, SymmetryError
from gpushmem.ops import OPS

PES = [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4, 8))]
PAIR = np.dtype([("a", "i1"), ("b", "f8"), ("c", "i2", 3)])
DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "float32", "float64", "complex64", "complex128", PAIR,
]  # fmt: skip
THREADS = {"thread": 1, "warp": 32, "block": 96}
ROWS = [name for name, op in OPS.items() if op.base in ("put", "get", "iput", "iget")]
# How the arrays lie: first element of dst and src, their strides, number of elements.
LAYOUTS = [(0, 0, 1, 1, 64), (3, 5, 1, 1, 33), (1, 2, 3, 1, 11), (2, 1, 1, 4, 9), (0, 3, 5, 2, 7),
           (4, 4, 2, 2, 0), (64, 64, 1, 1, 0), (7, 7, 9, 9, 1)]  # fmt: skip
N = 64


def numbers(pe, dtype):
    """Bytes that differ from PE to PE and from element to element, as numbers."""
    rng = np.random.default_rng(pe)
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, N).astype(bool)
    if dtype.kind in "fc":
        return (rng.integers(-1000, 1000, N) * (1 + 2j if dtype.kind == "c" else 1)).astype(dtype)
    return np.frombuffer(rng.bytes(N * dtype.itemsize), dtype).copy()


def same(a, b):
    """Whether two arrays are, byte for byte; padding of records included."""
    return a.tobytes() == b.tobytes()


@pytest.mark.parametrize("n_pes", PES)
@pytest.mark.parametrize("name", ROWS)
def test_all_dtypes_and_layouts(run_pes, name, n_pes):
    """Compared with NumPy on the target and all around it; on the host too, where that is."""
    op = OPS[name]
    layouts = [x for x in LAYOUTS if op.base in ("iput", "iget") or x[2] == x[3] == 1]
    function = op.function

    if op.base in ("iput", "iget"):

        @shmem.jit
        def move(dst, src, d, s, ds, ss, n, pe):
            function(dst[d:], src[s:], ds, ss, n, pe)
            shmem.quiet()
    else:

        @shmem.jit
        def move(dst, src, d, s, ds, ss, n, pe):
            function(dst[d : d + n], src[s : s + n], pe)
            shmem.quiet()

    def once(dtype, layout, on_host):
        me, right = shmem.my_pe(), (shmem.my_pe() + 1) % n_pes
        putting = op.base in ("put", "iput")
        there, here = numbers(me, dtype), numbers(me + 100, dtype)
        symmetric, local = shmem.asarray(there), shmem.to_device(here)
        dst, src = (symmetric, local) if putting else (local, symmetric)
        d, s, ds, ss, n = layout
        if not on_host:
            move[1, THREADS[op.scope]](dst, src, d, s, ds, ss, n, right)
        elif op.base in ("iput", "iget"):
            function(dst[d:], src[s:], ds, ss, n, right)
        else:
            function(dst[d : d + n], src[s : s + n], right)
        shmem.barrier_all()
        # What the copy has changed, in NumPy.
        other = (me - 1) % n_pes if putting else right
        target, source = (there, numbers(other + 100, dtype)) if putting else (
            here, numbers(other, dtype))  # fmt: skip
        target[d : d + n * ds : ds][:n] = source[s : s + n * ss : ss][:n]
        assert same(dst.numpy(), target), (dtype, layout, on_host)
        assert same(src.numpy(), there if src is symmetric else here)
        shmem.free(symmetric)

    def body():
        shmem.init()
        for dtype in DTYPES:
            for layout in layouts:
                for on_host in {False, op.host}:
                    once(dtype, layout, on_host)
        shmem.finalize()

    run_pes(n_pes, body, timeout=300)  # every PE compiles for every dtype


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_single_elements(run_pes, dtype):
    @shmem.jit
    def swap(x, values, got, pe):
        shmem.p(x[1:], values[0], pe)
        shmem.quiet()
        shmem.barrier_all()
        got[0] = shmem.g(x[1:], pe)

    def body():
        shmem.init()
        me = shmem.my_pe()
        x, values = shmem.asarray(numbers(me, dtype)[:3]), numbers(me + 100, dtype)[:1]
        got = np.zeros(1, dtype)
        swap[1, 1](x, values, got, (me + 1) % 3)
        after = x.numpy()
        shmem.finalize()
        wanted = numbers(me, dtype)[:3]
        wanted[1] = numbers((me - 1) % 3 + 100, dtype)[0]
        assert (after == wanted).all()
        assert got[0] == values[0]

    run_pes(3, body)


def test_strides_that_lead_outside_are_refused(run_pes):
    @shmem.jit
    def move(dst, src, ds, ss, n):
        shmem.iput(dst, src, ds, ss, n, 0)

    @shmem.jit
    def fetch(dst, src, ds, ss, n):
        shmem.iget(dst, src, ds, ss, n, 0)

    def body():
        shmem.init()
        x, y = shmem.zeros(10, "int32"), shmem.zeros(20, "int32")
        for counts, message in (
            ((3, 1, 5), "element 12 is outside of an array of 10 elements"),
            ((1, 5, 5), "element 20 is outside of an array of 20 elements"),
            ((0, 1, 2), "strides must be 1 or more, not 0 and 1"),
            ((1, -1, 2), "strides must be 1 or more, not 1 and -1"),
            ((1, 1, -2), "elements 0 or more, not -2"),
        ):
            for kernel in (move, fetch):
                kernel[1, 1](x, y, *counts)
                with pytest.raises(ArgumentError, match=message):
                    shmem.synchronize()
            for operation in (shmem.iput, shmem.iget):
                with pytest.raises(ArgumentError, match=message):
                    operation(x, y, *counts, 0)
        with pytest.raises(TypingError, match="dst is an array of int32, src of float64"):
            move[1, 1](x, shmem.zeros(10), 1, 1, 1)
        with pytest.raises(TypingError, match="iput: src is not contiguous"):
            move[1, 1](x, y[::2], 1, 1, 1)
        fetch[1, 1](x, shmem.to_device(np.zeros(20, "int32")), 1, 1, 1)
        with pytest.raises(SymmetryError, match="not on the symmetric heap"):
            shmem.synchronize()
        shmem.finalize()

    run_pes(1, body)
