"""Let heat spread in a square cut among PEs: all steps, and their halo exchange, in one kernel.

gpushmem run -n 4 examples/jacobi.py
"""

import numpy as np
from gpushmem.kernels import Jacobi
from gpushmem.kernels.jacobi import reference

import gpushmem as shmem
from gpushmem.progress import progress

NY, NX, STEPS = 192, 250, 200

shmem.init()
me = shmem.my_pe()
# One wall is hot, the others are cold; the walls are the field's outer layer.
start = np.zeros((NY + 2, NX + 2), "float32")
start[0] = 100
with Jacobi(shape=(NY, NX), dtype="float32") as plan:
    u = plan.scatter(start)
    rounds, change = 0, np.inf
    with progress("steps", shown=me == 0) as bar:
        while change > 0.1:
            plan(u, STEPS)
            rounds, change = rounds + 1, plan.residual(u)
            bar.advance(STEPS, f"the last changes a cell by {change:.3f} at most")
    heat = plan.gather(u)
    nbytes, messages = plan.sends(rounds * STEPS)
if me == 0:
    expected = reference(start, rounds * STEPS)[1:-1, 1:-1]
    assert np.array_equal(heat, expected)  # to the bit
    print(
        f"{shmem.n_pes()} PEs as {plan.grid}: {rounds * STEPS} steps, {nbytes >> 10} KiB sent in "
        f"{messages} messages, {heat.mean():.2f} degrees on average, as NumPy says"
    )
shmem.finalize()
