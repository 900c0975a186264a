"""Run a program once for each of several seeds, and print what is in its arrays at the end.

`gpushmem run --memory weak -n N outcomes.py PROGRAM SEEDS [ARGS]...`: each PE prints a line for
each seed with a digest of the arrays in the program's global variables. Kernels are compiled once.
"""

import hashlib
import os
import runpy
import sys

import numpy as np

import gpushmem as shmem

finalize = shmem.finalize


def digest(names):
    """A digest of the arrays among some variables."""
    found = hashlib.sha1(usedforsecurity=False)
    for name, value in sorted(names.items()):
        if isinstance(value, np.ndarray) or hasattr(value, "copy_from"):
            array = value if isinstance(value, np.ndarray) else value.numpy()
            found.update(name.encode() + array.tobytes())
    return found.hexdigest()[:12]


def ending():
    global outcome
    shmem.barrier_all()
    names = sys._getframe(1).f_globals
    outcome = digest({name: value for name, value in names.items() if not name.startswith("_")})
    finalize()


program, seeds = sys.argv[1], int(sys.argv[2])
sys.argv[:] = [program, *sys.argv[3:]]
shmem.finalize = ending
for seed in range(seeds):
    os.environ["GPUSHMEM_SEED"] = str(seed)
    outcome = "nothing"
    runpy.run_path(program, run_name="__main__")
    print(f"seed {seed}: {outcome}", flush=True)
