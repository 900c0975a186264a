"""What goes wrong in a collective is an error of JAX's on all PEs, and of all later calls."""

import sys
import time

import jax
import jax.numpy as jnp
import pytest

import gpushmem as shmem
from gpushmem.integrations import jax as collectives

what = sys.argv[1]
collectives.init()
me, n = shmem.my_pe(), shmem.n_pes()


def failing(function, *texts):
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        jax.block_until_ready(function())
    assert all(text in str(caught.value) for text in texts), caught.value


assert collectives.all_reduce(1.0) == n
if what == "mismatch":
    x = jnp.ones(4 + me)
    mismatch = "gpushmem.errors.CollectiveMismatch: PEs met in different"
    failing(lambda: collectives.all_reduce(x), mismatch, "all_reduce")
    failing(lambda: collectives.all_gather(jnp.ones(2)), "an earlier call has failed: PEs met")
elif what == "late":
    shmem.set_timeout(1)
    time.sleep(5 * me)
    failing(lambda: collectives.all_reduce(1.0), "WaitTimeout", "all_reduce")
elif what == "ended":
    if me == n - 1:
        sys.exit(3)
    failing(lambda: collectives.all_reduce(1.0), "gpushmem.errors.PeerFailed")
elif what == "session":
    again = jax.jit(collectives.all_reduce)
    assert again(2.0) == 2 * n
    shmem.finalize()
    shmem.init()
    failing(lambda: again(2.0), "compiled in an earlier session", "jax.clear_caches()")
    jax.clear_caches()
    assert again(2.0) == 2 * n
    shmem.barrier_all()
    shmem.finalize()
print(f"PE {me}: ok")
