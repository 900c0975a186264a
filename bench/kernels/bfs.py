"""Breadth-first search of RMAT graphs with 16 edges a vertex, each both ways (Graph500)."""

import numpy as np

NAME = "breadth-first search"
CASES = [{"scale": scale} for scale in (8, 11, 14, 17)]
IN_TURN = True
DEGREE, ABCD = 16, (0.57, 0.19, 0.19, 0.05)


def label(case):
    return f"2^{case['scale']} vertices"


def nbytes(case, n):
    """What PE 0 sends: 8 bytes for each vertex of others that those of its own lead to."""
    from scipy.sparse import csgraph, csr_array

    size = 1 << case["scale"]
    starts, edges, root = graph_of(case, 0, 1)
    whole = csr_array((np.ones(len(edges), "int8"), edges, starts), (size, size))
    reached = csgraph.breadth_first_order(whole, root, return_predecessors=False)
    goals = np.unique(whole[reached[reached < size // n]].indices)
    return 8 * int((goals >= size // n).sum())


def graph_of(case, pe, n):
    """The vertices of a PE: where their edges begin, and the edges; and one that has many."""
    scale = case["scale"]
    rng, bits = np.random.default_rng(scale), 1 << np.arange(scale)
    corner = rng.choice(4, p=ABCD, size=(DEGREE << scale, scale)).astype("int8")
    ends = np.array([(corner >> 1) @ bits, (corner & 1) @ bits])
    names = rng.permutation(1 << scale)
    ends = names[ends]
    source, goal = np.concatenate([ends, ends[::-1]], axis=1)
    order = np.argsort(source, kind="stable")
    starts = np.append(0, np.cumsum(np.bincount(source, minlength=1 << scale)))
    first, last = (k * (1 << scale) // n for k in (pe, pe + 1))
    mine = starts[first : last + 1]
    return mine - mine[0], goal[order][mine[0] : mine[-1]], int(names[0])


def made(case):
    from types import SimpleNamespace

    from gpushmem.kernels import BFS

    import gpushmem as shmem

    starts, edges, root = graph_of(case, shmem.my_pe(), shmem.n_pes())
    plan, size = BFS(SimpleNamespace(indptr=starts, indices=edges)), len(starts) - 1
    return plan, root, shmem.device_array(size, "int64"), shmem.device_array(size, "int32")


def fused(case):
    plan, root, parents, distances = made(case)
    plan.inboxes.clear()  # places of a queue are used again in a call, so they are not counted
    return plan, lambda: plan(root, parents=parents, distances=distances)


def phases(case):
    """All levels are one kernel: there is nothing to take apart but what is forgotten before."""
    from gpushmem.kernels.bfs import begin_at, search

    plan, root, parents, distances = made(case)
    graph, *symmetric = plan._workspace
    results = parents, distances, *plan._state
    return [
        ("begin", lambda: plan.launch(begin_at, 0, root, plan._first, *results)),
        ("search", lambda: plan.launch(search, 0, plan._first, *graph, *results, *symmetric)),
    ]


def mpi(case, comm):
    """Levels as arrays: edges of all vertices of a level, once each, to their owners."""
    from mpi4py import MPI

    starts, edges, root = graph_of(case, comm.rank, comm.size)
    n, size = comm.size, 1 << case["scale"]
    ends = np.arange(1, n + 1) * size // n
    first, degrees = comm.rank * size // n, np.diff(starts)

    def call():
        parents, seen = np.full(len(degrees), -1), np.zeros(size, bool)
        level = np.array([root - first] * (first <= root < first + len(degrees)), int)
        parents[level] = first + level
        while comm.allreduce(len(level)):
            many = degrees[level]
            at = np.arange(many.sum()) + np.repeat(starts[level] - (np.cumsum(many) - many), many)
            goals, sources = edges[at], np.repeat(first + level, many)
            new = ~seen[goals]
            goals, index = np.unique(goals[new], return_index=True)
            sources = sources[new][index]
            seen[goals] = True
            counts = np.diff(np.searchsorted(goals, np.append(0, ends)))
            come = np.empty_like(counts)
            comm.Alltoall(counts, come)
            pairs, got = np.stack([goals, sources], 1), np.empty((come.sum(), 2), "int64")
            comm.Alltoallv(
                [pairs, (2 * counts, 2 * (np.cumsum(counts) - counts)), MPI.INT64_T],
                [got, (2 * come, 2 * (np.cumsum(come) - come)), MPI.INT64_T],
            )
            v, index = np.unique(got[:, 0] - first, return_index=True)
            free = parents[v] < 0
            level = v[free]
            parents[level] = got[index[free], 1]

    return call
