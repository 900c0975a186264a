"""Rank the pages of a random web by who links to them, cut by pages among PEs: PageRank.

gpushmem run -n 4 examples/pagerank.py
"""

from types import SimpleNamespace

import numpy as np
from gpushmem.kernels import SpMV
from numba import cuda

import gpushmem as shmem

PAGES, LINKS, STEPS, DAMPING = 20_000, 8, 30, 0.85


@shmem.jit
def damp(ranks, followed):
    for k in range(cuda.grid(1), ranks.size, cuda.gridsize(1)):
        ranks[k] = DAMPING * followed[k] + (1 - DAMPING) / PAGES  # or one goes to any page


shmem.init()
me, n = shmem.my_pe(), shmem.n_pes()
rng = np.random.default_rng(0)  # the same on all PEs: each can check its result
sources = np.repeat(np.arange(PAGES), LINKS)
targets = rng.permutation(PAGES)[(PAGES * rng.random(sources.size) ** 3).astype(int)]

# This PE's rows: links to its pages, by each of which comes a part of the other page's rank.
first, last = me * PAGES // n, (me + 1) * PAGES // n
mine = np.flatnonzero((targets >= first) & (targets < last))
mine = mine[np.argsort(targets[mine], kind="stable")]
starts = np.searchsorted(targets[mine], np.arange(first, last + 1))
rows = SimpleNamespace(indptr=starts, indices=sources[mine], data=np.full(mine.size, 1 / LINKS))

ranks, wanted = shmem.to_device(np.full(last - first, 1 / PAGES)), np.full(PAGES, 1 / PAGES)
followed = shmem.device_array(last - first)
with SpMV(rows) as follow:
    for _ in range(STEPS):
        follow(ranks, out=followed)
        damp[4, 128](ranks, followed)
        came = np.bincount(targets, wanted[sources] / LINKS, PAGES)
        wanted = DAMPING * came + (1 - DAMPING) / PAGES
    found, best = PAGES * ranks.numpy(), int(wanted.argmax())
assert np.allclose(found, PAGES * wanted[first:last])
if first <= best < last:
    print(f"Page {best}, on PE {me} of {n}, is {found[best - first]:.0f} times the mean")
shmem.finalize()
