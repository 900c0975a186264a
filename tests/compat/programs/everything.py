"""Pointers, atomics, peers, teams and collectives in kernels; streams, buffers, teams of hosts."""

import cffi
import numpy as np
import nvshmem.bindings.device.numba as bindings
import nvshmem.core as nv
import nvshmem.core.interop.cupy
import nvshmem.core.interop.torch
import pytest
from common import begin, rank, size
from cuda.core.experimental import Buffer, Stream
from numba import cuda
from nvshmem.core.device.numba import (
    atomic_fetch_add,
    broadcast,
    fcollect,
    get,
    get_multicast_array,
    get_peer_array,
    reduce,
    sync_all,
)

ffi = cffi.FFI()
ANY = nvshmem.bindings.Qp_handle_index.QP_ANY.value


@cuda.jit
def pointers(x, y, flags, out):
    me = bindings.my_pe()
    right = (me + 1) % bindings.n_pes()
    px, py, flag = ffi.from_buffer(x), ffi.from_buffer(y), ffi.from_buffer(flags)
    bindings.int_p(px, 100 + me, right)
    bindings.quiet()
    sync_all()
    bindings.int32_put(py, px, 4, right)
    bindings.quiet()
    sync_all()
    out[0] = y[0]  # what this PE's left neighbour got from its own
    out[1] = bindings.int_g(px, right)
    sync_all()
    out[2] = atomic_fetch_add(x, 1, right)
    sync_all()
    out[3] = get_peer_array(x, right)[0]
    bindings.ulonglong_atomic_set(flag, 7, right)
    bindings.uint64_wait_until_all(flag, 1, None, 0, 7)
    out[4] = bindings.size_test(flag, 0, 7)
    everyone = get_multicast_array(0, flags)
    sync_all()
    if me == 0:
        everyone[1] = 55
    sync_all()
    out[5] = flags[1]
    out[6] = bindings.team_n_pes(0)


@cuda.jit
def collectives(team, total, highest, x):
    reduce(team, total, x, "sum")
    bindings.int_max_reduce(team, ffi.from_buffer(highest), ffi.from_buffer(x), 4)


@cuda.jit
def uneven(team, fetched, total, sent, all_of, src, pe):
    """Every target but `sent` is longer than its source."""
    get(fetched, src, pe)
    reduce(team, total, src, "sum")
    broadcast(team, sent, src, 1)
    fcollect(team, all_of, src)
    px, me = ffi.from_buffer(src), bindings.my_pe()
    bindings.qp_int_put(ffi.from_buffer(all_of), px, 1, me, ANY)
    bindings.qp_int_p(ffi.from_buffer(sent), 1 + bindings.qp_int_g(px, me, ANY), me, ANY)
    bindings.putmem(ffi.from_buffer(total), px, 4, me)


@cuda.jit
def misnamed(x):
    bindings.uchar_put(ffi.from_buffer(x), ffi.from_buffer(x), 4, 0)


stream = cuda.stream()  # before init
device = begin()
assert nv.init_status() == nv.InitStatus.STATUS_IS_INITIALIZED
assert (nv.my_pe(), nv.n_pes()) == (rank, size)
left, far = (rank - 1) % size, (rank - 2) % size

# --- kernels
x, y = (nv.array((8,), dtype="int32") for _ in range(2))
flags = nv.array((2,), dtype="uint64")
for each in (x, y, flags):
    each.fill(0)
out = cuda.to_device(np.zeros(8, np.int64))
nv.barrier(nv.Teams.TEAM_WORLD, stream)
pointers[1, 1, stream](x, y, flags, out)
stream.synchronize()
assert out.copy_to_host().tolist() == [
    100 + far,
    100 + rank,
    100 + rank,
    101 + rank,
    1,
    55,
    size,
    0,
]

x[:] = np.arange(8) + 10 * rank
total, highest = (nv.array((4,), dtype="int32") for _ in range(2))
nv.barrier_all(stream)
world = nv.Teams.TEAM_WORLD
collectives[1, 1, stream](world, total, highest, x)
stream.synchronize()
tens = 10 * sum(range(size))
assert total.tolist() == [size * k + tens for k in range(4)]
assert highest.tolist() == [10 * (size - 1) + k for k in range(4)]

fetched, longer, sent, all_of = (nv.array((n,), dtype="int32") for n in (16, 12, 6, 8 * size + 1))
for each in (fetched, longer, sent, all_of):
    each.fill(-1)
nv.barrier_all(stream)
uneven[1, 1, stream](world, fetched, longer, sent, all_of, x, left)
stream.synchronize()
assert fetched.tolist() == [10 * left + k for k in range(8)] + [-1] * 8
assert longer.tolist() == [10 * rank] + [size * k + tens for k in range(1, 8)] + [-1] * 4
assert sent.tolist() == [1 + 10 * rank] + [10 + k for k in range(1, 6)]
gathered = [10 * pe + k for pe in range(size) for k in range(8)]
assert all_of.tolist() == [10 * rank, *gathered[1:], -1]
with pytest.raises(Exception, match="a pointer to uint8 is needed here, not to int32"):
    misnamed[1, 1, stream](x)

# --- arrays: what is seen of one is the same memory, or refused
both = nv.array((2, 1, 3), dtype="complex128")
both.fill(0)
both.ravel()[0] = 1
both.squeeze()[0, 1] = 2
both.swapaxes(0, 2)[2, 0, 0] = 3
both.transpose()[0, 0, 1] = 4
both.mT[1, 1, 0] = 5
both.real[1, 0, 2] = 6
both.imag[1, 0, 2] = 7
assert both.tolist() == [[[1, 2, 3]], [[4, 5, 6 + 7j]]]
with pytest.raises(ValueError, match="read-only"):
    x.imag[0] = 1
with pytest.raises(Exception, match=r"ravel: an array of shape .* needs a copy"):
    both.T.ravel()
for name in ("flat", "byteswap", "diagonal"):
    with pytest.raises(AttributeError, match=f"has no {name}"):
        getattr(both, name)
host = np.zeros((2, 1, 3), np.complex128)
assert both.get(out=host) is host
assert (host == both.get(order="F")).all()
assert both.get(order="F").flags.f_contiguous
with pytest.raises(nv.NvshmemInvalid, match="out has shape"):
    both.get(out=host[0])

# --- dtypes: NumPy's names for arrays, C's for functions that are named by them
sizes = nvshmem.core.utils.dtype_nbytes, nvshmem.core.utils.get_size
assert [(sizes[0](name), sizes[1]((4,), name)) for name in ("float", "int")] == [(4, 32), (4, 32)]
assert sizes[0]("long") == sizes[1]((1,), np.dtype("int64")) == 8
assert [nv.array((1,), dtype=name).itemsize for name in ("float", "int", "float32")] == [8, 8, 4]

# --- the host, on a stream of cuda.core and on that of Numba
on = device.create_stream()
assert isinstance(on, Stream)
a, b = (nv.buffer(32) for _ in range(2))
assert isinstance(a, Buffer)
words = nv.array((4,), dtype="uint64")
words[:] = 0
numbers = np.from_dlpack(a).view(np.int32)
numbers[:] = rank
nv.barrier_all(on)
on.sync()
signal, _, _ = nv.array_get_buffer(words)
nv.put_signal(b, a, signal, 3, nv.SignalOp.SIGNAL_ADD, (rank + 1) % size, stream=on)
nv.signal_wait(signal, 3, nv.ComparisonType.CMP_EQ, stream=on)
nv.get(a, b, left, stream=on)
nv.quiet(stream=on)
start = on.record()
on.sync()
assert start.is_done
assert nv.signal_fetch(signal) == 3
assert (np.from_dlpack(b).view(np.int32) == left).all()
assert (numbers == far).all()
nv.barrier_all(on)
for call in (nv.fcollect, nv.alltoall, nv.broadcast):
    with pytest.raises(nv.NvshmemInvalid, match="dst_array must be an array or a tensor, not Buf"):
        call(world, b, a, stream=on)
with pytest.raises(nv.NvshmemInvalid, match="give dtype=: a buffer has none"):
    nv.collective_on_buffer("broadcast", world, b, a, stream=on)
nv.collective_on_buffer("reduce", world, b, a, dtype="int", op="max", stream=on)
on.sync()
assert (np.from_dlpack(b).view(np.int32) == size - 1).all()
nv.reduce(world, y, x, "max", stream=on)
nv.fcollect(world, big := nv.array((8 * size,), dtype="int32"), x, stream=on)
on.sync()
assert y[7] == 10 * (size - 1) + 7
assert big.reshape(size, 8)[:, 1].tolist() == [10 * pe + 1 for pe in range(size)]
assert nv.atomic_fetch_add(y, 5, rank, offset=2) == 10 * (size - 1) + 2
assert y[2] == 10 * (size - 1) + 7
assert nv.get_peer_array(y, left).data.ptr != y.data.ptr
assert nv.get_peer_array(y, left)[0] == 10 * (size - 1)
with pytest.raises(nv.NvshmemError, match="NVLink switch"):
    nv.get_multicast_array(world, y)
with pytest.raises(nv.NvshmemInvalid, match="begin where memory"):
    nv.put(y[1:], x, left, stream=on)

# --- teams: some PEs of the job, and by a unique id, in reverse
config = nv.TeamConfig()
first = nv.team_split_strided(world, 0, 1, size - 1, config, 0, "FIRST")
assert (first is None) == (rank == size - 1)
if first is not None:
    assert first == nv.Teams.FIRST
    assert nv.team_translate_pe(first, 0, world) == 0
words[1] = nv.get_team_unique_id().value if rank == 0 else 0
nv.barrier_all(on)
on.sync()
config.uniqueid = int(nv.get_peer_array(words, 0)[1])
backwards = nv.team_init(config, 1, size, size - 1 - rank)
assert nv.team_my_pe(backwards) == size - 1 - rank
collectives[1, 1, stream](backwards, total, highest, x)
stream.synchronize()
assert total[1] == size + tens
nv.team_destroy(backwards)
assert backwards not in nv.Teams.values()

for each in (x, y, flags, total, highest, words, big, fetched, longer, sent, all_of, both):
    nv.free_array(each)
nv.free(a)
nv.free(b)
nv.finalize()
print(f"{rank} done")
