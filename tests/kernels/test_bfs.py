"""Breadth-first searches over PEs, against NumPy."""

from types import SimpleNamespace

import numpy as np
import pytest
from gpushmem.kernels import BFS
from gpushmem.kernels.bfs import reference

import gpushmem as shmem
from tests.pes import lateness, repeated, some_of, whole_warps

LAUNCHES = ((1, 1), (2, 32), (3, 64))
ABCD = 0.57, 0.19, 0.19, 0.05  # of Graph500


def rmat(scale, degree, seed):
    """Edges of a graph of 2^scale vertices, (2, any): each bit of both ends by one throw."""
    rng = np.random.default_rng(seed)
    corner = rng.choice(4, p=ABCD, size=(degree << scale, scale))
    bits = 1 << np.arange(scale)
    ends = np.array([(corner >> 1) @ bits, (corner & 1) @ bits])
    return rng.permutation(1 << scale)[ends]


def both_ways(edges):
    return np.concatenate([edges, edges[::-1]], axis=1)


def line(size):
    """A vertex behind the other: as many levels as there are."""
    return np.array([np.arange(size - 1), np.arange(1, size)])


def cut(edges, sizes):
    """The graphs of PEs with so many vertices each."""
    order = np.argsort(edges[0], kind="stable")
    source, goal = edges[:, order]
    starts = np.append(0, np.cumsum(np.bincount(source, minlength=sum(sizes))))
    made, ends = [], np.cumsum(sizes)
    for first, last in zip(ends - sizes, ends, strict=True):
        mine = starts[first : last + 1]
        made.append(SimpleNamespace(indptr=mine - mine[0], indices=goal[mine[0] : mine[-1]]))
    return made


def check(plan, graphs, root, me, results):
    """Distances are NumPy's; parents are vertices of the level before, with an edge to here."""
    plan(root, parents=results[0], distances=results[1])
    (parents, distances), want = (x.numpy() for x in results), reference(graphs, root)[0]
    first = sum(len(graph.indptr) - 1 for graph in graphs[:me])
    mine = want[first : first + len(parents)]
    np.testing.assert_array_equal(distances, mine)
    np.testing.assert_array_equal(parents >= 0, mine >= 0)
    starts = np.cumsum([0] + [len(graph.indptr) - 1 for graph in graphs])
    for v in np.flatnonzero(mine > 0):
        u = parents[v]
        pe = np.searchsorted(starts, u, side="right") - 1
        edges, at = graphs[pe], u - starts[pe]
        assert want[u] == mine[v] - 1
        assert first + v in edges.indices[edges.indptr[at] : edges.indptr[at + 1]]
    if first <= root < first + len(parents):
        assert parents[root - first] == root


def results_for(size):
    return shmem.to_device(np.full(size, 77)), shmem.to_device(np.full(size, 77, "int32"))


GRAPHS = {
    "rmat": lambda: (both_ways(rmat(7, 8, 1)), 128),
    "one way": lambda: (rmat(6, 3, 2), 64),
    "line": lambda: (line(40), 40),
    "none": lambda: (np.empty((2, 0), int), 20),
}


def every_graph(kinds):
    shmem.init()
    me, n = shmem.my_pe(), shmem.n_pes()
    for number, kind in enumerate(some_of(kinds, 3)):
        blocks, threads = LAUNCHES[number % 3]
        edges, size = GRAPHS[kind]()
        sizes = np.diff(np.arange(n + 1) * size // n)
        if n > 2:  # PEs that are unlike, one of them without any
            sizes = np.append([sizes[0] + sizes[-1]], [*sizes[1:-1], 0])
        graphs, results = cut(edges, sizes), results_for(sizes[me])
        with BFS(graphs[me], blocks=blocks, threads=whole_warps(threads)) as plan:
            for root in (0, size - 1, size // 2):
                check(plan, graphs, root, me, results)
    shmem.finalize()


@pytest.mark.parametrize(
    ("n_pes", "kinds"),
    [
        (1, ("rmat", "none")),
        (3, tuple(GRAPHS)),
        *(pytest.param(n, tuple(GRAPHS), marks=pytest.mark.sweep) for n in (2, 5, 8)),
    ],
)
def test_distances_are_numpys(run_pes, n_pes, kinds):
    run_pes(every_graph, n_pes, kinds, timeout=120)


def many_searches(calls):
    shmem.init()
    me, n, late = shmem.my_pe(), shmem.n_pes(), lateness(0.05, 0.005)
    graphs, results = cut(rmat(5, 3, 5), [8] * n), results_for(8)
    with BFS(graphs[me], blocks=2, threads=whole_warps(32)) as plan:
        for call in range(calls):
            check(plan, graphs, 7 * call % 32, me, results)
            late()
    shmem.finalize()


@pytest.mark.parametrize("calls", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_searches_without_a_barrier(run_pes, calls):
    run_pes(many_searches, 4, repeated(calls, if_checked=3))


def test_of_two_teams_and_what_a_plan_is_not_for(run_pes):
    def body():
        shmem.init()
        me = shmem.my_pe()
        teams = [shmem.team_split_strided(shmem.TEAM_WORLD, k, 2, 2) for k in (0, 1)]
        graphs, results = cut(both_ways(rmat(4, 4, me % 2)), [8, 8]), results_for(8)
        plan = BFS(graphs[me // 2], team=teams[me % 2], blocks=1)
        check(plan, graphs, 3, me // 2, results)
        assert plan.sends(10, 3) == (80, 20 + 3)
        with pytest.raises(shmem.ArgumentError, match="root must be 0 to 15"):
            plan(16, parents=results[0], distances=results[1])
        with pytest.raises(shmem.ArgumentError, match="distances has shape"):
            plan(0, parents=results[0], distances=results[0])
        with pytest.raises(shmem.ArgumentError, match="the graph has indptr"):
            BFS(SimpleNamespace(indptr=[0, 3], indices=[1]))
        graphs = [*cut(both_ways(rmat(4, 4, 2)), [8, 0, 8]), *cut(np.empty((2, 0), int), [0])]
        team, results = shmem.team_split_strided(shmem.TEAM_WORLD, 0, 1, 3), results_for(8)
        with BFS(graphs[me], team=team) as plan:  # PE 3 is not in it
            if me != 3:
                check(plan, graphs, 9, me, results if me != 1 else results_for(0))
        shmem.finalize()

    run_pes(body, 4)
