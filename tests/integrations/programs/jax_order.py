"""Collectives that do not depend on each other, in one function and in several at once."""

import jax
import jax.numpy as jnp
import numpy as np

import gpushmem as shmem
from gpushmem.integrations import jax as collectives

TIMES = 200

collectives.init()
me, n = shmem.my_pe(), shmem.n_pes()
total = n * (n + 1) / 2


@jax.jit
def two(x, y):
    """XLA may compute `slow` before or after either; one result is not used."""
    slow = (y @ y).sum()
    a = collectives.all_reduce(x)
    b = collectives.all_gather(y[0] * 0 + me)
    collectives.all_reduce(slow, op="max")
    c = collectives.all_reduce(y[:1] + x[:1])
    return a, b, c


@jax.jit
def other(x):
    return collectives.all_to_all(jnp.broadcast_to(x[:1], (n, 1)))


x, y = jnp.full(5000, me + 1.0), jnp.full((64, 64), 2.0)
for k in range(TIMES):
    a, b, c = two(x, y)
    d = other(x + k)  # is dispatched while the first one runs
    if k % 20 == 0:
        assert (a == total).all(), a
        assert (c == total + 2 * n).all(), c
        assert (np.asarray(b)[:, 0] == np.arange(n)).all(), b
        assert (np.asarray(d)[:, 0] == np.arange(n) + 1 + k).all(), d
jax.block_until_ready((a, b, c, d))
shmem.barrier_all()
shmem.finalize()
print(f"PE {me}: ok")
