"""Sort numbers over all PEs, then send each to the PE that wants it: exchanges of unknown sizes.

gpushmem run -n 4 examples/sort.py
"""

import numpy as np
from gpushmem.kernels import AllToAllV, ExclusiveScan, SampleSort

import gpushmem as shmem

SIZE = 20_000

shmem.init()
me, n = shmem.my_pe(), shmem.n_pes()
everything = [np.random.default_rng(pe).integers(0, 1000, SIZE - pe) for pe in range(n)]
numbers = shmem.to_device(everything[me])

sort = SampleSort(size=SIZE, dtype="int64")
mine, received = shmem.empty(sort.capacity, "int64"), shmem.device_array(n, "int64")
sort(numbers, out=mine, received=received)
here = int(received.numpy().sum())

# Which of all numbers in order are mine: from how many the PEs before me have.
count, first = shmem.array(np.array([here])), shmem.device_array(1, "int64")
scan = ExclusiveScan(size=1, dtype="int64")
scan(count, out=first)
start = int(first.numpy()[0])
in_order = np.sort(np.concatenate(everything))
assert np.array_equal(mine.numpy()[:here], in_order[start : start + here])

# A hundred numbers for each PE, as far as there are any: only who sends knows how many.
bounds = np.searchsorted(mine.numpy()[:here], 100 * np.arange(n + 1))
mine.copy_from(np.resize(mine.numpy()[bounds[0] : bounds[-1]], mine.size))
counts = shmem.to_device(np.diff(bounds))
exchange = AllToAllV(rows=SIZE, dtype="int64")
wanted = np.sort(in_order[in_order // 100 == me])
out = shmem.device_array(wanted.size, "int64")
exchange(mine, counts, out=out, received=received)
assert np.array_equal(out.numpy(), wanted)
assert exchange.dropped() == 0

if me == 0:
    print(f"{in_order.size} numbers over {n} PEs: in order, and {wanted.size} of them on PE 0")
for plan in (sort, scan, exchange):
    plan.free()
shmem.finalize()
