"""Run a program once for each of several seeds, and print what is in its arrays at the end.

`gpushmem run --memory weak -n N outcomes.py SEEDS PROGRAM [ARGS]...`: each PE prints a line for
each seed, with a digest of its symmetric arrays, and of the device arrays among the program's
global variables. Kernels are compiled once.
"""

import hashlib
import os
import runpy
import sys

import numpy as np

import gpushmem as shmem
from gpushmem import runtime

finalize, empty, made, outcomes = shmem.finalize, shmem.empty, [], []


def digest(names):
    """A digest of all arrays."""
    here = runtime.current()
    arrays = [
        here.backend.world.array(made.offset, made.shape, made.dtype, here.backend.my_pe)
        for made in here.stats().allocations
    ]
    arrays += [a.numpy() for _, a in sorted(names.items()) if type(a) is shmem.DeviceArray]
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


def ending():
    """`finalize`, after a look at the arrays."""
    shmem.barrier_all()
    outcomes.append(digest(sys._getframe(1).f_globals))
    finalize()


seeds, program = int(sys.argv[1]), sys.argv[2]
sys.argv[:] = sys.argv[2:]
shmem.finalize, shmem.ones = ending, ones
for seed in range(seeds):
    os.environ["GPUSHMEM_SEED"] = str(seed)
    made.clear()
    runpy.run_path(program, run_name="__main__")
    print(f"seed {seed}: {outcomes[-1]}", flush=True)
