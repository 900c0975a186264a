"""Collectives of all dtypes inside jax.jit, their gradients, vmap, scan and cond."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import gpushmem as shmem
from gpushmem.integrations import jax as collectives

jax.config.update("jax_enable_x64", True)

DTYPES = ("float32", "float64", "bfloat16", "float16", "int32", "uint8", "int64")
SIZES = (0, 1, 7, 1000, 300_001)

collectives.init()
me, n = shmem.my_pe(), shmem.n_pes()


def of(pe, count, dtype):
    """What a PE has: small integers, which all dtypes have exactly."""
    return ((np.arange(count) % 5) + pe + 1).astype(jnp.dtype(dtype))


def check(found, wanted, what):
    assert found.dtype == wanted.dtype, (what, found.dtype)
    assert np.array_equal(np.asarray(found), wanted), (what, found, wanted)


for dtype in DTYPES:
    for size in SIZES if dtype == "float32" else (7, 1000):
        every = np.stack([of(pe, size, dtype) for pe in range(n)])
        rows = np.stack(
            [np.stack([of(pe + 2 * k, size, dtype) for k in range(n)]) for pe in range(n)]
        )
        x, by_rows = jnp.asarray(every[me]), jnp.asarray(rows[me])
        total = every.astype("float64").sum(0).astype(every.dtype)
        for _ in range(2):  # the second time without Python
            check(jax.jit(collectives.all_reduce)(x), total, "all_reduce")
            check(jax.jit(collectives.all_gather)(x), every, "all_gather")
            found = jax.jit(collectives.reduce_scatter)(by_rows)
            check(found, rows[:, me].astype("float64").sum(0).astype(every.dtype), "reduce_scatter")
            check(jax.jit(collectives.all_to_all)(by_rows), rows[:, me], "all_to_all")
for op, function in (("max", np.max), ("min", np.min), ("prod", np.prod)):
    every = np.stack([of(pe, 9, "int32") for pe in range(n)])
    found = collectives.all_reduce(every[me], op=op)  # without jit
    check(found, function(every, axis=0).astype("int32"), op)
check(collectives.all_reduce(1 << me, op="or"), np.asarray((1 << n) - 1), "or")


# Gradients: of a loss that all PEs compute alike.
def loss(x):
    return (collectives.all_reduce(x * (me + 1)) ** 2).sum()


x = jnp.arange(5.0) + me
total = sum((np.arange(5.0) + pe) * (pe + 1) for pe in range(n))
value, gradient = jax.jit(jax.value_and_grad(loss))(x)
assert np.allclose(value, (total**2).sum())
assert np.allclose(gradient, 2 * total * (me + 1))
weights = jnp.arange(n * 3.0).reshape(n, 3) + 10 * me
gradient = jax.grad(lambda x: (collectives.all_gather(x) * weights).sum())(jnp.ones(3))
summed = sum(np.arange(n * 3.0).reshape(n, 3) + 10 * pe for pe in range(n))
assert np.allclose(gradient, summed[me])
gradient = jax.grad(lambda x: (collectives.reduce_scatter(x) * weights[me]).sum())(jnp.ones((n, 3)))
sent = np.stack([(np.arange(n * 3.0).reshape(n, 3) + 10 * pe)[pe] for pe in range(n)])
assert np.allclose(gradient, sent)
gradient = jax.grad(lambda x: (collectives.all_to_all(x) * weights).sum())(jnp.ones((n, 3)))
back = np.stack([(np.arange(n * 3.0).reshape(n, 3) + 10 * pe)[me] for pe in range(n)])
assert np.allclose(gradient, back)
gradient = jax.grad(jax.checkpoint(loss))(x)
assert np.allclose(gradient, 2 * total * (me + 1))

# One call for all of a batch; loops and branches.
batch = jnp.arange(8.0).reshape(4, 2) + 100 * me
every = np.stack([np.arange(8.0).reshape(4, 2) + 100 * pe for pe in range(n)])
check(jax.vmap(collectives.all_reduce)(batch), every.sum(0), "vmap all_reduce")
check(jax.vmap(collectives.all_gather, 1, 1)(batch), every.transpose(0, 2, 1), "vmap all_gather")
by_rows = jnp.arange(n * 6.0).reshape(3, n, 2) + 100 * me
every = np.stack([np.arange(n * 6.0).reshape(3, n, 2) + 100 * pe for pe in range(n)])
check(jax.vmap(collectives.all_to_all)(by_rows), every[:, :, me].transpose(1, 0, 2), "vmap rows")
check(jax.vmap(collectives.reduce_scatter)(by_rows), every[:, :, me].sum(0), "vmap scatter")
last, _ = jax.jit(
    lambda x: lax.scan(lambda c, _: (collectives.all_reduce(c) / n, None), x, length=20)
)(x)
assert np.allclose(last, np.arange(5.0) + (n - 1) / 2)
chosen = jax.jit(lambda p, x: lax.cond(p, collectives.all_reduce, lambda x: x, x))
assert np.allclose(chosen(True, x), np.arange(5.0) * n + n * (n - 1) / 2)
assert np.allclose(chosen(False, x), x)

# A team of some PEs.
if n > 2:
    first = shmem.TEAM_WORLD.split_strided(0, 1, n - 1)
    if first:
        found = collectives.all_reduce(jnp.float32(10.0 * me), team=first)
        assert found == 10 * sum(range(n - 1))
for call, text in (
    (lambda: collectives.all_to_all(jnp.zeros(n + 1)), "needs"),
    (lambda: collectives.all_reduce(jnp.zeros(2), op="and"), "is of integers"),
    (lambda: collectives.all_reduce(jnp.zeros(2, complex)), "supported are"),
    (lambda: jax.grad(lambda x: collectives.all_reduce(x, op="max"))(1.0), "only sums"),
):
    with pytest.raises(shmem.ArgumentError, match=text):
        call()
shmem.barrier_all()
shmem.finalize()
print(f"PE {me}: ok")
