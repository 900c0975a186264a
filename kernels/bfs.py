"""Search a graph, cut by vertices, breadth first: owners have a queue that others fill by atomics.

Level by level, as all PEs do at the same time:

    drain     take what others have put in my queue: pairs (vertex, parent), of my vertices
    expand    go through the edges of the level's vertices
                  to my vertex        claim it, and list it for the next level
                  to another PE's     take a place in its queue, and put the pair there: once, for
                                      each vertex of others that edges of mine lead to
    sum       tell all PEs how many are new; if none are on any PE, that was the last level

A place in a queue is taken by a remote fetch-and-add, and the pair, 8 bytes, is put there. A vertex
is claimed by a compare-and-swap of its parent, so it has one, of the level before. Since a PE sends
a vertex once, a queue has places for all that can come: those that other PEs have edges to, found
when the plan is made. PEs have numbers for these vertices alone, not for all of the graph.

What a PE sends, with B blocks, L levels and v vertices of others that it finds: 8 v bytes in 2 v
messages, of which v are atomic, and L (n - 1) B signals.

**Order.** There are two queues and two lists: level e fills those of e + 1. After its level a block
has all its puts and additions complete (`quiet`), then tells all blocks of all PEs, itself too, how
many it found. Who has heard all of them sees all of the queue and of the list. Queue e % 2 is empty
again, and said to be so, before its owner tells of level e; others add to it in e + 1 only, when
they have heard that. Blocks of a PE meet once in between, so that no vertex is found at a distance
too large because another block had not drained its part. In each level each PE hears from each, so
the rule of `plan` holds, and all know the same sum.

The benchmark is that of Graph500 (Murphy et al., "Introducing the Graph 500", 2010); the form with
owners and queues that of Buluc and Madduri, "Parallel breadth-first search on distributed memory
systems", SC 2011.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gpushmem.kernels.parts import begin, block_sum_of, end_at, member, wait_for_all
from gpushmem.kernels.plan import SLOTS, Plan
from gpushmem.kernels.spmv import needs
from numba import cuda

import gpushmem as shmem
from gpushmem.checks import integer

__all__ = ["BFS", "reference"]

THREADS = 512  # of a block, on GPUs
WARP = 32  # threads that go through the edges of a vertex
HALF = 32  # bits of a signal, or of a pair, that are below
LOW = (1 << HALF) - 1
block_count = block_sum_of(np.int64)


@shmem.jit(device=True)
def claim(parents, distances, v, parent, distance, vertices, number):
    """Make `parent` that of `v`, and append `v` to `vertices`, unless it has one; whether it did.

    `number` (1,) is how many vertices there are.
    """
    if cuda.atomic.cas(parents, v, -1, parent) != -1:
        return False
    distances[v] = distance
    vertices[cuda.atomic.add(number, 0, 1)] = v
    return True


@shmem.jit(device=True)
def send_once(h, u, sent, owners, places, queue, filled, team):
    """Put far vertex `h` and its parent `u` into its owner's queue, if it is new; whether it is."""
    if cuda.atomic.cas(sent, h, 0, 1) != 0:
        return False
    pe = member(team, owners[h])
    place = np.int64(shmem.atomic_fetch_add(filled, 1, pe))
    shmem.p(queue[place:], places[h] << HALF | u, pe)
    return True


@shmem.jit(device=True)
def meet(signals, epoch):
    """Wait for all blocks of this PE; what they have stored is visible. Synchronises the block."""
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        shmem.fence()
        for k in range(cuda.gridDim.x):
            there = signals[k, cuda.blockIdx.x :]
            shmem.signal_op(there, epoch, shmem.SIGNAL_SET, shmem.my_pe())
    wait_for_all(signals[cuda.blockIdx.x], epoch)


@shmem.jit(device=True)
def sum_over_pes(found, signals, epoch, team):
    """Return the sum of `found` over all threads of all PEs: tell all blocks, and hear from all.

    `signals` (n, blocks). What the block has sent is complete on each PE that hears of it.
    """
    me, n, b, t = shmem.team_my_pe(team), shmem.team_n_pes(team), cuda.blockIdx.x, cuda.threadIdx.x
    mine = block_count(found)
    if t < n:
        shmem.quiet()
    for k in range(t, n, cuda.blockDim.x):
        to = member(team, (me + 1 + k) % n)
        shmem.signal_op(signals[me, b:], epoch << HALF | mine, shmem.SIGNAL_SET, to)
    total = np.int64(0)
    for k in range(t, n * cuda.gridDim.x, cuda.blockDim.x):
        signal = signals[k // cuda.gridDim.x, k % cuda.gridDim.x :]
        said = shmem.signal_wait_until(signal, shmem.CMP_GE, epoch << HALF)
        total += np.int64(said) & LOW
    return block_count(total)


@shmem.jit
def begin_at(root, first, parents, distances, sent, vertices, numbers, team, epochs):
    """Forget the search before; `vertices` (SLOTS, any) of the first level has the root alone."""
    epoch, mine = begin(epochs), first <= root < first + parents.size
    t = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    threads = cuda.gridDim.x * cuda.blockDim.x
    for i in range(t, parents.size, threads):
        parents[i] = root if first + i == root else -1
        distances[i] = 0 if first + i == root else -1
    for i in range(t, sent.size, threads):
        sent[i] = 0
    if t == 0:
        numbers[epoch % SLOTS, 0], numbers[(epoch + 1) % SLOTS, 0] = mine, 0
        if mine:
            vertices[epoch % SLOTS, 0] = root - first


@shmem.jit(collective=True)
def search(
    first, starts, edges, owners, places, parents, distances, sent, vertices, numbers, queues,
    filled, met, told, team, epochs,
):  # fmt: skip
    """`edges` are numbers of this PE's vertices, or behind these of others', (any,) of `sent`.

    `owners` and `places` (any,): the others' numbers. Of each slot `vertices` (m,) of a level and
    their `numbers` (1,); symmetric `queues` (any,), `filled` (1,), `met` (blocks, blocks) and
    `told` (n, blocks).
    """
    epoch, t, b, threads = begin(epochs), cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockDim.x
    lanes, mine, level = WARP if threads % WARP == 0 else 1, parents.size, 0
    thread, group, blocks = b * threads + t, (b * threads + t) // lanes, cuda.gridDim.x
    total = np.int64(1)
    while total > 0:
        slot, after = epoch % SLOTS, (epoch + 1) % SLOTS
        if thread == 0 and level > 0:
            numbers[after, 0] = 0
        came = filled[slot, 0]
        for i in range(thread, came, blocks * threads):
            pair = queues[slot, i]
            v, u = pair >> HALF, pair & LOW
            claim(parents, distances, v, u, level, vertices[slot], numbers[slot])
        meet(met[slot], epoch)
        if thread == 0:
            shmem.atomic_set(filled[slot], 0, shmem.my_pe())
        found = np.int64(0)
        for i in range(group, numbers[slot, 0], blocks * threads // lanes):
            v = vertices[slot, i]
            for k in range(starts[v] + t % lanes, starts[v + 1], lanes):
                w, u = np.int64(edges[k]), first + v
                if w < mine:
                    found += claim(
                        parents, distances, w, u, level + 1, vertices[after], numbers[after]
                    )
                else:
                    found += send_once(
                        w - mine, u, sent, owners, places, queues[after], filled[after], team
                    )
        total = sum_over_pes(found, told[slot], epoch, team)
        epoch, level = epoch + 1, level + 1
    end_at(epochs, epoch - 1)


class BFS(Plan):
    """Search a graph from a vertex: `plan(root, parents=parents, distances=distances)`.

    `graph` has the edges of this PE's vertices, those of PE 0 of the team come first, as SciPy's
    `csr_array`: NumPy arrays `indptr` (m + 1,) and `indices`, vertices of the whole graph, of up to
    2^32. An edge leads from its row to its index: one that leads both ways is there twice.
    `parents` (m,) of int64 and `distances` (m,) of int32 get those of this PE's vertices, -1 if
    none of the root's edges lead there. A parent is one of those at the distance before, whichever
    came first; the root is its own.
    """

    fills = True

    def __init__(
        self, graph: Any, *, team: Any = shmem.TEAM_WORLD, blocks: int | None = None,
        threads: int | None = None,
    ) -> None:  # fmt: skip
        starts, edges = (np.asarray(getattr(graph, what)) for what in ("indptr", "indices"))
        if starts.ndim != 1 or not starts.size or edges.shape != (starts[-1],):
            raise shmem.ArgumentError(
                f"BFS: the graph has indptr {starts.shape} and indices {edges.shape}"
            )
        if (
            threads is None
        ):  # on GPUs many edges wait at once; on CPUs they are looked at one by one
            threads = THREADS if shmem.tuning().multiprocessors else 1
        super().__init__(team, blocks=blocks, threads=threads)
        self._shape = (len(starts) - 1,)
        known = needs(self, self._shape[0], edges)
        self._first, self._end = known.first, int(known.ends[-1])
        self._state, self._workspace = self._make_workspace(starts, edges, known)

    def _make_workspace(self, starts: Any, edges: Any, known: Any) -> tuple[Any, ...]:
        (size,), blocks = self._shape, self.blocks
        mine = (edges >= self._first) & (edges < self._first + size)
        numbered = np.where(mine, edges - self._first, size + np.searchsorted(known.needed, edges))
        places = known.needed - np.append(0, known.ends)[known.owners]
        state = (
            shmem.device_array(len(known.needed), "int32"),
            shmem.device_array((SLOTS, size), "int64"),
            shmem.to_device(np.zeros((SLOTS, 1), "int64")),
        )
        graph = starts.astype("int64"), numbered.astype("uint32"), known.owners, places
        return state, (
            tuple(map(shmem.to_device, graph)), self.boxes(
                int(known.table.sum(axis=0).max()), dtype="int64"),
            self.memory(SLOTS, 1, dtype="int64"), self.signals(blocks, blocks),
            self.signals(self.n_pes, blocks),
        )  # fmt: skip

    def __call__(self, root: int, *, parents: Any, distances: Any, stream: Any = 0) -> None:
        """Do it, asynchronously, in `stream`'s order; `root` is the same on all PEs.

        Raises `ArgumentError` for other shapes or dtypes, and a `root` that is no vertex.
        """
        integer("BFS: root", root, 0, self._end - 1)
        self.expect("parents", parents, self._shape, "int64")
        self.expect("distances", distances, self._shape, "int32")
        graph, *symmetric = self._workspace
        results = parents, distances, *self._state
        self.launch(begin_at, stream, root, self._first, *results)
        self.launch(search, stream, self._first, *graph, *results, *symmetric)

    def sends(self, found: int = 0, levels: int = 1) -> tuple[int, int]:
        """Bytes and messages that a PE sends if it finds so many vertices of others in a search."""
        return 8 * found, 2 * found + levels * (self.n_pes - 1) * self.blocks


def reference(
    graphs: list[Any], root: int
) -> tuple[np.ndarray[Any, Any], list[np.ndarray[Any, Any]]]:
    """Distances of all vertices, -1 if there is no way; and the vertices of each level."""
    sizes = [len(graph.indptr) - 1 for graph in graphs]
    degrees = np.concatenate([np.diff(graph.indptr) for graph in graphs])
    edges, starts = np.concatenate([graph.indices for graph in graphs]), np.cumsum(degrees)
    distances = np.full(sum(sizes), -1)
    distances[root], levels = 0, [np.array([root])]
    while levels[-1].size:
        ways = [edges[starts[v] - degrees[v] : starts[v]] for v in levels[-1]]
        found = np.unique(np.concatenate(ways))
        levels.append(found[distances[found] < 0])
        distances[levels[-1]] = len(levels) - 1
    return distances, levels[:-1]
