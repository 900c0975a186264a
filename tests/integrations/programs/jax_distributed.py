"""Processes of jax.distributed, which nobody of gpushmem's started: RANK SIZE PORT."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import gpushmem as shmem
from gpushmem.integrations import jax as collectives

jax.config.update("jax_cpu_collectives_implementation", "gloo")

rank, size, port = sys.argv[1:]
jax.distributed.initialize(f"127.0.0.1:{port}", int(size), int(rank))
collectives.init()
me, n = shmem.my_pe(), shmem.n_pes()
assert (me, n) == (jax.process_index(), jax.process_count()) == (int(rank), int(size))

# Beside each other: gloo's psum of an array that is divided among the processes, and ours.
mesh = Mesh(np.array(jax.devices()), ("x",))
local = np.full((1, 1024), me + 1.0, np.float32)
divided = jax.make_array_from_process_local_data(NamedSharding(mesh, P("x")), local)
summed = jax.jit(
    jax.shard_map(lambda v: jax.lax.psum(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P("x"))
)
for _ in range(10):
    theirs = np.asarray(summed(divided).addressable_shards[0].data)
    ours = jax.jit(collectives.all_reduce)(jnp.asarray(local))
    assert np.array_equal(ours, theirs)

# A mesh of this process's own device.
own = Mesh(np.array(jax.local_devices()[:1]), ("x",))
mapped = jax.jit(
    jax.shard_map(
        collectives.all_reduce, mesh=own, in_specs=P("x"), out_specs=P("x"), check_vma=False
    )
)
assert np.array_equal(mapped(jnp.asarray(local)), ours)
shmem.barrier_all()
shmem.finalize()
jax.distributed.shutdown()
print(f"PE {me}: ok")
