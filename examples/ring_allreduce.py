"""Sum an array over all PEs inside one kernel, again and again without a barrier.

gpushmem run -n 4 examples/ring_allreduce.py
"""

import numpy as np
from gpushmem.kernels import RingAllReduce

import gpushmem as shmem

SIZE, CALLS = 100_003, 20

shmem.init()
me, n = shmem.my_pe(), shmem.n_pes()
total = RingAllReduce(SIZE, "float32", blocks=2)
x = shmem.device_array(SIZE, "float32")
for call in range(CALLS):
    x.copy_from(np.arange(SIZE) % 1000 + 1000 * me + call)
    total(x)
    expected = n * (np.arange(SIZE) % 1000 + call) + 1000 * (n * (n - 1) // 2)
    assert np.array_equal(x.numpy(), expected.astype("float32"))
shmem.barrier_all()
if me == 0:
    print(f"{CALLS} sums of {SIZE} numbers over {n} PEs: all correct")
shmem.finalize()
