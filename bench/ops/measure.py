"""What the two Python programs share: the clock, the collectives' sizes and data, the output.

Their arguments, and those of oshmem.c: SECONDS of one round, how many ROUNDS, the SIZES in bytes.
"""

import json
import sys
import time

import numpy as np

ROUND, ROUNDS = float(sys.argv[1]), int(sys.argv[2])
SIZES = [int(size) for size in sys.argv[3:]]
LARGE = 64 << 20
ITEM = 4  # bytes of an element of the collectives


class Bench:
    """One PE's side of the measurements.

    `share(value)` returns PE 0's value on every PE.
    """

    def __init__(self, me, n_pes, barrier, share):
        self.me, self.n_pes, self.barrier, self.share = me, n_pes, barrier, share

    def measure(self, what, nbytes, run):
        """Print what one of `reps` operations takes in `run(reps)`, the best mean of the rounds."""
        reps = 1
        self.round(run, reps)  # the first one compiles
        while self.round(run, reps) < ROUND:
            reps *= 2
        best = min(self.round(run, reps) for _ in range(ROUNDS)) / reps
        if self.me == 0:
            line = {"what": what, "n_pes": self.n_pes, "bytes": nbytes, "seconds": best}
            print(json.dumps(line), flush=True)

    def round(self, run, reps):
        """Seconds from one barrier to the next on PE 0; known to all."""
        self.barrier()
        began = time.perf_counter()
        run(reps)
        self.barrier()
        return self.share(time.perf_counter() - began)

    def shapes(self, what):
        """(bytes, elements of src, elements of dst) for each size of a collective.

        Bytes are those of each PE's whole src, and for fcollect of each PE's whole dst. Where PEs
        have blocks, these are of whole elements, one at least.
        """
        blocks = 1 if what == "allreduce" else self.n_pes
        for size in SIZES:
            whole = max(size // (ITEM * blocks), 1) * blocks
            yield whole * ITEM, (whole // self.n_pes if what == "fcollect" else whole), whole

    def wanted(self, what, size):
        """What a collective leaves in dst where each PE's src is its `source(pe, size)`."""
        sources = [source(pe, size) for pe in range(self.n_pes)]
        if what == "allreduce":
            return sum(sources)
        if what == "alltoall":
            sources = [s.reshape(self.n_pes, -1)[self.me] for s in sources]
        return np.concatenate(sources)


def source(pe, size):
    return (1000 * (pe + 1) + np.arange(size) % 97).astype("f4")
