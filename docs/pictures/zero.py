"""A step of Adam whose state is divided: gradients there, parameters back, piece by piece."""

from gpushmem.kernels import ZeroAdam

import gpushmem as shmem

SIZE = 1 << 19

with shmem.session(heap_size="64M") as world:
    plan = ZeroAdam(size=SIZE, dtype="float32", clip=1.0)
    gradients, parameters = (shmem.ones(SIZE, dtype="float32") for _ in range(2))
    for _ in range(300):
        plan(gradients, parameters)
    shmem.synchronize()
