"""`load_vector` and `store_vector`: dtypes, sizes, accesses; places; as flags between PEs."""

import numpy as np
import pytest
from numba import cuda

import gpushmem as shmem
from gpushmem.errors import ArgumentError
from gpushmem.ops.roles import LoadAccess, StoreAccess
from tests import pes
from tests.conformance.test_multimem import numbers_of
from tests.pes import compile_first, repeated

NEAR = pes.on_several_nodes("memory of the others is not mapped")
# dtype, elements of one vector; then how both are made.
CASES = [
    ("float32", 4, "weak", "stream"), ("int8", 16, "relaxed.sys", "release.gpu"),
    ("float16", 16, "acquire.cta", "relaxed.cta"), ("complex128", 1, "acquire.sys", "weak"),
    ("bfloat16", 2, "stream", "release.sys"), ("bool", 2, "relaxed.gpu", "relaxed.gpu"),
    ("uint8", 1, "relaxed.cta", "release.cta"), ("int64", 1, "weak", "weak"),
    ("uint16", 1, "weak", "relaxed.sys"), ("float64", 2, "acquire.gpu", "release.sys"),
    ("complex64", 2, "relaxed.sys", "stream"), ("int32", 2, "stream", "weak"),
]  # fmt: skip


def kernel_of(load, store, n, count=40):
    """Copies vectors, those with odd numbers backwards."""
    scope = {"shmem": shmem, "load": load, "store": store}
    backwards = ", ".join(f"v[{k}]" for k in reversed(range(n)))
    exec(
        f"""def kernel(dst, src, first, last):
    for k in range(first, last):
        v = shmem.load_vector(src, {n} * k, {n}{f', "{load}"' if load else ""})
        if k % 2 == 0:
            shmem.store_vector(dst, {n} * k, v{f', access="{store}"' if store else ""})
        else:
            shmem.store_vector(dst, {n} * k, ({backwards},){f', "{store}"' if store else ""})
""",
        scope,
    )
    return shmem.jit(scope["kernel"])


def wanted(values, n, first, last):
    made = np.full_like(values, 7)
    made[n * first : n * last] = values[n * first : n * last]
    rows = made.reshape(-1, n)
    odd = [k for k in range(first, last) if k % 2]
    rows[odd] = rows[odd][:, ::-1]
    return made


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=[pytest.mark.sweep] * (k > 4), id=c[0]) for k, c in enumerate(CASES)],
)
def test_elements_are_where_they_were(alone, case):
    dtype, n, load, store = case
    values = numbers_of(0, "uint8" if dtype == "bool" else dtype, 40 * n)
    values = (values % 2).astype(dtype) if dtype == "bool" else values
    kernel = kernel_of(load, store, n)
    for make in (shmem.to_device, shmem.array):
        src = make(values)
        dst = make(np.full_like(values, 7))
        kernel[1, 1](dst, src, 3, 38)
        np.testing.assert_array_equal(dst.numpy(), wanted(values, n, 3, 38))


def test_without_a_word_it_is_as_any_load_and_store(alone):
    values = np.arange(160, dtype="float32").reshape(8, 20)
    src, dst = shmem.to_device(values), shmem.to_device(np.full_like(values, 7))
    kernel_of("", "", 4)[1, 1](dst, src, 0, 40)
    np.testing.assert_array_equal(dst.numpy().ravel(), wanted(values.ravel(), 4, 0, 40))


def test_values_are_converted(alone):
    @shmem.jit
    def kernel(halves, flags):
        shmem.store_vector(halves, 0, (1, 2.5, True, np.float32(4)))
        shmem.store_vector(flags, 0, (1, -1), "relaxed.cta")

    halves, flags = shmem.zeros(4, "float16"), shmem.zeros(2, "int8")
    kernel[1, 1](halves, flags)
    np.testing.assert_array_equal(halves.numpy(), np.array([1, 2.5, 1, 4], "float16"))
    np.testing.assert_array_equal(flags.numpy(), [1, -1])


@pytest.mark.cpu_backend
@pytest.mark.parametrize("i", [1, 2, 3])
def test_a_place_between_is_refused(alone, i):
    @shmem.jit
    def loads(x, i):
        x[0] = shmem.load_vector(x, i, 4)[0]

    @shmem.jit
    def stores(x, i):
        shmem.store_vector(x, i, (1, 2, 3, 4), "relaxed.sys")

    x = shmem.zeros(8, "float32")
    for kernel, name in ((loads, "load_vector"), (stores, "store_vector")):
        with pytest.raises(ArgumentError, match=f"{name}: .* is not aligned to its 16 bytes"):
            kernel[1, 1](x, i)
            shmem.synchronize()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("shmem.load_vector(x, 0, 3)", r"3 elements of float32 are 12 bytes; a vector has 1, 2"),
        ("shmem.load_vector(x, 0, 64)", "64 elements of float32 are 256 bytes"),
        ("shmem.load_vector(x, 0, 0)", "0 elements of float32 are 0 bytes"),
        ("shmem.load_vector(x, 0, n)", "n must be an integer written in the call, not int64"),
        (
            "shmem.load_vector(x, 0, 2, 'release.sys')",
            "access must be one of 'weak', 'stream', 're",
        ),
        ("shmem.store_vector(x, 0, (1, 2), 'acquire.sys')", "access must be one of 'weak'"),
        ("shmem.store_vector(x, 0, 1)", "value must be a tuple of values for the array, not"),
        ("shmem.store_vector(x, 0, ('a', 'b'))", "for the array, of float32; there is 'a'"),
        ("shmem.load_vector(x[::2], 0, 2)", r"array is not contiguous"),
    ],
)
def test_calls_that_do_not_compile(alone, call, text):
    scope = {"shmem": shmem}
    exec(f"def kernel(x, n):\n    {call}", scope)
    with pytest.raises(Exception, match=f"vector: .*{text}"):
        shmem.jit(scope["kernel"])[1, 1](shmem.zeros(8, "float32"), 4)


# --- between PEs


@shmem.jit(collective=True)
def passed_on(x, flags, got, rounds):
    """Data go round a ring, each followed by a flag: by a store that releases."""
    me, n = shmem.my_pe(), shmem.n_pes()
    right = (me + 1) % n
    box, told = shmem.peer_array(x, right), shmem.peer_array(flags, right)
    taken = shmem.peer_array(flags, (me + n - 1) % n)
    for k in range(rounds):
        for j in range(0, x.size, 2):
            shmem.store_vector(box, j, (1000 * me + k, j))
        shmem.store_vector(told, 0, (k + 1,), "release.sys")
        while shmem.load_vector(flags, 0, 1, "acquire.sys")[0] <= k:
            pass
        for j in range(0, x.size, 2):
            v = shmem.load_vector(x, j, 2)
            got[k, j], got[k, j + 1] = v[0], v[1]
        shmem.store_vector(taken, 8, (k + 1,), "release.sys")  # the box may be written again
        while shmem.load_vector(flags, 8, 1, "acquire.sys")[0] <= k:
            pass


@NEAR
@pytest.mark.parametrize("n_pes", [2, 3, pytest.param(5, marks=pytest.mark.sweep)])
def test_who_sees_a_flag_sees_what_was_stored_before(run_pes, n_pes):
    rounds, size = repeated(200, if_checked=5), 12
    line = np.zeros(1, "int64")
    compile_first(passed_on, line, line, line.reshape(1, 1), 1)

    def body():
        shmem.init()
        x, flags = shmem.zeros(size, "int64"), shmem.zeros(16, "int64")
        got = shmem.device_array((rounds, size), "int64")
        passed_on[1, 1](x, flags, got, rounds)
        result = got.numpy()
        shmem.finalize()
        return result

    for me, result in enumerate(run_pes(body, n_pes)):
        k, j = np.indices(result.shape)
        left = (me - 1) % n_pes
        np.testing.assert_array_equal(result, np.where(j % 2, j - 1, 1000 * left + k))


@shmem.jit(collective=True)
def with_flags_inside(x, got, rounds):
    """Each 8 bytes have data and the number of the round; nobody waits before they are reused."""
    me, n = shmem.my_pe(), shmem.n_pes()
    box = shmem.peer_array(x, (me + 1) % n)
    for k in range(rounds):
        slot = k % 2 * 8  # whose reader has been here since: its own data come round the ring
        shmem.store_vector(box, slot, (1000 * me + k, k + 1, 7 * k, k + 1), "relaxed.sys")
        v = shmem.load_vector(x, slot, 4, "relaxed.sys")
        while v[1] != k + 1 or v[3] != k + 1:
            v = shmem.load_vector(x, slot, 4, "relaxed.sys")
        got[k, 0], got[k, 1] = v[0], v[2]


@NEAR
@pytest.mark.parametrize("n_pes", [2])
def test_eight_bytes_arrive_as_one(run_pes, n_pes):
    """As NCCL's protocol LL: of two PEs, who has round k has been sent it after round k - 1."""
    rounds, line = repeated(300, if_checked=5), np.zeros(1, "int32")
    compile_first(with_flags_inside, line, line.reshape(1, 1), 1)

    def body():
        shmem.init()
        x, got = shmem.zeros(16, "int32"), shmem.device_array((rounds, 2), "int32")
        with_flags_inside[1, 1](x, got, rounds)
        result = got.numpy()
        shmem.finalize()
        return result

    for me, result in enumerate(run_pes(body, n_pes)):
        k = np.arange(rounds)
        np.testing.assert_array_equal(result.T, [1000 * (1 - me) + k, 7 * k])


def test_every_access_is_tested():
    loads, stores = ({case[which] for case in CASES} for which in (2, 3))
    assert loads == {*LoadAccess.names}
    assert stores == {*StoreAccess.names}


def test_loops_of_many_more_turns_than_threads(run_pes):
    """What an error would say of a turn is not kept for each of them, behind what threads keep."""

    @shmem.jit
    def copied(dst, src):
        for k in range(cuda.threadIdx.x, src.size // 4, cuda.blockDim.x):
            shmem.store_vector(dst, 4 * k, shmem.load_vector(src, 4 * k, 4))
        cuda.syncthreads()

    def body():
        shmem.init()
        values = np.arange(1 << 16, dtype="float32")
        src, dst = shmem.array(values), shmem.zeros(values.size, "float32")
        for _ in range(5):
            copied[1, 32](dst, src)
        return (dst.numpy() == values).all()

    assert run_pes(body, 1) == [True]
