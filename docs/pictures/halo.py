"""The edges of the neighbours' parts, around one's own."""

from gpushmem.kernels import HaloExchange

import gpushmem as shmem

ROWS, COLUMNS = 512, 1024

with shmem.session(heap_size="64M") as world:
    plan = HaloExchange(shape=(ROWS, COLUMNS), width=8, dtype="float32", periodic=True)
    x = shmem.full((ROWS, COLUMNS), world.my_pe, dtype="float32")
    out = shmem.device_array((ROWS + 16, COLUMNS), "float32")
    for _ in range(1000):
        plan(x, out=out)
    shmem.synchronize()
