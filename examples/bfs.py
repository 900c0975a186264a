"""Find how far apart people are in a random network, cut by people among PEs.

gpushmem run -n 4 examples/bfs.py
"""

from types import SimpleNamespace

import numpy as np
from gpushmem.kernels import BFS

import gpushmem as shmem

SIZE, FRIENDS = 20_000, 4

shmem.init()
me, n = shmem.my_pe(), shmem.n_pes()
rng = np.random.default_rng(0)
pairs = np.stack([rng.integers(0, SIZE, FRIENDS * SIZE) for _ in range(2)])
people, friends = np.concatenate([pairs, pairs[::-1]], axis=1)  # both are friends of each other

first, last = me * SIZE // n, (me + 1) * SIZE // n
mine = (people >= first) & (people < last)
order = np.argsort(people[mine], kind="stable")
degrees = np.bincount(people[mine] - first, minlength=last - first)
graph = SimpleNamespace(indptr=np.append(0, np.cumsum(degrees)), indices=friends[mine][order])

plan = BFS(graph)
parents = shmem.device_array(last - first, "int64")
distances = shmem.device_array(last - first, "int32")
for root in (0, SIZE - 1):
    plan(root, parents=parents, distances=distances)
    found = distances.numpy()
    assert (found <= 8).all()
    assert (found[parents.numpy() == root] <= 1).all()
    print(f"PE {me}: {np.bincount(found[found >= 0])} people at distances 0, 1, ... from {root}")
shmem.finalize()
