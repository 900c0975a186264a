"""Parts of buffers, ordinary memory, memory that is freed, errors; a runtime that ends twice."""

import gc
import sys
import weakref
from pathlib import Path

import numpy as np
import nvshmem.core as nv
import pytest
from common import begin, rank, size
from cuda.core import Buffer, Device, DeviceMemoryResource

import gpushmem

device = begin()
left, right = (rank - 1) % size, (rank + 1) % size
stream = device.create_stream()


def whole(buffer):
    return np.from_dlpack(buffer).view(np.uint8)


def meet():
    nv.barrier_all(stream)
    stream.sync()


# --- the bytes that a buffer names, and no others
a, b = nv.buffer(64), nv.buffer(64)
whole(a)[:] = 255
whole(b)[:] = np.arange(64) + 64 * rank
meet()
nv.put(a, Buffer.from_handle(b.handle, 8), right, stream=stream)
nv.put(Buffer.from_handle(a.handle + 32, 16), Buffer.from_handle(b.handle + 16, 16), right, stream)
meet()
want = np.full(64, 255, np.uint8)
want[:8] = 64 * left + np.arange(8)
want[32:48] = 64 * left + np.arange(16, 32)
assert whole(a).tolist() == want.tolist()
meet()  # nobody's signal comes before all have looked
signal = Buffer.from_handle(a.handle + 56, 8)
nv.signal_op(signal, 5, nv.SignalOp.SIGNAL_SET, right, stream)
nv.signal_wait(signal, 5, nv.ComparisonType.CMP_EQ, stream)
meet()
assert nv.signal_fetch(signal) == 5
assert nv.atomic_fetch(Buffer.from_handle(a.handle + 48, 16), right, offset=1, dtype="uint64") == 5
for wrong in (Buffer.from_handle(a.handle + 60, 8), device.allocate(8)):
    with pytest.raises(nv.NvshmemInvalid, match="is not symmetric memory"):
        nv.put(wrong, b, right, stream=stream)

# --- memory of this PE's alone, as a source and as a target
mine = device.allocate(16)
whole(mine)[:] = 100 + rank
nv.put(a, mine, right, stream=stream)
meet()
assert (whole(a)[:16] == 100 + left).all()
nv.get(mine, b, right, stream=stream)
stream.sync()
assert whole(mine).tolist() == list(range(64 * right, 64 * right + 16))

# --- as many bytes as both have: there are warnings
meet()
nv.put(Buffer.from_handle(a.handle, 8), b, right, stream=stream)
nv.get(mine, Buffer.from_handle(b.handle + 32, 8), right, stream=stream)
meet()
assert whole(a)[:16].tolist() == [*range(64 * left, 64 * left + 8), *[100 + left] * 8]
want = [*range(64 * right + 32, 64 * right + 40), *range(64 * right + 8, 64 * right + 16)]
assert whole(mine).tolist() == want

# --- errors
words = nv.array((2,), dtype="uint64")
with pytest.raises(nv.NvshmemInvalid, match="signal_var must be a Buffer, as in nvshmem4py"):
    nv.signal_op(words, 1, nv.SignalOp.SIGNAL_SET, right, stream=stream)
with pytest.raises(nv.NvshmemInvalid, match="multiple of 8 bytes"):
    nv.signal_fetch(Buffer.from_handle(a.handle + 4, 8))
for failing in (
    lambda: nv.put(a, b, 1.5, stream=stream),
    lambda: nv.atomic_inc(words, size),
    lambda: nv.get_peer_array(words, size),
    lambda: nv.team_translate_pe(99, 0, 0),
):
    with pytest.raises(nv.NvshmemError):
        failing()

# --- a peer's memory, after the own has been freed and its place is another's
for _ in range(2):
    array = nv.array((100,), dtype="int32")
    place = array.data.ptr
    array[:] = rank
    meet()
    assert (nv.get_peer_array(array, right) == right).all()
    assert nv.get_peer_array(array, rank).data.ptr == place
    nv.free_array(nv.get_peer_array(array, right))  # does nothing
    assert (nv.get_peer_array(array, right) == right).all()
    nv.free_array(array)
with pytest.raises(nv.NvshmemInvalid, match="not symmetric memory"):
    nv.get_peer_buffer(Buffer.from_handle(place, 400), right)


# --- buffers and streams live as long as their last reference
class Counting(DeviceMemoryResource):
    freed = 0

    def deallocate(self, ptr, size, stream=None):
        Counting.freed += 1
        super().deallocate(ptr, size, stream)


class Foreign:
    def __cuda_stream__(self):
        return 0, stream.handle


resource = Counting()
resource.allocate(8)
gc.collect()
assert Counting.freed == 1
closed = resource.allocate(8)
closed.close()
closed.close()
del closed
gc.collect()
assert Counting.freed == 2
foreign = Foreign()
seen = weakref.ref(foreign)
same = Device().create_stream(foreign)
del foreign
gc.collect()
assert same == stream
assert seen() is not None

# --- `finalize` ends the runtime, whatever fails, and it can begin again
for each in (a, b):
    nv.free(each)
gpushmem.free(words)  # which `finalize` wants to free
with pytest.raises(nv.NvshmemError, match="free"):
    nv.finalize()
assert nv.init_status() == nv.InitStatus.STATUS_IS_BOOTSTRAPPED
uid = nv.get_unique_id(empty=True)
uid._data = np.frombuffer(Path(sys.argv[1]).read_bytes(), uid._data.dtype)
nv.init(uid=uid, rank=rank, nranks=size, initializer_method="uid")
nv.finalize()
print(f"{rank} done")
