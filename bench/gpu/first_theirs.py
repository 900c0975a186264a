"""To the first kernel's end, with nvshmem4py and numba-cuda; see first.py."""

# ruff: noqa: E402  (how long importing takes is measured)

import time

marks = [("python", time.time())]

import numpy as np
import nvshmem.core
import nvshmem.core.device.numba as device
from cuda.core import Device
from numba import cuda

marks.append(("import", time.time()))


@cuda.jit(lto=True)
def send(dst, src, pe):
    device.put_block(dst, src, pe)


class Array:
    """Without CuPy or PyTorch, whose arrays nvshmem4py makes: they take seconds to import."""

    def __init__(self, n):
        self.buffer = nvshmem.core.buffer(8 * n)
        address = (int(self.buffer.handle), False)
        self.__cuda_array_interface__ = {
            "shape": (n,), "typestr": "<i8", "data": address, "version": 3
        }  # fmt: skip


gpu = Device(0)
gpu.set_current()
unique_id = nvshmem.core.get_unique_id()
nvshmem.core.init(device=gpu, uid=unique_id, rank=0, nranks=1, initializer_method="uid")
src, dst = Array(1024), Array(1024)
x, y = map(cuda.as_cuda_array, (dst, src))
y.copy_to_device(np.ones(1024, "int64"))
cuda.synchronize()
marks.append(("init", time.time()))
send[1, 128](x, y, 0)
cuda.synchronize()
marks.append(("kernel", time.time()))
for name, when in marks:
    print(name, when, flush=True)
print("arrived", bool((x.copy_to_host() == 1).all()), flush=True)
for array in (src, dst):
    nvshmem.core.free(array.buffer)
nvshmem.core.finalize()
