"""What the host calls on the nvshmem backend, on the emulated driver.

What NVSHMEM puts on a stream itself is really done; of what becomes a kernel the launch is looked
at, and a callback writes what the kernel would have returned.
"""

import re

import numpy as np
import pytest

import gpushmem as shmem
from gpushmem.ops import OPS
from tests.nvshmem import emulation, host
from tests.nvshmem.emulation import driver

pytestmark = pytest.mark.skipif(emulation.missing() is not None, reason=str(emulation.missing()))

SIZES = [1, 2, 3]
POISON = -7


def own(me, n, dtype=np.int64):
    return (1000 * me + np.arange(n)).astype(dtype)


def streams():
    """No stream, the default one, ours, cuda.core's, and another library's."""
    from cuda.core import Device

    theirs = Device().create_stream()

    class Torch:
        cuda_stream = int(theirs.handle)
        kept = theirs

    return [None, 0, shmem.stream(), theirs, Torch()]


@host.in_pes(*SIZES)
def test_copies(me, n):
    right, left = (me + 1) % n, (me - 1) % n
    for stream in streams():
        for count in (1, 3, 7):
            x, y = shmem.array(own(me, 9)), shmem.full(9, POISON)
            local = shmem.to_device(own(me + 50, 9))
            shmem.put(y[1:], local[2 : 2 + count], right, stream=stream)
            shmem.fence(stream=stream)
            shmem.flush(stream=stream)
            shmem.quiet(stream=stream)
            shmem.barrier_all(stream=stream)
            want = np.full(9, POISON)
            want[1 : 1 + count] = own(left + 50, 9)[2 : 2 + count]
            assert (y.numpy() == want).all()
            shmem.get(local[: count + 1], x[8 - count :], right, stream=stream)
            want = own(me + 50, 9)
            want[: count + 1] = own(right, 9)[8 - count :]
            assert (local.numpy() == want).all()
            assert (x.numpy() == own(me, 9)).all()
            assert (shmem.g(x[count:], right, stream=stream) is None) == (stream is not None)
            shmem.barrier_all()
            shmem.free(x)
            shmem.free(y)
    x = shmem.array(own(me, 4))
    assert shmem.g(x, right) == 1000 * right
    shmem.p(x[2:], 3.9, right)
    shmem.barrier_all()
    assert x.numpy().tolist() == [1000 * me, 1000 * me + 1, 3, 1000 * me + 3]
    shmem.put(x[4:], shmem.device_array(0, np.int64), right)
    assert type(shmem.g(x, me)) is np.int64


@host.in_pes(*SIZES)
def test_signals(me, n):
    right, left = (me + 1) % n, (me - 1) % n
    for k, stream in enumerate(streams()):
        x, y = shmem.array(own(me, 3)), shmem.full(5, POISON)
        flags = shmem.zeros(3, np.uint64)
        shmem.put_signal(y[1:], x, flags[1:], 7, shmem.SIGNAL_SET, right, stream=stream)
        seen = shmem.signal_wait_until(flags[1:], shmem.CMP_EQ, 7, stream=stream)
        assert seen == (None if stream is not None else 7)
        assert y.numpy().tolist() == [POISON, *own(left, 3), POISON]
        shmem.barrier_all()
        shmem.signal_op(flags[1:], 2**63, shmem.SIGNAL_ADD, right, stream=stream)
        shmem.signal_wait_until(flags[1:], shmem.CMP_GT, 2**63, stream=stream)
        assert flags.numpy().tolist() == [0, 2**63 + 7, 0]
        assert x.numpy().tolist() == own(me, 3).tolist(), k
        shmem.barrier_all()


def expected(name, team, parts):
    """What a collective makes of the members' `parts` for each of them."""
    n = len(parts)
    if name == "broadcast":
        return [parts[n - 1]] * n
    if name == "fcollect":
        return [np.concatenate(parts)] * n
    if name == "alltoall":
        cut = [np.split(part, n) for part in parts]
        return [np.concatenate([cut[i][k] for i in range(n)]) for k in range(n)]
    combined = {"sum": np.add, "min": np.minimum, "max": np.maximum}[name.partition("-")[2]]
    result = combined.reduce(parts)
    return [result] * n if name.startswith("reduce-") else np.split(result, n)


CALLS = {
    "broadcast": lambda t, d, s, **k: shmem.broadcast(t, d, s, t.n_pes - 1, **k),
    "fcollect": shmem.fcollect,
    "alltoall": shmem.alltoall,
} | {
    f"{name}-{op}": lambda t, d, s, name=name, op=op, **k: getattr(shmem, name)(t, d, s, op, **k)
    for name in ("reduce", "reducescatter")
    for op in ("sum", "min", "max")
}
DTYPES = ["i1", "u2", "i4", "u8", "f2", "f4", "f8", "c16", "bfloat16", [("a", "i4"), ("b", "f8")]]


@host.job
def collectives(me, n):
    import ml_dtypes

    shmem.barrier_all()
    teams = {shmem.TEAM_WORLD: list(range(n))}
    if n == 3:
        pair = shmem.team_split_strided(shmem.TEAM_WORLD, 0, 2, 2)
        teams |= {pair: [0, 2]} if pair else {}
    for team, members in teams.items():
        rank, size = members.index(me), len(members)
        for name, call in CALLS.items():
            for code in DTYPES:
                dtype = np.dtype(ml_dtypes.bfloat16 if code == "bfloat16" else code)
                if "reduce" in name and dtype.kind in "cV" and code != "bfloat16":
                    continue
                parts = [own(pe, size * 3, np.int64) % 120 for pe in members]
                if dtype.names:
                    parts = [np.array([(v, -v) for v in part.tolist()], dtype) for part in parts]
                parts = [part.astype(dtype) for part in parts]
                want = expected(name, team, parts)[rank]
                src, dst = shmem.empty(20, dtype), shmem.empty(20, dtype)
                for array in (src, dst):
                    array.view(np.uint8).copy_from(0xEE)
                src[1 : 1 + size * 3] = parts[rank]
                poison = dst.numpy()
                if team != shmem.TEAM_WORLD:
                    shmem.barrier(team)
                else:
                    shmem.barrier_all()
                call(team, dst[2:], src[1 : 1 + size * 3])
                poison[2 : 2 + len(want)] = want
                assert dst.numpy().tobytes() == poison.tobytes(), (name, dtype)
                assert src[1 : 1 + size * 3].numpy().tobytes() == parts[rank].tobytes()
                # On the heap of all: the others have to free it, too.
                shmem.runtime.current().heap.free(src.offset)
                shmem.runtime.current().heap.free(dst.offset)
    if n == 3:
        shmem.sync_all()
        for stream in streams():
            if me != 1:
                shmem.barrier(pair, stream=stream)
                shmem.sync(pair, stream=stream)
            shmem.sync(shmem.TEAM_WORLD, stream=stream)
            shmem.sync_all(stream=stream)
            x, y = shmem.full(1, me + 1), shmem.full(2, POISON)
            shmem.reduce(shmem.TEAM_WORLD, y[1:], x, "sum", stream=stream)
            assert y.numpy().tolist() == [POISON, 6]
            shmem.reduce(shmem.TEAM_WORLD, x, x, "max", stream=stream)
            assert x[0] == 3


def test_collectives_alone():
    host.run(1, collectives)


def test_collectives_of_two():
    host.run(2, collectives)


@host.in_pes(1, limit=150)
def test_collectives_of_nothing(me, n):
    """NVSHMEM's broadcast would launch no thread, and end the process: a kernel does it."""
    x = shmem.zeros(4, np.int32)
    for stream in streams():
        before = len(driver.launches())
        shmem.broadcast(shmem.TEAM_WORLD, x[:0], x[2:2], 0, stream=stream)
        shmem.fcollect(shmem.TEAM_WORLD, x[:0], x[2:2], stream=stream)
        assert len(driver.launches()) == before + 1


# --- PEs that share a GPU


@host.job
def without_mps(me, n):
    right, left = (me + 1) % n, (me - 1) % n
    x, y, flag = shmem.array(own(me, 3)), shmem.full(5, POISON), shmem.zeros(1, np.uint64)
    shmem.put_signal(y[1:], x, flag, 2, shmem.SIGNAL_SET, right)
    shmem.barrier_all()
    assert y.numpy().tolist() == [POISON, *own(left, 3), POISON]
    assert flag[0] == 2
    shmem.get(y[:1], x[1:2], right)
    assert y[0] == 1000 * right + 1
    shmem.sync_all()
    found = []
    for call in (
        lambda: shmem.signal_wait_until(flag, shmem.CMP_EQ, 2),
        lambda: shmem.barrier(shmem.TEAM_WORLD),
        lambda: shmem.sync(shmem.TEAM_WORLD),
        lambda: shmem.fcollect(shmem.TEAM_WORLD, y, x[:1]),
        lambda: shmem.collect(shmem.TEAM_WORLD, y, x[:1]),
        lambda: shmem.reduce(shmem.TEAM_WORLD, x, x, "sum"),
        lambda: shmem.team_split_strided(shmem.TEAM_WORLD, 0, 1, 1),
        lambda: shmem.team_split_2d(shmem.TEAM_WORLD, 1),
    ):
        with pytest.raises(shmem.ShmemError, match=r"PEs share a GPU without MPS.* barrier_all"):
            call()
    assert shmem.TEAM_WORLD.n_pes == n
    for k in range(5):  # meetings follow each other
        with pytest.raises(shmem.CollectiveMismatch) as error:
            shmem.empty(10 + me + k, np.uint8)
        found.append(str(error.value))
        shmem.zeros(k)
    return found


@pytest.mark.parametrize("n", [2, 3])
def test_pes_that_share_a_gpu_without_mps(n):
    for found in host.run(n, without_mps, EMULATION_DEVICES=1, EMULATION_MPS=0):
        for k, text in enumerate(found):
            said = [f"PE {pe}: empty of {10 + pe + k} bytes" for pe in range(n)]
            assert "; ".join(said) in text


# --- what becomes a kernel

KERNELS = [
    op.name for op in OPS.values()
    if op.host and (op.base.startswith(("atomic", "wait", "test")) or op.base in (
        "iput", "iget", "signal_fetch", "collect", "alltoalls"))
]  # fmt: skip
QUICK = ("atomic_fetch_add", "iput", "signal_fetch")
WRITTEN = 3  # by the callback, to where the result is awaited


def words_of(value):
    """A kernel's parameters for one of its arguments."""
    if value is None:
        return [0]
    if isinstance(value, shmem.DeviceArray):
        address = value.__cuda_array_interface__["data"][0]
        return [0, 0, value.size, value.dtype.itemsize, address, *value.shape, *value.strides]
    return [int(value)]


class Kernel:
    """In the place of a kernel: notes the launch, and writes the result."""

    def __init__(self, dtype):
        self.launches, self.dtype = [], np.dtype(dtype)
        driver.on_launch(self)

    def __call__(self, launch):
        self.launches.append(launch)
        driver.view(launch.integer(4), 1, self.dtype)[0] = WRITTEN

    def check(self, name, given, stream=None):
        """The only launch since the last call was of this row with these arguments."""
        (launch,) = self.launches
        self.launches.clear()
        words = [launch.integer(i) for i in range(len(launch.params))]
        want = [word for value in given for word in words_of(value)]
        masks = [(1 << 8 * len(param)) - 1 for param in launch.params]
        assert words[:4] == [0, 0, 1, self.dtype.itemsize], "where the result goes"
        assert words[7:] == [w & m for w, m in zip(want, masks[7:], strict=True)]
        block = f"{OPS[name].base}_block"
        row = block if block in OPS else name
        assert re.search(rf"host_kernels\d+{row}B", launch.name), launch.name
        assert stream is None or launch.stream == int(stream.__cuda_stream__()[1])
        assert (launch.grid, launch.shared) == ((1, 1, 1), 0)
        assert launch.block == ((256 if row == block else 1), 1, 1)
        return launch


def arguments_of(op, n):
    """Arguments for a row, of its parameters."""
    signal = shmem.zeros(4, np.uint64)
    x, y = shmem.full(9, POISON, np.int64), shmem.full(9, POISON, np.int64)
    several = {"status": shmem.to_device(np.zeros(4, np.int32)),
               "indices": shmem.to_device(np.zeros(4, np.int64))}  # fmt: skip
    value = shmem.to_device(np.ones(4, np.uint64)) if op.base.endswith("_vector") else 5
    known = {
        "dst": x[1:], "src": y[2:5], "ivar": x, "ivars": signal, "signal": signal, "pe": n - 1,
        "value": value, "cond": 3, "cmp": shmem.CMP_GE, "team": shmem.TEAM_WORLD,
        "dst_stride": 2, "src_stride": 1, "nelems": 2, **several,
    }  # fmt: skip
    if op.base == "gemm":
        known = {name: shmem.full((4, 4), POISON, "float32") for name in ("dst", "a", "b")}
        known["accumulate"] = False
    return {name: known[name] for name in op.params if name in known}


@host.job
def as_kernels(me, n, names):
    for name in names:
        op = OPS[name]
        given = arguments_of(op, n)
        kernel = Kernel("uint64" if "signal" in op.base else "int64")
        if op.result() == "bool":
            kernel.dtype = np.dtype(bool)
        want = None if op.result() is None else kernel.dtype.type(WRITTEN)
        op.function(**given)  # loads it
        used = driver.memory_used(me)
        kernel.launches.clear()
        result = op.function(**given)
        kernel.check(name, given.values())
        assert (result, type(result)) == (want, type(want)), name
        if "stream" in op.function.__signature__.parameters:
            stream = shmem.stream()
            assert op.function(**given, stream=stream) is None
            kernel.check(name, given.values(), stream)
        assert driver.memory_used(me) == used, "to free memory would wait for all kernels"
        driver.on_launch(None)


def test_operations_that_become_kernels():
    host.run(2, as_kernels, QUICK)


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(8))
def test_all_operations_that_become_kernels(first):
    host.run(1, as_kernels, KERNELS[first::8], limit=120)


@host.in_pes(1)
def test_waits_with_a_timeout(me, n):
    signal = shmem.zeros(2, np.uint64)
    kernel = Kernel(bool)
    assert shmem.signal_wait_until(signal, shmem.CMP_EQ, 2, timeout_ns=10**9) == np.True_
    kernel.check("signal_wait_until", [signal, shmem.CMP_EQ, 2, 10**9])
    shmem.signal_wait_until(signal, shmem.CMP_EQ, 2, timeout_ns=2**70)
    kernel.check("signal_wait_until", [signal, shmem.CMP_EQ, 2, 2**63 - 1])


@host.in_pes(1)
def test_values_put_on_a_stream(me, n):
    """Each has a value of its own, however late the stream comes to it."""
    x, stream = shmem.full(4, POISON), shmem.stream()
    kernel = Kernel(np.int64)
    shmem.preload(shmem.p, x, 0.5, n - 1, stream=stream)
    driver.hold(stream)
    for k in range(3):
        shmem.p(x[k:], 10 + k + 0.5, n - 1, stream=stream)
    assert kernel.launches == []
    driver.let_go(stream)
    launches = list(kernel.launches)
    for k, launch in enumerate(launches):
        kernel.launches[:] = [launch]
        kernel.check("p", [x[k:], 10 + k, n - 1], stream)
    assert len(launches) == 3


@host.in_pes(1)
def test_arrays_of_the_host(me, n):
    """`indices`, `status` and `value` may be NumPy's: then the call waits, on a stream, too."""
    ivars = shmem.zeros(3, np.uint64)
    status, value = np.array([0, 1, 0], np.int32), np.array([5, 6, 7], np.uint64)

    def kernel(launch):
        """The host's array has gaps, its copy none."""
        words = [launch.integer(i) for i in range(len(launch.params))]
        assert words[16:18] + words[19:21] == [3, 8, 3, 8]
        driver.view(words[4], 1, np.int64)[0] = 2
        indices = driver.view(words[18], 3, np.int64)
        assert indices.tolist() == [9, 9, 9]
        indices[:2] = 0, 2
        assert driver.view(words[25], 3, np.int32).tolist() == [0, 1, 0]
        assert driver.view(words[33], 3, np.uint64).tolist() == [5, 6, 7]

    driver.on_launch(kernel)
    shmem.wait_until_some_vector(ivars, np.full(3, 9), status, shmem.CMP_GE, value)
    used = driver.memory_used(me)
    for stream in (None, shmem.stream()):
        indices = np.full(6, 9)
        found = shmem.wait_until_some_vector(
            ivars, indices[::2], status, shmem.CMP_GE, value, stream=stream
        )
        assert driver.failures == []
        assert indices.tolist() == [0, 9, 2, 9, 9, 9]
        assert found == (2 if stream is None else None)
    assert driver.memory_used(me) == used


# --- what is refused, in the words of the cpu backend


def refusals():
    n = shmem.n_pes()
    x, y = shmem.zeros(6, np.int64), shmem.zeros(6, np.float32)
    signal, local = shmem.zeros(2, np.uint64), shmem.device_array(6, np.int64)
    replace, equal, world = shmem.SIGNAL_SET, shmem.CMP_EQ, shmem.TEAM_WORLD
    calls = [
        lambda: shmem.put(x, local, n),
        lambda: shmem.put(x, local, -1),
        lambda: shmem.put(x, local, 1.5),
        lambda: shmem.put(local, x, 0),
        lambda: shmem.put(x, y, 0),
        lambda: shmem.put(x[:3], local, 0),
        lambda: shmem.put(x, local[::2], 0),
        lambda: shmem.put(x, np.zeros(6, np.int64), 0),
        lambda: shmem.get(x, local, 0),
        lambda: shmem.get(local, x[:3], 0),
        lambda: shmem.get(local[::2], x, 0),
        lambda: shmem.get(y, x, 0),
        lambda: shmem.p(x[6:], 1, 0),
        lambda: shmem.p(x, 1, n),
        lambda: shmem.p(local, 1, 0),
        lambda: shmem.p(signal, -1, 0),
        lambda: shmem.g(local, 0),
        lambda: shmem.g(x[6:], 0),
        lambda: shmem.iput(x, local, 0, 1, 2, 0),
        lambda: shmem.iput(x, local, 1, 1, -2, 0),
        lambda: shmem.iput(x, local, 3, 1, 3, 0),
        lambda: shmem.iget(local, x, 1, 6, 2, 0),
        lambda: shmem.iget(local, y, 1, 1, 2, 0),
        lambda: shmem.iput(local, x, 1, 1, 1, 0),
        lambda: shmem.put_signal(x, local, signal, 1, 3, 0),
        lambda: shmem.put_signal(x, local, x, 1, replace, 0),
        lambda: shmem.put_signal(x[:2], local, signal, 1, replace, 0),
        lambda: shmem.put_signal(x, local, signal, -1, replace, 0),
        lambda: shmem.put_signal(x, local, signal, 1, replace, n),
        lambda: shmem.signal_op(signal, 2**64, replace, 0),
        lambda: shmem.signal_op(signal, 1.5, replace, 0),
        lambda: shmem.signal_op(signal, 1, 0, 0),
        lambda: shmem.signal_op(x, 1, replace, 0),
        lambda: shmem.signal_wait_until(signal, equal, 2**64),
        lambda: shmem.signal_wait_until(signal, equal, 1, timeout_ns=-1),
        lambda: shmem.signal_wait_until(signal, equal, 1, timeout_ns=1.5),
        lambda: shmem.wait_until(x, equal, 2**63),
        lambda: shmem.atomic_add(x, 1, n),
        lambda: shmem.atomic_add(local, 1, 0),
        lambda: shmem.atomic_inc(x[6:], 0),
        lambda: shmem.team_split_strided(world, 0, 1, n + 1),
        lambda: shmem.team_split_strided(world, 0, 1, 0),
        lambda: shmem.team_split_strided(world, n, 1, 1),
        lambda: shmem.team_split_2d(world, 0),
        lambda: shmem.team_destroy(world),
        lambda: shmem.ops.Team(17).n_pes,
        lambda: shmem.barrier(17),
        lambda: shmem.sync(shmem.TEAM_INVALID),
        lambda: shmem.signal_wait_until(x, equal, 0),
        lambda: shmem.signal_wait_until(signal, 9, 0),
        lambda: shmem.wait_until(x, -1, 0),
        lambda: shmem.wait_until(x, equal, 1.5),
        lambda: shmem.test_any(x, None, equal, 2**70),
        lambda: shmem.broadcast(world, x[:5], x, 0),
        lambda: shmem.broadcast(world, x, x[:2], n),
        lambda: shmem.broadcast(world, x, x[:2], -1),
        lambda: shmem.fcollect(world, x[:5], x[:6]),
        lambda: shmem.fcollect(world, x, y),
        lambda: shmem.fcollect(world, local, x),
        lambda: shmem.fcollect(world, x, local),
        lambda: shmem.alltoall(world, x[:5], x),
        lambda: shmem.alltoall(world, 5, x),
        lambda: shmem.alltoalls(world, x, x, 0, 1, 1),
        lambda: shmem.alltoalls(world, x, x, 1, 1, -1),
        lambda: shmem.alltoalls(world, x, x, 1, 3, 3),
        lambda: shmem.collect(world, x, local),
        lambda: shmem.collect(world, x, x[::2]),
        lambda: shmem.reduce(world, x[:5], x, "sum"),
        lambda: shmem.reduce(world, x, y, "sum"),
        lambda: shmem.reduce(world, x, x[::2], "sum"),
        lambda: shmem.reduce(world, y, y, "and"),
        lambda: shmem.reduce(world, y, y, "average"),
        lambda: shmem.reduce(world, y, y, 5),
        lambda: shmem.reducescatter(world, x[:5], x, "max"),
        lambda: shmem.peer_array(x[::2], 0),
        lambda: shmem.peer_array(x, n),
        lambda: shmem.peer_array(local, 0),
        lambda: shmem.put_block(x, local, 0),
        lambda: shmem.free(local),
        lambda: shmem.register(np.zeros(4)[::2]),
        lambda: shmem.set_timeout(0),
    ]  # fmt: skip
    found = []
    for k, call in enumerate(calls):
        try:
            found.append((k, "nothing", repr(call())))
        except Exception as error:
            found.append((k, type(error).__name__, str(error)))
    return found


@host.job
def refused(me, n):
    return refusals()


def refused_by_the_cpu():
    shmem.init("cpu", heap_size=1 << 20)
    found = refusals()
    shmem.finalize()
    return found


def test_what_is_refused_in_the_words_of_the_cpu_backend(run_pes):
    (theirs,), (ours,) = run_pes(refused_by_the_cpu, 1), host.run(1, refused)
    assert plain(ours) == plain(theirs)
    assert not [row for row in ours if row[1] == "nothing"]


def plain(rows):
    """Kernels, which the cpu backend asks more often, say where arrays are, and were made."""
    remote = r"(the|a) remote array .* is not on the symmetric heap( \(.*?\))?"
    made = r"; (it|dst|src) is .* allocated at \S+"
    return [
        (k, kind, re.sub(remote, "the remote array is none", re.sub(made, "", text)))
        for k, kind, text in rows
    ]


@host.in_pes(1)
def test_products_are_cublaslts(me, n):
    from gpushmem.backends.nvshmem.gpu import cublaslt

    rng = np.random.default_rng(5)
    for stream in streams():
        for dtype in ("float16", "bfloat16", "float32", "float64"):
            wide = rng.integers(-3, 4, (30, 40)).astype(dtype)
            x, out = shmem.to_device(wide), shmem.full((20, 20), 5, dtype)
            for a, b in ((x[:7, :9], x[9:18, 3:8]), (x[:9, 1:8].T, x[4:9, 8:17].T)):
                left, right = (part.numpy().astype("float64") for part in (a, b))
                for accumulate in (False, True):
                    before = out.numpy().astype("float64")
                    driver.clear()
                    shmem.gemm(out[2:9, 3:8], a, b, accumulate, stream=stream)
                    assert not driver.launches()
                    before[2:9, 3:8] = left @ right + accumulate * before[2:9, 3:8]
                    assert (out.numpy().astype("float64") == before).all()
    known = len(cublaslt.library()._made)
    wide = shmem.to_device(rng.integers(-3, 4, (3, 30, 40)).astype("float32"))
    many = shmem.full((3, 20, 20), 5, "float32")
    a, b = wide[:, :7, :9], wide[:, 9:18, 3:8]
    shmem.gemm_batched(many[:, 2:9, 3:8], a, b, True)
    assert (many.numpy()[:, 2:9, 3:8] == 5 + a.numpy() @ b.numpy()).all()
    assert len(cublaslt.library()._made) == known + 4  # all by one
    a, b = x[:9, 1:8].T, x[4:9, 8:17].T
    shmem.gemm(out[2:9, 3:8], a, b, True)
    assert len(cublaslt.library()._made) == known + 4  # it is described once
    driver.clear()
    shmem.gemm(out[2:9, 3:8], a[:, :0], b[:0], False)  # of no terms: a kernel's
    assert [launch.name for launch in driver.launches()]


@host.in_pes(1)
def test_products_of_8_bit_floats_are_cublaslts(me, n):
    from gpushmem.backends.nvshmem.gpu import cublaslt

    rng = np.random.default_rng(6)
    a, w = (shmem.to_device(rng.integers(-3, 4, (k, 32)).astype("float8_e4m3fn")) for k in (5, 16))
    scales = [
        [shmem.to_device((1.0 + np.arange(count)).astype("float32")) for count in counts]
        for counts in ((1, 1), (5, 16))
    ]
    known = len(cublaslt.library()._made)
    for stream in streams():
        for dtype in ("float16", "bfloat16", "float32"):
            out = shmem.full((5, 16), 5, dtype)
            for of_a, of_b in scales:
                for accumulate in (False, True):
                    left, right = (x.numpy().astype("float64") for x in (a, w))
                    factor = np.outer(of_a.numpy(), of_b.numpy())
                    wanted = factor * (left @ right.T) + accumulate * out.numpy().astype("float64")
                    driver.clear()
                    shmem.gemm_scaled(
                        out, a, w.T, of_a.reshape(-1, 1), of_b.reshape(1, -1), accumulate,
                        stream=stream,
                    )  # fmt: skip
                    assert not driver.launches()
                    assert (out.numpy() == wanted.astype(dtype)).all()
    assert len(cublaslt.library()._made) == known + 1 + 2 * 3 * 4
    shmem.gemm_scaled(out[:0], a[:0], w.T, *scales[0], False)


@host.in_pes(1)
def test_what_cublaslt_holds_is_bounded(me, n):
    from gpushmem.backends.nvshmem.gpu import cublaslt
    from gpushmem.runtime import current

    products = current("test").backend._host_calls._products
    a, out = shmem.full((4, 4), 2, "float32"), shmem.full((4, 4), 5, "float32")
    streams, captured = [shmem.stream() for _ in range(2 * cublaslt.STREAMS)], []
    products._device.is_captured = captured.__contains__
    for k, stream in enumerate(streams):
        captured[:] = [int(stream.__cuda_stream__()[1])] * (k < 2)
        shmem.gemm(out, a, a, True, stream=stream)
        assert len(products._workspaces) <= cublaslt.STREAMS
    kept = [stream.workspace for stream in streams[:2]]
    assert None not in kept
    for stream in streams[:2]:  # the same, for what is not captured
        shmem.gemm(out, a, a, True, stream=stream)
    assert kept == [stream.workspace for stream in streams[:2]]
    assert all(stream.workspace is None for stream in streams[2:])
    assert len(products._workspaces) == cublaslt.STREAMS
    shmem.synchronize()
    assert (out.numpy() == 5 + 16 * (len(streams) + 2)).all()

    made, cublaslt.KEPT = cublaslt.library()._made, 3
    for k in range(1, 8):
        shmem.gemm(out[: k % 4 + 1], a[: k % 4 + 1], a, False)
        assert len(products._known) <= 3
        assert len(made) == 1 + 4 * len(products._known)  # the handle; an operation, three layouts


@host.in_pes(1)
def test_products_without_cublaslt_are_kernels(me, n):
    from gpushmem.backends.nvshmem.gpu import cublaslt

    cublaslt.library = lambda: None
    a, out = shmem.full((4, 4), 1, "float32"), shmem.full((4, 4), 5, "float32")
    driver.clear()
    shmem.gemm(out, a, a, False)
    assert [launch.block for launch in driver.launches()] == [(256, 1, 1)]
    codes, one = shmem.full((16, 16), 1, "float8_e4m3fn"), shmem.full(1, 1, "float32")
    with pytest.raises(shmem.BackendUnavailable, match="pip install nvidia-cublas"):
        shmem.gemm_scaled(shmem.full((16, 16), 1, "float32"), codes, codes.T, one, one, False)
