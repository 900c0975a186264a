"""Sort keys over all PEs of a team, with a value beside each if you like: sample sort.

    PE 0   5 3 9 1    1. sort         1 3 5 9 on PE 0, 2 3 7 8 on PE 1
    PE 1   2 8 3 7    2. sample       some keys of each PE, to all; their quantiles are the
                                      splitters, the same on all PEs: here the 3 of PE 1
                      3. exchange     1 3 | 5 9 and 2 | 3 7 8, by `AllToAllV`: 1 3 2 on PE 0, ...
                      4. sort         1 2 3 on PE 0, 3 5 7 8 9 on PE 1

Equal keys stay in the order of their PEs and places, also where a splitter is one of them: it has a
place, too, and those from there on go to the next PE. So many equal keys are divided evenly.

Samples are at regular places, S = 64 of a PE that has `size` keys; of others in proportion. Between
two that follow each other on a PE are size / S keys, so what a PE ends with differs from the mean
of n PEs by (n + 1) size / S at most: it is up to 1 + (n + 1) / 64 times `size`, whatever the keys.

PEs sort by a radix sort, last digits first, in two kernels a digit: threads count the digits of
keys that follow each other, then put each key behind those of smaller digits and those of its own
before it. Or by the library, `method="library"`: on CPUs NumPy sorts keys several times as fast.
What has come are then n parts in order, which are merged, two at a time.

What a PE sends: its samples, 16 bytes each, as `AllGatherV` does; its keys, and values, as
`AllToAllV` does.

The job is that of ISx (Hanebutte and Hemstad, "ISx: a scalable integer sort for co-design in the
exascale era", PGAS 2015). Regular samples: Shi and Schaeffer, "Parallel sorting by regular
sampling", J. Parallel Distrib. Comput. 14, 1992; ties: Helman, JaJa and Bader, "A new deterministic
parallel sorting algorithm with an experimental evaluation", ACM JEA 3, 1998.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gpushmem.kernels.all_to_all_v import AllGatherV, AllToAllV
from gpushmem.kernels.parts import part_of
from gpushmem.kernels.plan import KEPT, Plan
from numba import cuda

import gpushmem as shmem
from gpushmem.checks import dtype_of

__all__ = ["SampleSort", "reference"]

SAMPLES = 64  # of a PE that has as many keys as it can
PLACE = 40  # bits of a key's place on its PE
# Of each dtype: what is added to a key, so that keys are in order as 64 bits without a sign.
OFFSETS = {"int32": 1 << 31, "uint32": 0, "int64": 1 << 63, "uint64": 0}
METHODS = "kernel", "library"
MANY, FEW = 8, 4  # bits of a digit, for one thread, and for blocks of many


# --- sorting on a PE


@shmem.jit(device=True)
def without_sign(key, offset):
    """A key as 64 bits, in the order of the keys."""
    return np.uint64(key) + np.uint64(offset)


@shmem.jit(device=True)
def mine_of(size, counts):
    """First and last (exclusive) of the keys of this thread, of `counts` in all, at most `size`."""
    t, threads, total = cuda.threadIdx.x, cuda.blockDim.x, np.int64(0)
    for k in range(counts.size):
        total += counts[k]
    first, last = part_of(min(total, size), cuda.gridDim.x, cuda.blockIdx.x)
    share = (last - first + threads - 1) // threads
    return min(first + t * share, last), min(first + (t + 1) * share, last)


@shmem.jit
def count(keys, counts, shift, offset, table, totals, team, epochs):
    """`table` (blocks, digits, threads): before a thread's keys in its block; `totals` in all."""
    b, t, digits = cuda.blockIdx.x, cuda.threadIdx.x, totals.shape[0]
    first, last = mine_of(keys.size, counts)
    for d in range(digits):
        table[b, d, t] = 0
    for i in range(first, last):
        digit = without_sign(keys[i], offset) >> np.uint64(shift)
        table[b, np.int64(digit) & (digits - 1), t] += 1
    cuda.syncthreads()
    for d in range(t, digits, cuda.blockDim.x):
        total = np.int32(0)
        for k in range(cuda.blockDim.x):
            here = table[b, d, k]
            table[b, d, k] = total
            total += here
        totals[d, b] = total


def placing(pairs: bool) -> Any:
    """The kernel that puts keys, or keys and values, in the order of a digit."""

    @shmem.jit
    def place(
        keys, counts, shift, offset, table, totals, starts, out, values, out_values, team, epochs
    ):
        """`table` and `totals` as `count` leaves them; `starts` (blocks, 2, digits)."""
        b, t, digits = cuda.blockIdx.x, cuda.threadIdx.x, totals.shape[0]
        mine, all_blocks = starts[b, 0], starts[b, 1]
        for d in range(t, digits, cuda.blockDim.x):
            total = np.int64(0)
            for k in range(cuda.gridDim.x):
                if k == b:
                    mine[d] = total
                total += totals[d, k]
            all_blocks[d] = total
        cuda.syncthreads()
        if t == 0:
            start = np.int64(0)
            for d in range(digits):
                mine[d] += start
                start += all_blocks[d]
        cuda.syncthreads()
        first, last = mine_of(keys.size, counts)
        for i in range(first, last):
            d = np.int64(without_sign(keys[i], offset) >> np.uint64(shift)) & (digits - 1)
            at = mine[d] + table[b, d, t]
            table[b, d, t] += 1
            out[at] = keys[i]
            if pairs:
                out_values[at] = values[i]

    return place


PLACE_KEYS, PLACE_PAIRS = placing(pairs=False), placing(pairs=True)


# --- which keys go to which PE


@shmem.jit
def sample(keys, offset, stride, samples, number, team, epochs):
    """`samples` (most, 2) gets keys and their places, `number` (1,) how many; of sorted keys."""
    me, many = np.uint64(shmem.team_my_pe(team)), (keys.size + stride - 1) // stride
    for k in range(cuda.threadIdx.x, many, cuda.blockDim.x):
        at = k * stride + min(stride, keys.size - k * stride) // 2
        samples[k, 0] = np.int64(without_sign(keys[at], offset))
        samples[k, 1] = np.int64(me << np.uint64(PLACE) | np.uint64(at))
    if cuda.threadIdx.x == 0:
        number[0] = many


@shmem.jit(device=True)
def before(samples, key, place):
    """How many of these samples, which are in order, come before a key at a place."""
    low, high = 0, samples.shape[0]
    while low < high:
        k = (low + high) // 2
        here = np.uint64(samples[k, 0])
        if here < key or (here == key and np.uint64(samples[k, 1]) < place):
            low = k + 1
        else:
            high = k
    return low


@shmem.jit(device=True)
def keys_before(keys, offset, key, place, me):
    """How many keys of this PE, which are in order, come before a key at a place."""
    low, high, mine = 0, keys.size, np.uint64(me) << np.uint64(PLACE)
    while low < high:
        k = (low + high) // 2
        here = without_sign(keys[k], offset)
        if here < key or (here == key and mine | np.uint64(k) < place):
            low = k + 1
        else:
            high = k
    return low


@shmem.jit
def split(samples, numbers, keys, offset, splitters, bounds, counts, team, epochs):
    """`counts` (n,) gets how many of the sorted `keys` go to each PE; one block.

    `samples` (any, 2) of all PEs, `numbers` (n,) of each. Quantiles become `splitters` (n, 2),
    where a PE's keys end; the last one has none. `bounds` (n + 1,) is for this block alone.
    """
    t, n, threads = cuda.threadIdx.x, counts.size, cuda.blockDim.x
    total = np.int64(0)
    for p in range(n):
        total += numbers[p]
    for i in range(t, total, threads):
        key, place = np.uint64(samples[i, 0]), np.uint64(samples[i, 1])
        rank, start = np.int64(0), np.int64(0)
        for p in range(n):
            rank += before(samples[start : start + numbers[p]], key, place)
            start += numbers[p]
        for k in range(n - 1):
            if (k + 1) * total // n == rank:
                splitters[k, 0], splitters[k, 1] = key, place
    cuda.syncthreads()
    for k in range(t, n + 1, threads):
        bounds[k] = 0 if k == 0 else keys.size
        if 0 < k < n and total > 0:
            last = splitters[k - 1]
            bounds[k] = keys_before(keys, offset, last[0], last[1], shmem.team_my_pe(team))
    cuda.syncthreads()
    for k in range(t, n, threads):
        counts[k] = bounds[k + 1] - bounds[k]


# --- merging


@shmem.jit(device=True)
def take(to, at, source, i, out_values, values, pairs):
    to[np.uint64(at)] = source[np.uint64(i)]
    if pairs:
        out_values[np.uint64(at)] = values[np.uint64(i)]


@shmem.jit(device=True)
def merge_two(to, source, out_values, values, first, middle, last, pairs):
    """Merge what is in order from `first` to `middle` with what is from there to `last`.

    From both ends at once, in two chains of loads of which neither waits for the other, without a
    branch on keys. Of so many steps as the shorter part has left neither end takes what the other
    one has: together they are no more than there are. What one end compares may be gone at the
    other, but then it is larger (smaller) than all that is left, so the other part's is taken.
    """
    i, p, j, q, k, e = first, middle, middle, last, first, last
    while i < p and j < q:
        for _ in range(min(p - i, q - j)):
            left = source[np.uint64(i)] <= source[np.uint64(j)]
            take(to, k, source, i if left else j, out_values, values, pairs)
            i, j, k = i + left, j + 1 - left, k + 1
            left = source[np.uint64(p - 1)] > source[np.uint64(q - 1)]
            e -= 1
            take(to, e, source, (p if left else q) - 1, out_values, values, pairs)
            p, q = p - left, q - 1 + left
    start = i if i < p else j
    for m in range(e - k):
        take(to, k + m, source, start + m, out_values, values, pairs)


def merging(pairs: bool) -> Any:
    """The kernel that merges the parts of all PEs."""

    @shmem.jit
    def merge(keys, other, values, other_values, counts, rounds, team, epochs):
        """Parts of so many keys as `counts` says, in `other` if `rounds` is odd, end in `keys`."""
        n = counts.size
        for r in range(rounds if cuda.threadIdx.x == 0 else 0):
            width, total, back = 1 << r, np.int64(0), (rounds - r) % 2 == 1
            to, source = (keys, other) if back else (other, keys)
            out_values, its = (values, other_values) if back else (other_values, values)
            for k in range(0, n, 2 * width):
                first = min(total, keys.size)
                for m in range(k, min(k + width, n)):
                    total += counts[m]
                middle = min(total, keys.size)
                for m in range(k + width, min(k + 2 * width, n)):
                    total += counts[m]
                last = min(total, keys.size)
                merge_two(to, source, out_values, its, first, middle, last, pairs)

    return merge


MERGE = {pairs: merging(pairs) for pairs in (False, True)}


def stride_of(size: int) -> int:
    """From one sample to the next."""
    return max(1, -(-size // SAMPLES))


def capacity_of(size: int, n: int) -> int:
    """The most keys that one of `n` PEs ends with, of up to `size` on each."""
    return size + (n + 1) * stride_of(size)


class SampleSort(Plan):
    """Sort up to `size` keys of each PE over a team: `plan(keys, out=out, received=counts)`.

    `keys` (any,), of int32, int64, uint32 or uint64, may differ in number between PEs and calls;
    they stay as they are. `out` gets this PE's part of all keys in order, the smallest on PE 0 of
    the team, `received` (n,) of int64 from which PEs they came: their sum is how many there are.
    Up to `capacity` can come, by default what the samples promise; `out` has room for as many.
    With `values="float32"`, any dtype, each key has a value: `plan(keys, out=out, received=counts,
    values=v, out_values=w)`. Equal keys stay in the order of their PEs and places.

    `method` is "kernel", or "library": NumPy sorts, on CPUs only, so a call waits for what is
    before it. It is the default there; a call that is captured goes by the kernels.
    """

    moves = True

    def __init__(
        self, *, size: int, dtype: Any, values: Any = None, capacity: int | None = None,
        team: Any = shmem.TEAM_WORLD, method: str | None = None, blocks: int | None = None,
        threads: int | None = None,
    ) -> None:  # fmt: skip
        on_gpus = bool(shmem.tuning().multiprocessors)
        self.method = method or METHODS[not on_gpus]
        self.size, self.dtype = size, np.dtype(dtype)
        self._check(on_gpus)
        if threads is None:
            threads = shmem.tuning().threads if on_gpus else 1
        parts = -(-size * self.dtype.itemsize // shmem.tuning().block_bytes)
        super().__init__(team, blocks=blocks, threads=threads, parts=parts)
        n, self._offset = self.n_pes, OFFSETS[self.dtype.name]
        self._rounds = max(n - 1, 0).bit_length()  # of merging
        self.stride = stride_of(size)
        self.capacity = capacity_of(size, n) if capacity is None else capacity
        kinds = [self.dtype]
        if values is not None:
            kinds.append(dtype_of("SampleSort: values", values))
        self._sorted = [self.sendable(shmem.device_array(size, kind)) for kind in kinds]
        self._other = [shmem.device_array(max(size, self.capacity), kind) for kind in kinds]
        bits = MANY if self.threads == 1 else FEW
        self._shifts = range(0, 8 * self.dtype.itemsize, bits)
        self._table = shmem.device_array((self.blocks, 1 << bits, self.threads), "int32")
        self._totals = shmem.device_array((1 << bits, self.blocks), "int32")
        self._starts = shmem.device_array((self.blocks, 2, 1 << bits), "int64")
        self._samples = self.sendable(shmem.device_array((SAMPLES, 2), "int64"))
        self._gathered = shmem.device_array((n * SAMPLES, 2), "int64")
        self._splitters = shmem.device_array((n, 2), "uint64")
        self._number, self._numbers, self._counts, self._bounds = (
            shmem.device_array(k, "int64") for k in (1, n, n, n + 1)
        )
        self._all = shmem.to_device(np.full(1, size))
        self._views: dict[int, tuple[Any, Any]] = {}  # by id: arrays, as NumPy's
        try:
            self._plans.append(
                AllGatherV(rows=SAMPLES, row=(2,), dtype="int64", team=team, blocks=1)
            )
            for kind in kinds:
                self._plans.append(AllToAllV(rows=size, dtype=kind, team=team))
        except shmem.HeapExhausted:  # on all PEs
            self.free()
            raise
        self._gather, *self._send = self._plans

    def _check(self, on_gpus: bool) -> None:
        name = type(self).__name__
        if self.dtype.name not in OFFSETS or self.size < 0:
            raise shmem.ArgumentError(
                f"{name}: size is {self.size} and dtype {self.dtype}; size must be 0 or more, of "
                f"dtypes there are {', '.join(OFFSETS)}"
            )
        if self.method not in METHODS or (on_gpus and self.method == "library"):
            raise shmem.ArgumentError(
                f"{name}: method is {self.method!r}; there is 'kernel', and on CPUs 'library'"
            )

    def __call__(
        self, keys: Any, *, out: Any, received: Any, values: Any = None, out_values: Any = None,
        stream: Any = 0,
    ) -> None:  # fmt: skip
        """Do it, in `stream`'s order; raises `ArgumentError` for other shapes.

        Asynchronous; by the library the host waits until this PE's keys are sorted.
        """
        given, results = [self.flat(keys)], [self.flat(out, 0, self.capacity)]
        if len(self._send) > 1:
            given.append(self.flat(values))
            results.append(self.flat(out_values, 0, self.capacity))
        size = given[0].size
        if size > self.size:
            raise shmem.ArgumentError(
                f"{type(self).__name__}: there are {size} keys, the plan is for {self.size} at most"
            )
        names = ("keys", "out"), ("values", "out_values")
        for (what, to), plan, x, y in zip(names, self._send, given, results, strict=False):
            self.expect(what, x, (size,), plan.dtype)
            self.expect(to, y, (results[0].size,), plan.dtype)
        if self.method == "kernel":
            self.repeat(self._queue, stream, received, *given, *results)
        else:
            self._queue(received, *given, *results, stream)

    def _queue(self, received: Any, *arrays_and_stream: Any) -> None:
        """Queue a call: keys, and values, what both become, and the stream."""
        *arrays, stream = arrays_and_stream
        given, results = arrays[: len(arrays) // 2], arrays[len(arrays) // 2 :]
        self.on(stream)
        mine = [self.flat(array, 0, given[0].size) for array in self._sorted]
        self._sort(given, mine, self._all, stream)
        self._divide(mine[0], stream)
        merges = self._by_library(stream)
        other = self._beside(results) if merges else []
        come = other if merges and self._rounds % 2 else results
        for plan, x, y in zip(self._send, mine, come, strict=True):
            plan(x, self._counts, out=y, received=received, stream=stream)
        if merges:
            both = results[0], other[0], results[-1], other[-1], received, self._rounds
            self._launch_one(MERGE[len(results) > 1], stream, *both)
        else:
            self._sort(results, results, received, stream)

    def _beside(self, arrays: list[Any]) -> list[Any]:
        """Memory for as many elements again."""
        return [self.flat(x, 0, y.size) for x, y in zip(self._other, arrays, strict=True)]

    def _by_library(self, stream: Any) -> bool:
        return self.method == "library" and not shmem.is_capturing(stream)

    def _divide(self, keys: Any, stream: Any) -> None:
        """Find how many keys, which are in order, go to each PE."""
        self._launch_one(
            sample, stream, keys, self._offset, self.stride, self._samples, self._number
        )
        self._gather(
            self._samples, self._number, out=self._gathered, received=self._numbers, stream=stream
        )
        self._launch_one(
            split, stream, self._gathered, self._numbers, keys, self._offset, self._splitters,
            self._bounds, self._counts,
        )  # fmt: skip

    def _launch_one(self, kernel: Any, stream: Any, *args: Any) -> None:
        self.launch_as((1, self.threads, stream), self._epochs, kernel, *args)

    def _sort(self, given: list[Any], results: list[Any], counts: Any, stream: Any) -> None:
        """Sort arrays by the first of them, of as many elements as all of `counts`."""
        if self._by_library(stream):
            shmem.synchronize()
            by_library(*([self._view(x) for x in xs] for xs in (given, results)))
            return
        shape, place = (self.blocks, self.threads, stream), PLACE_KEYS
        other = self._beside(results)
        for k, shift in enumerate(self._shifts):
            source = given if k == 0 else (results if k % 2 == 0 else other)
            target = other if k % 2 == 0 else results
            if len(given) > 1:
                place = PLACE_PAIRS
            known = source[0], counts, shift, self._offset, self._table, self._totals
            self.launch_as(shape, self._epochs, count, *known)
            self.launch_as(
                shape, self._epochs, place, *known, self._starts, target[0], source[-1], target[-1]
            )

    def _view(self, array: Any) -> Any:
        """NumPy's array of the same memory; the same object for the same array."""
        known = self._views.get(id(array))
        if known is None or known[0] is not array:
            if len(self._views) >= KEPT:
                self._views.clear()
            self._views[id(array)] = known = array, np.from_dlpack(array)
        return known[1]

    def dropped(self) -> int:
        """How many keys had no room on this PE in the last call; waits for it.

        They are the last of those that came, in the order of their PEs: what is there is sorted.
        """
        return self._send[0].dropped()

    def sends(self, counts: Sequence[int] = (), received: Sequence[int] = ()) -> tuple[int, int]:
        """Bytes and messages that a PE sends in a call, of so many keys for each PE and from each.

        Without these: in a call in which no PE has keys for others.
        """
        samples = [SAMPLES] * self.n_pes
        sent = [self._gather.sends(samples, samples)]
        sent += [plan.sends(counts, received) for plan in self._send]
        return sum(nbytes for nbytes, _ in sent), sum(messages for _, messages in sent)


def by_library(given: list[Any], results: list[Any]) -> None:
    """Sort NumPy's arrays by the first of them."""
    if len(given) == 1:
        results[0][:] = given[0]
        results[0].sort()
        return
    order = np.argsort(given[0], kind="stable")
    for x, y in zip(given, results, strict=True):
        y[:] = x[order]


def reference(
    keys: list[np.ndarray[Any, Any]], values: list[np.ndarray[Any, Any]] | None = None
) -> tuple[np.ndarray[Any, Any], ...]:
    """What all PEs end with, one behind the other: keys, or keys and values."""
    order = np.argsort(np.concatenate(keys), kind="stable")
    return tuple(np.concatenate(x)[order] for x in (keys, values) if x is not None)
