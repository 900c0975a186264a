"""put, get, iput, iget, p and g: every scope and dtype; whole, sliced, strided, empty."""

import numpy as np
import pytest
from numba import cuda
from numba.core.errors import TypingError

import gpushmem as shmem
from gpushmem.errors import ArgumentError, KernelError, SymmetryError
from gpushmem.ops import OPS
from tests.pes import BACKEND, CALLED, compile_first, to_send

PES = [2, *(pytest.param(n, marks=pytest.mark.sweep) for n in (3, 4, 8))]
PAIR = np.dtype([("a", "i1"), ("b", "f8"), ("c", "i2", 3)])
DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "float32", "float64", "complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e5m2",
    PAIR,
]  # fmt: skip
# Copies see sizes only: one of each, and one that Numba has no arithmetic for.
SOME_DTYPES = ["float8_e4m3fn", "bfloat16", "int64", PAIR]
SHARED_DTYPES = ["float8_e5m2", PAIR]  # of those that several threads share out, or that fetch
VALUES = [
    "bool",
    "float16",
    "float32",
    "complex64",
    "complex128",
    *SOME_DTYPES,
]  # p and g take values
THREADS = {"thread": 1, "warp": 32, "block": 96}
ROWS = [
    pytest.param(name, marks=[pytest.mark.sweep] * op.nbi)  # the code of the others
    for name, op in OPS.items()
    if op.base in ("put", "get", "iput", "iget")
]
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
    if dtype.kind in "fc" or dtype == "bfloat16":
        return (rng.integers(-1000, 1000, N) * (1 + 2j if dtype.kind == "c" else 1)).astype(dtype)
    return np.frombuffer(rng.bytes(N * dtype.itemsize), dtype).copy()


def same(a, b):
    """Whether two arrays are, byte for byte; padding of records included."""
    return a.tobytes() == b.tobytes()


@pytest.mark.parametrize("n_pes", PES)
@pytest.mark.parametrize(
    "dtypes",
    [
        pytest.param(SOME_DTYPES, id="some"),
        pytest.param(DTYPES, id="all", marks=pytest.mark.sweep),
    ],
)
@pytest.mark.parametrize("name", ROWS)
def test_all_dtypes_and_layouts(run_pes, name, dtypes, n_pes):
    """Compared with NumPy on the target and all around it; on the host too, where that is."""
    op = OPS[name]
    if dtypes is SOME_DTYPES and name not in ("put", "iput"):
        dtypes = SHARED_DTYPES
    if BACKEND != "cpu" and op.base in ("iput", "iget"):  # NVSHMEM's are for these widths
        dtypes = [dtype for dtype in dtypes if np.dtype(dtype).itemsize in (1, 2, 4, 8, 16)]
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
        symmetric, local = shmem.array(there), to_send(here)
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
        for dtype in dtypes:
            for layout in layouts:
                for on_host in {False, op.host}:
                    once(dtype, layout, on_host)
        shmem.finalize()

    for dtype in dtypes:
        like = np.zeros(N, dtype)
        compile_first(move, like, like, *[0] * 6, threads=THREADS[op.scope])
    run_pes(body, n_pes)


@pytest.mark.parametrize(
    "dtype",
    [pytest.param(each, marks=[pytest.mark.sweep] * (each not in VALUES)) for each in DTYPES],
    ids=str,
)
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
        x, values = shmem.array(numbers(me, dtype)[:3]), numbers(me + 100, dtype)[:1]
        got = np.zeros(1, dtype)
        swap[1, 1](x, values, got, (me + 1) % 3)
        after = x.numpy()
        shmem.finalize()
        wanted = numbers(me, dtype)[:3]
        wanted[1] = numbers((me - 1) % 3 + 100, dtype)[0]
        assert same(after, wanted)
        assert same(got, values)

    like = np.zeros(N, dtype)
    compile_first(swap, like, like, like, 0)
    run_pes(body, 3)


@pytest.mark.checked
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

    run_pes(body, 1)


# --- elements that are not aligned

PACKED = np.dtype([("tag", "i1"), ("x", "f8"), ("n", "i4")])  # 13 bytes: no field is aligned
ODD_DTYPES = {"int16": 1, "int64": 3, "float32": 5, "complex128": 7, PACKED: 1}


@pytest.mark.unaligned
def test_elements_at_odd_addresses_are_moved_as_others_are(run_pes):
    """Arrays made of bytes, from an odd one on; in kernels and on the host, p and g as well."""

    @shmem.jit
    def move(dst, src, fetched, strided, got, pe):
        shmem.put(dst[1:6], src[2:], pe)
        shmem.iput(strided, src, 2, 3, 2, pe)
        shmem.p(dst[8:], src[0], pe)
        shmem.quiet()
        shmem.get(fetched[1:], dst[1:6], pe)
        got[0] = shmem.g(dst[8:], pe)

    def odd(values, make, start):
        bytes_ = make(np.zeros(values.nbytes + 16, np.uint8))
        array = bytes_[start : start + values.nbytes].view(values.dtype)
        array.copy_from(values)
        return array

    def body():
        shmem.init()
        me, right = shmem.my_pe(), (shmem.my_pe() + 1) % 2
        for dtype, start in ODD_DTYPES.items():
            there, here, mine = (numbers(k, dtype)[:10] for k in (0, 10 + right, 10 + me))
            for on_host in (False, True):
                dst, strided = (odd(a, shmem.array, start) for a in (there, there[:4]))
                src, fetched, got = (
                    odd(a, shmem.to_device, start) for a in (mine[:7], there[:6], there[:1])
                )
                assert not np.asarray(dst).flags.aligned or dtype is PACKED
                shmem.barrier_all()  # the other may be ahead
                if on_host:
                    shmem.put(dst[1:6], src[2:], right)
                    shmem.iput(strided, src, 2, 3, 2, right)
                    shmem.p(dst[8:], mine[0], right)
                    shmem.quiet()
                    shmem.get(fetched[1:], dst[1:6], right)
                    got.copy_from(shmem.g(dst[8:], right))
                else:
                    move[1, 1](dst, src, fetched, strided, got, right)
                shmem.barrier_all()
                whole, parts = there.copy(), there[:4].copy()
                whole[1:6], whole[8], parts[::2] = here[2:7], here[0], here[:6:3]
                assert same(dst.numpy(), whole), (dtype, on_host)
                assert same(strided.numpy(), parts), (dtype, on_host)
                assert same(fetched.numpy(), np.append(there[:1], mine[2:7])), (dtype, on_host)
                assert same(got.numpy(), mine[:1]), (dtype, on_host)
                shmem.barrier_all()
        shmem.finalize()

    run_pes(body, 2, timeout=120)


@pytest.mark.unaligned
def test_fields_of_packed_records_are_moved_as_arrays_are(run_pes):
    """The bytes of one field, seen as an array: at the record's place, and nothing beside it."""

    @shmem.jit
    def move(dst, src, pe):
        shmem.put(dst, src, pe)

    def body():
        shmem.init()
        records = shmem.array(numbers(0, PACKED)[:3])
        value = shmem.to_device(np.array([-2.5]))
        second = records.view("u1")[13 + 1 : 13 + 9].view("f8")
        for put in (shmem.put, move[1, 1]):
            records.copy_from(numbers(0, PACKED)[:3])
            put(second, value, 0)
            shmem.synchronize()
            shmem.quiet()
            expected = numbers(0, PACKED)[:3]
            expected["x"][1] = -2.5
            assert same(records.numpy(), expected)
        shmem.finalize()

    run_pes(body, 1)


@pytest.mark.checked
def test_atomics_and_waits_of_unaligned_elements_are_refused(run_pes):
    @shmem.jit
    def add(x):
        shmem.atomic_add(x, 1, 0)

    @shmem.jit
    def add_to_part(bytes_):
        shmem.atomic_fetch_or(bytes_[3:11].view(np.int64), 1, 0)

    @shmem.jit
    def wait(x):
        shmem.wait_until_any(x, None, shmem.CMP_NE, 0)

    def body():
        shmem.init()
        bytes_ = shmem.full(64, 1, dtype="uint8")
        x = bytes_[5:21].view("int64")
        for kernel, array in ((add, x), (add_to_part, bytes_), (wait, x)):
            kernel[1, 1](array)
            with pytest.raises(ArgumentError, match="is not aligned to its 8 bytes; atomic"):
                shmem.synchronize()
        for call in (
            lambda: shmem.atomic_add(x, 1, 0), lambda: shmem.atomic_compare_swap(x, 0, 1, 0),
            lambda: shmem.atomic_fetch(x, 0), lambda: shmem.wait_until(x, shmem.CMP_NE, 0),
            lambda: shmem.test_all(x, None, shmem.CMP_NE, 0),
        ):  # fmt: skip
            with pytest.raises(ArgumentError, match="is not aligned to its 8 bytes; atomic"):
                call()
        assert (bytes_.numpy() == 1).all()
        shmem.finalize()

    run_pes(body, 1)


# --- arrays that are not contiguous

HINT = "give the array it is part of to iput or iget, or copy it to an array that is"


@pytest.mark.parametrize("name", ["put", "get", "put_block", "get_nbi", "put_signal"])
def test_arrays_with_gaps_are_refused_with_a_hint(run_pes, name):
    """Columns, every other element, transposed: as source and as destination."""
    operation = OPS[name].function
    more = ("signal", "1", "9") if "signal" in name else ()
    scope = {"operation": operation}
    text = f"def move(dst, src, signal):\n    operation({', '.join(('dst', 'src', *more, '0'))})\n"
    exec(text, scope)
    move = shmem.jit(scope["move"])

    def body():
        shmem.init()
        whole, other = shmem.zeros((4, 6)), shmem.array(np.ones((4, 6)))
        signal = shmem.zeros(1, "uint64")
        views = [(np.s_[:, 1:3], (4, 2)), (np.s_[::2], (2, 6)), (np.s_[:, 2], (4,)),
                 (np.s_[..., ::-1], (4, 6))]  # fmt: skip
        cases = [(whole[part], np.empty(shape)) for part, shape in views]
        for gaps, filled in cases:
            for dst, src in ((gaps, shmem.array(filled)), (shmem.array(filled), gaps)):
                with pytest.raises(TypingError, match=f"is not contiguous .*{HINT}"):
                    move[1, 1](dst, src, signal)
                if OPS[name].host:
                    args = (dst, src, signal, 1, 9, 0) if more else (dst, src, 0)
                    with pytest.raises(ArgumentError, match=f"{name}.* not contiguous .*{HINT}"):
                        operation(*args)
        for part in (np.s_[1:3], np.s_[2, 1:4], np.s_[1:2, 2:5], np.s_[3:]):  # these have none
            move[1, 1](whole[part], other[part], signal)
            shmem.synchronize()
            shmem.quiet()
            assert (whole[part].numpy() == 1).all()
        assert whole.numpy().sum() == 3 * 6
        shmem.finalize()

    run_pes(body, 1)


def test_the_first_element_of_arrays_with_gaps_is_reached_by_kernels_and_hosts(run_pes):
    """p, g and atomics work on element 0; a peer array is made of the whole, then sliced."""

    @shmem.jit
    def touch(x, got):
        shmem.p(x[:, 1], 5, 0)
        shmem.atomic_add(x[1:, 2], 7, 0)
        got[0] = shmem.g(x[::-1, 3], 0)
        shmem.quiet()

    @shmem.jit
    def column(x):
        shmem.peer_array(x[:, 1], 0)[1] = 3

    @shmem.jit
    def of_whole(x):
        shmem.peer_array(x, 0)[1:, 1][0] = 3
        shmem.quiet()

    def body():
        shmem.init()
        expected = np.arange(12).reshape(3, 4)
        x, got = shmem.array(expected), np.zeros(1, int)
        touch[1, 1](x, got)
        of_whole[1, 1](x)
        expected[0, 1], expected[1, 2], expected[1, 1] = 5, 13, 3
        assert got[0] == 11
        np.testing.assert_array_equal(x.numpy(), expected)
        shmem.p(x[:, 1], 6, 0)
        shmem.atomic_add(x[1:, 2], 7, 0)
        shmem.quiet()
        assert shmem.g(x[::-1, 3], 0) == 11
        expected[0, 1], expected[1, 2] = 6, 20
        np.testing.assert_array_equal(x.numpy(), expected)
        with pytest.raises(TypingError, match=r"peer_array: array is not contiguous .* slice the"):
            column[1, 1](x)
        with pytest.raises(ArgumentError, match="peer_array: the remote array is not contiguous"):
            shmem.peer_array(x[:, 1], 0)
        shmem.finalize()

    run_pes(body, 1)


# --- warps with work of their own


@pytest.mark.checked
@pytest.mark.parametrize("threads", [32, 50, pytest.param(96, marks=pytest.mark.sweep)])
def test_each_warp_sends_once_what_is_its_own(run_pes, threads):
    """Also where some warps have a turn more, and with a call that all of them make alike."""

    @shmem.jit
    def send(rows, src, signal, pe):
        warp, warps = cuda.threadIdx.x // 32, (cuda.blockDim.x + 31) // 32
        for k in range(warp, src.shape[0], warps):
            shmem.put_signal_warp(rows[k], src[k], signal, 1 << k, shmem.SIGNAL_ADD, pe)
        shmem.put_signal_warp(rows[0, :0], src[0, :0], signal, 1 << 40, shmem.SIGNAL_ADD, pe)

    @shmem.jit
    def unlike(rows, src, signal, pe):
        late = cuda.threadIdx.x == cuda.blockDim.x - 3
        shmem.put_signal_warp(rows[0], src[3 if late else 0], signal, 1, shmem.SIGNAL_ADD, pe)

    def body():
        shmem.init()
        me, n, warps = shmem.my_pe(), shmem.n_pes(), -(-threads // 32)
        rows, signal = shmem.zeros((7, 5), "int64"), shmem.zeros(1, "uint64")
        src = shmem.to_device(1000 * me + np.arange(35).reshape(7, 5))
        send[1, threads](rows, src, signal, (me + 1) % n)
        shmem.barrier_all()
        wanted = 1000 * ((me - 1) % n) + np.arange(35).reshape(7, 5)
        np.testing.assert_array_equal(rows.numpy(), wanted)
        assert signal.numpy().tolist() == [127 + (warps << 40)]
        shmem.barrier_all()
        with pytest.raises(KernelError, match=r"put_signal_warp: its src begins 120 bytes"):
            unlike[1, threads](rows, src, signal, me)
            shmem.synchronize()

    run_pes(body, 2)


# --- nothing at all


@pytest.mark.checked
def test_nothing_is_moved_to_anywhere(run_pes):
    """Arrays without elements, of any shape, wherever they are; p, g and atomics have no target."""

    @shmem.jit
    def move(dst, src, signal, pe):
        shmem.put(dst, src, pe)
        shmem.get(dst, src, pe)
        shmem.put_nbi(dst, src, pe)
        shmem.get_nbi(dst, src, pe)
        shmem.iput(dst, src, 1, 2, 0, pe)
        shmem.iget(dst, src, 3, 1, 0, pe)
        shmem.put_signal(dst, src, signal, 1, shmem.SIGNAL_ADD, pe)
        shmem.put_signal_nbi(dst, src, signal, 1, shmem.SIGNAL_ADD, pe)
        shmem.peer_array(dst, pe)
        shmem.quiet()

    @shmem.jit
    def in_block(dst, src, pe):
        shmem.put_block(dst, src, pe)
        shmem.get_warp(dst, src, pe)
        shmem.iput_block(dst, src, 1, 1, 0, pe)

    @shmem.jit
    def first(dst, value):
        shmem.p(dst, value, 0)

    def body():
        shmem.init()
        me, other = shmem.my_pe(), 1 - shmem.my_pe()
        whole, signal = shmem.full((4, 6), me, "int64"), shmem.zeros(1, "uint64")
        arrays = [shmem.zeros(0, "int64"), shmem.zeros((0, 3), "int64"), whole[4:], whole[2:2],
                  whole[0, 6:]]  # fmt: skip
        last = shmem.empty(shmem.heap_stats().largest_free // 8, "int64")
        arrays.append(last[last.size :])  # at the heap's end
        assert all(a.size == 0 for a in arrays)
        for dst in arrays:
            src = arrays[0] if dst.ndim == 1 else dst
            move[1, 1](dst, src, signal, other)
            in_block[1, 32](dst, src, other)
            shmem.put(dst, src, other)
            shmem.get(dst, src, other)
            shmem.iput(dst, src, 1, 1, 0, other)
            shmem.iget(dst, src, 1, 1, 0, other)
            shmem.put_signal(dst, src, signal, 1, shmem.SIGNAL_ADD, other)
            assert shmem.peer_array(dst, other).shape == dst.shape
        shmem.barrier_all()
        assert signal.numpy().tolist() == [3 * len(arrays)]
        assert (whole.numpy() == me).all()
        for call in (
            lambda: shmem.p(arrays[0], 1, 0), lambda: shmem.g(arrays[2], 0),
            lambda: shmem.atomic_inc(arrays[1], 0), lambda: first[1, 1](arrays[5], 1),
        ):  # fmt: skip
            with pytest.raises(ArgumentError, match="the array has no element 0"):
                call()
                shmem.synchronize()
        shmem.finalize()

    run_pes(body, 2)


@pytest.mark.parametrize("shift", [0, 1, 63])
def test_large_copies(run_pes, shift):
    """More than the caches keep: another way of copying, up to any byte and from any byte on."""
    n = (1 << 16 if CALLED else 24 << 20) + 77

    @shmem.jit
    def move(there, back, src, pe):
        shmem.put(there[shift : shift + src.size], src, pe)
        shmem.quiet()
        shmem.barrier_all()
        shmem.get(back[1 : 1 + src.size], there[shift:], pe)

    def body():
        shmem.init()
        me = shmem.my_pe()
        src = to_send(np.random.default_rng(me).integers(0, 255, n, np.uint8))
        there, back = shmem.full(n + 200, 255, np.uint8), shmem.full(n + 2, 254, np.uint8)
        move[1, 1](there, back, src, 1 - me)
        shmem.barrier_all()
        theirs = np.random.default_rng(1 - me).integers(0, 255, n, np.uint8)
        got = there.numpy()
        np.testing.assert_array_equal(got[shift : shift + n], theirs)
        assert (np.delete(got, np.s_[shift : shift + n]) == 255).all()
        got = back.numpy()
        np.testing.assert_array_equal(got[1:-1], src.numpy())
        assert (got[[0, -1]] == 254).all()
        shmem.finalize()

    like = np.zeros(1, np.uint8)
    compile_first(move, like, like, like, 0)
    run_pes(body, 2, heap_size=128 << 20)


@pytest.mark.checked
def test_strides_whose_product_overflows_are_refused(run_pes):
    """With 64 bits they come out small, or as 0, and a check of the product would pass."""

    @shmem.jit
    def strided(a, b, dst_stride, src_stride, n):
        shmem.iput(a, b, dst_stride, src_stride, n, 0)

    @shmem.jit
    def exchanged(a, b, stride, n):
        shmem.alltoalls(shmem.TEAM_WORLD, a, b, stride, stride, n)

    def body():
        shmem.init()
        a, b = shmem.zeros(8, "int64"), shmem.ones(8, "int64")
        for kind in (int, np.uint64):
            for numbers in ((2**48, 2**48, 2**16 + 1), (2**62, 2**62, 5), (1, 2**63 - 1, 3)):
                given = tuple(map(kind, numbers))
                with pytest.raises(ArgumentError, match=r"element \d+ is outside of an array of 8"):
                    strided[1, 1](a, b, *given)
                    shmem.synchronize()
                with pytest.raises(ArgumentError, match="is outside of an array of 8"):
                    shmem.iput(a, b, *given, 0)
        with pytest.raises(ArgumentError, match="is outside of an array of 8"):
            exchanged[1, 1](a, b, 1, 2**62)
            shmem.synchronize()
        with pytest.raises(ArgumentError, match="is outside of an array of 8"):
            shmem.alltoalls(shmem.TEAM_WORLD, a, b, 1, 1, 2**62)
        assert not a.numpy().any()
        shmem.finalize()

    run_pes(body, 4)
