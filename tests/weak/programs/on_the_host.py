"""Host operations that are late: each PE reads what was there before `quiet`, and the new after."""

import numpy as np

import gpushmem as shmem

shmem.init()
me, n = shmem.my_pe(), shmem.n_pes()
data, src = shmem.zeros(4, "int64"), shmem.full(4, 7, "int64")
late = 0
for _ in range(20):
    data.copy_from(np.zeros(4))
    shmem.barrier_all()
    shmem.put(data, src, (me + 1) % n)
    late += int(shmem.g(data, (me + 1) % n) == 0)
    shmem.quiet()
    assert shmem.g(data, (me + 1) % n) == 7
    shmem.barrier_all()
    assert (data.numpy() == 7).all()
print(f"late {late}")
shmem.finalize()
