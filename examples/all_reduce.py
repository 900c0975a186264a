"""Sum arrays over all PEs inside one kernel, again and again without a barrier; then normalise.

gpushmem run -n 4 examples/all_reduce.py
"""

import numpy as np
from gpushmem.kernels import AllGather, AllReduce, AllReduceRMSNorm, ReduceScatter

import gpushmem as shmem

SIZE, TOKENS, HIDDEN, CALLS = 100_003, 64, 1000, 20

shmem.init()
me, n = shmem.my_pe(), shmem.n_pes()

total = AllReduce(size=SIZE, dtype="float32")
x = shmem.empty(SIZE, "float32")  # symmetric: it is sent from, perhaps to other machines
for call in range(CALLS):
    x.copy_from(np.arange(SIZE) % 1000 + 1000 * me + call)
    total(x)
    expected = n * (np.arange(SIZE) % 1000 + call) + 1000 * (n * (n - 1) // 2)
    assert np.array_equal(x.numpy(), expected.astype("float32"))

# In two halves, as optimisers that are divided over PEs need it: my part of the sum, and all parts.
scatter, gather = ReduceScatter(size=1000, dtype="float32"), AllGather(size=1000, dtype="float32")
y = shmem.array(np.arange(1000 * n, dtype="float32") + me)
mine, sums = shmem.array(np.zeros(1000, "float32")), shmem.empty(1000 * n, "float32")
scatter(y, out=mine)
gather(mine, out=sums)
assert np.array_equal(sums.numpy(), n * np.arange(1000 * n) + n * (n - 1) // 2)

# A layer of a transformer ends so: every PE has a part of the sum, all have the residual.
norm = AllReduceRMSNorm(tokens=TOKENS, hidden=HIDDEN, dtype="float32")
rng = np.random.default_rng(1)
parts = rng.normal(size=(n, TOKENS, HIDDEN)).astype("float32")
before, gain = rng.normal(size=(TOKENS, HIDDEN)), rng.normal(size=HIDDEN)
part = shmem.array(parts[me])
residual, weight = (shmem.to_device(a.astype("float32")) for a in (before, gain))
out = shmem.device_array((TOKENS, HIDDEN), "float32")
norm(part, residual, weight, out=out)
after = before + parts.sum(axis=0)
wanted = after / np.sqrt(np.mean(after**2, axis=1, keepdims=True) + norm.eps) * gain
assert np.allclose(residual.numpy(), after, atol=1e-5)
assert np.allclose(out.numpy(), wanted, atol=1e-5)

if me == 0:
    print(
        f"{CALLS} sums of {SIZE} numbers over {n} PEs ({total.algorithm}), and a norm: all correct"
    )
for plan in (total, scatter, gather, norm):
    plan.free()
shmem.finalize()
