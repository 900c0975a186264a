"""Plans inside jax.jit, and arrays on the same memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gpushmem.kernels import AllGather, AllReduce

import gpushmem as shmem
from gpushmem.integrations import jax as collectives

SIZE = 1000

collectives.init()
me, n = shmem.my_pe(), shmem.n_pes()
gathering = AllGather(size=SIZE, dtype="float32")
summing = AllReduce(size=SIZE, dtype="float32")


def gather(x, out):
    gathering(x, out=out)


def add_up(x, out, maximum):
    out[...] = x
    summing(out)
    maximum[...] = n


vector, one = jax.ShapeDtypeStruct((SIZE,), "float32"), jax.ShapeDtypeStruct((), "int32")
gathers = collectives.as_jax(gather, jax.ShapeDtypeStruct((n, SIZE), "float32"))
adds = collectives.as_jax(add_up, vector, one)


@jax.jit
def both(x):
    rows = gathers(2 * x)
    summed, number = adds(x)
    return rows + 1, summed + collectives.all_reduce(x), number


x = jnp.arange(SIZE, dtype="float32") % 7 + me
every = np.stack([np.arange(SIZE, dtype="float32") % 7 + pe for pe in range(n)])
for _ in range(20):
    rows, summed, number = both(x)
    assert np.array_equal(rows, 2 * every + 1)
    assert np.array_equal(summed, 2 * every.sum(0))
    assert number == n

# The same memory, both ways.
symmetric = shmem.full(SIZE, me + 1.0, dtype="float32")
there = jax.dlpack.from_dlpack(symmetric, copy=False)
assert there.unsafe_buffer_pointer() == np.asarray(symmetric).ctypes.data
assert collectives.all_reduce(there)[0] == n * (n + 1) / 2
seen = []
shown = collectives.as_jax(lambda x, out: seen.append(np.asarray(x).ctypes.data), one)
jax.block_until_ready((shown(there), shown(x)))  # what kernels get
assert seen == [there.unsafe_buffer_pointer(), x.unsafe_buffer_pointer()]
box = shmem.zeros(SIZE, "float32")
box[...] = x
assert np.array_equal(box.numpy(), every[me])


# Errors of a plan are JAX's, and the next call is made.
def bad(x, out):
    gathering(x, out=x[:5])


with pytest.raises(jax.errors.JaxRuntimeError, match="ArgumentError: AllGather"):
    jax.block_until_ready(collectives.as_jax(bad, vector)(x))
shmem.barrier_all()
gathering.free()
summing.free()
shmem.finalize()
print(f"PE {me}: ok")
