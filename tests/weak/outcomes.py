"""Run a program once for each of several seeds, and print what is in its arrays at the end.

`gpushmem run --memory weak -n N outcomes.py SEEDS PROGRAM [ARGS]...`: each PE prints a line for
each seed, with a digest of its symmetric arrays, and of all device arrays. Kernels are compiled
once.
"""

import hashlib
import os
import runpy
import sys

import numpy as np

import gpushmem as shmem
from gpushmem import runtime

finalize, empty, device_array = shmem.finalize, shmem.empty, shmem.device_array
made, local, outcomes = [], [], []  # `local`: device arrays, also those that the program drops


def digest():
    """A digest of all arrays."""
    here = runtime.current()
    arrays = [
        here.backend.world.array(made.offset, made.shape, made.dtype, here.backend.my_pe)
        for made in here.stats().allocations
    ]
    arrays += [a.numpy() for a in local]
    found = hashlib.sha1(usedforsecurity=False)
    for array in arrays:
        found.update(array.tobytes())
    return found.hexdigest()[:12]


def ones(shape, dtype="float64"):
    """Instead of ones, numbers that are all different, so that it shows which of them arrived."""
    made.append(empty(shape, dtype))
    count = np.prod(shape, dtype=int)
    first = 100 * len(made) + 10 * shmem.my_pe()
    made[-1].copy_from((first + np.arange(count)).reshape(shape))
    shmem.barrier_all()
    return made[-1]


def kept(*args, **kwargs):
    """`device_array`, which stays until its seed is over."""
    local.append(device_array(*args, **kwargs))
    return local[-1]


def ending():
    """`finalize`, after a look at the arrays."""
    shmem.barrier_all()
    outcomes.append(digest())
    finalize()


seeds, program = int(sys.argv[1]), sys.argv[2]
sys.argv[:] = sys.argv[2:]
shmem.finalize, shmem.ones, shmem.device_array = ending, ones, kept
for seed in range(seeds):
    os.environ["GPUSHMEM_SEED"] = str(seed)
    made.clear()
    local.clear()
    runpy.run_path(program, run_name="__main__")
    print(f"seed {seed}: {outcomes[-1]}", flush=True)
