"""Products of matrices that are shared out over a team: tensor parallelism, in one kernel each.

    AllGatherGemm        every PE has rows of a; each multiplies all of a with its own b
    GemmReduceScatter    every PE has a share of the inner dimension, and gets its rows of the sum
    GemmAllReduce        the same, and every PE gets all of the sum

    all-gather + gemm, 3 PEs, shards A B C of a, in the order of time:

          PE 0    A -> PE 2, PE 1    multiply A    B, when it is here    C
          PE 1    B -> PE 0, PE 2    multiply B    C                     A
          PE 2    C -> PE 1, PE 0    multiply C    A                     B

    gemm + reduce-scatter, 3 PEs, chunks 0 1 2 of the product's rows, tile after tile:

          PE 0    multiply 1 -> PE 1    2 -> PE 2    0    0 += those of PE 1 and 2
          PE 1    multiply 2 -> PE 2    0 -> PE 0    1    1 += those of PE 0 and 2
          PE 2    multiply 0 -> PE 0    1 -> PE 1    2    2 += those of PE 0 and 1

    gemm + all-reduce: then a summed tile goes to all others, who take it one tile later

What is multiplied and sent in one piece is a *tile*, and has a signal. Each PE begins with another
one, so all links are busy, and what is needed first is sent first. Shards all have boxes, so that
they can be on their way while the first is multiplied. Tiles of sums are exchanged in step, an
epoch for each (see `plan`): a block's boxes hold one tile of each PE, and stay in the cache. Where
a PE can store to the owner's memory such a tile is not copied, but multiplied to its place there.

What a PE sends and multiplies in a call, for P PEs, m, n, k as in the plans, numbers of S bytes,
and so many tiles in a shard or chunk:

                            bytes                  messages             multiplications
    all-gather + gemm       (P - 1) m k S          (P - 1) tiles        P m n k
    gemm + reduce-scatter   (P - 1) m n S          (P - 1) tiles        P m n k
    gemm + all-reduce       2 (P - 1) m n S / P    2 (P - 1) tiles      m n k
    a small one, at once    (P - 1) m n S          (P - 1) tiles        m n k

Products of few rows are multiplied *at once* on CPUs, where several products of a few rows take
longer than one: then each PE gets its rows, or for all-reduce all rows of everybody, in one round.

That is `method="kernel"`. For large products on GPUs there is `method="library"` (`gemm_beside`):
the tiles are whole shards and chunks, of an all-reduce parts of rows.

To divide products and their communication into tiles, and do both in one kernel, is the idea of
Flux: Chang et al., "FLUX: Fast Software-based Communication Overlap On GPUs Through Kernel Fusion",
arXiv:2406.06858, 2024. That a compiler can find such overlaps was shown by CoCoNet: Jangda et al.,
"Breaking the Computation and Communication Abstraction Barrier in Distributed Machine Learning
Workloads", ASPLOS 2022.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gpushmem.kernels.gemm_beside import (
    AllReduceBeside,
    GatherBeside,
    ScatterBeside,
    divided,
    parts_to_sum,
    shards_together,
)
from gpushmem.kernels.parts import (
    begin,
    complete,
    copy,
    end,
    end_at,
    member,
    send,
    sum_in_order,
    tell,
    tell_others,
    wait_for,
    wait_for_others,
)
from gpushmem.kernels.plan import SLOTS, Plan
from numba import cuda

import gpushmem as shmem

__all__ = ["AllGatherGemm", "GemmAllReduce", "GemmReduceScatter", "reference", "reference_gathered"]


@shmem.jit(collective=True)
def all_gather_gemm(a, b, out, whole, inbox, arrived, rows, columns, group, team, epochs):
    """`inbox` (SLOTS, n m, k), `arrived` (SLOTS, n, tiles); a tile is of one shard, or a `group`.

    Where shards are multiplied together, a PE sends its own to itself, too. `whole` is for all
    shards, or has no rows.
    """
    me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
    gathered, signals = inbox[epoch % SLOTS], arrived[epoch % SLOTS]
    m, tiles, block, blocks = a.shape[0], arrived.shape[2], cuda.blockIdx.x, cuda.gridDim.x
    # The one before me needs mine first, then the one before that.
    for i in range(block, (n - 1 if group == 1 else n) * tiles, blocks):
        to, t = (me - 1 - i // tiles) % n, i % tiles
        first, last = t * rows, min(t * rows + rows, m)
        shmem.put_signal_nbi_block(
            gathered[me * m + first : me * m + last], a[first:last],
            signals[me, t:], epoch, shmem.SIGNAL_SET, member(team, to),
        )  # fmt: skip
    across = max(1, (b.shape[1] + columns - 1) // columns)
    groups = (n + group - 1) // group
    for i in range(block, groups * tiles * across, blocks):
        g, t = (me // group + i // across // tiles) % groups, i // across % tiles
        left = i % across * columns
        right = min(left + columns, b.shape[1])
        start, stop = g * group, min(g * group + group, n)
        first = start * m + t * rows
        last = min(first + rows, stop * m)
        dst, factor = out[first:last, left:right], b[:, left:right]
        wanted = left == 0 and whole.size > 0
        if group == 1 and start == me:
            tile = a[first - me * m : last - me * m]
            shmem.gemm_block(dst, tile, factor, False)
            if wanted:
                copy_rows(whole[first:last], tile)
        else:
            for q in range(start, stop):
                wait_for(signals[q, t:], epoch)
            shmem.gemm_block(dst, gathered[first:last], factor, False)
            if wanted:
                copy_rows(whole[first:last], gathered[first:last])
    complete()
    end(epochs)


@shmem.jit(device=True)
def chunk_of(size, share, k):
    """First and last (exclusive) of `size` rows that are PE k's, if each has a `share`."""
    return min(k * share, size), min(k * share + share, size)


@shmem.jit(device=True)
def tile_of(t, rows, columns, height, width):
    """First and last row and column of tile `t`; tiles are numbered along the rows."""
    across = max(1, (width + columns - 1) // columns)
    top, left = min(t // across * rows, height), t % across * columns
    return top, min(top + rows, height), left, min(left + columns, width)


@shmem.jit(device=True)
def copy_rows(dst, src):
    """Set dst to src, both of two axes; dst's shape counts."""
    for row in range(dst.shape[0]):
        copy(dst[row], src[row])


@shmem.jit(device=True)
def sum_tile(t, a, b, share, rows, columns, direct, boxes, signals, mine, team, epoch):
    """Multiply tile `t` of all chunks and send those of others; sum up mine, in `mine` (tile,).

    `boxes` (n, tile) and `signals` (n,) are of this block and slot; `direct` is whether the others'
    can be stored to. Returns how many elements my tile has, with the gaps that end its rows if it
    is narrower than others. Synchronises the block.
    """
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    for k in range(1, n + 1):
        owner = (me + k) % n
        start, stop = chunk_of(a.shape[0], share, owner)
        top, bottom, left, right = tile_of(t, rows, columns, stop - start, b.shape[1])
        height, size, pe = bottom - top, (bottom - top) * columns, member(team, owner)
        place = shmem.peer_array(boxes[me][:size], pe) if direct and k < n else mine[:size]
        shmem.gemm_block(
            place.reshape((height, columns))[:, : right - left],
            a[start + top : start + bottom], b[:, left:right], False,
        )  # fmt: skip
        if k == n:
            break
        if direct:
            tell(signals[me:], epoch, pe)
        else:
            box = boxes[me][:size]
            shmem.put_signal_block(box, place, signals[me:], epoch, shmem.SIGNAL_SET, pe)
    wait_for_others(signals, epoch, team)
    sum_in_order(place, boxes, me, n)
    return size


@shmem.jit(device=True)
def take_tile(t, out, size, share, rows, columns, box, owner):
    """Copy tile `t` of a chunk to `out`, of whose rows `size` are divided up; synchronises."""
    start, stop = chunk_of(size, share, owner)
    top, bottom, left, right = tile_of(t, rows, columns, stop - start, out.shape[1])
    src = box[: (bottom - top) * columns].reshape((bottom - top, columns))
    copy_rows(out[start + top : start + bottom, left:right], src)
    cuda.syncthreads()  # before the next tile is multiplied to where this one was


@shmem.jit(collective=True)
def gemm_reduce_scatter(
    a, b, out, share, rows, columns, tiles, direct, mine, inbox, arrived, team, epochs
):  # fmt: skip
    """`mine` (blocks, tile), `inbox` (SLOTS, blocks, n, tile), `arrived` (SLOTS, blocks, n)."""
    epoch, i = begin(epochs), cuda.blockIdx.x
    for t in range(i, tiles, cuda.gridDim.x):
        boxes, signals = inbox[epoch % SLOTS, i], arrived[epoch % SLOTS, i]
        sum_tile(t, a, b, share, rows, columns, direct, boxes, signals, mine[i], team, epoch)
        take_tile(t, out, share, share, rows, columns, mine[i], 0)
        epoch += 1
    end_at(epochs, epoch - 1)


@shmem.jit(device=True)
def take_sums(t, out, share, rows, columns, boxes, signals, team, epoch):
    """Wait for tile `t` of the others' chunks, and copy it to `out`."""
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    for k in range(1, n):
        owner = (me + k) % n
        wait_for(signals[owner:], epoch)
        take_tile(t, out, out.shape[0], share, rows, columns, boxes[owner], owner)


@shmem.jit(collective=True)
def gemm_all_reduce(
    a, b, out, share, rows, columns, tiles, direct, mine, inbox, arrived, sums, summed, team, epochs
):  # fmt: skip
    """As `gemm_reduce_scatter`; `sums` and `summed` are like `inbox` and `arrived`.

    The others' sums of a tile are waited for when the next one has been multiplied.
    """
    me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
    i, blocks = cuda.blockIdx.x, cuda.gridDim.x
    for t in range(i, tiles, blocks):
        slot, before = epoch % SLOTS, (epoch - 1) % SLOTS
        boxes, signals = inbox[slot, i], arrived[slot, i]
        size = sum_tile(
            t, a, b, share, rows, columns, direct, boxes, signals, mine[i], team, epoch
        )  # fmt: skip
        box, src, signal = sums[slot, i, me][:size], mine[i][:size], summed[slot, i, me:]
        for k in range(1, n):
            pe = member(team, (me + k) % n)
            shmem.put_signal_block(box, src, signal, epoch, shmem.SIGNAL_SET, pe)
        take_tile(t, out, out.shape[0], share, rows, columns, mine[i], me)
        if t >= blocks:
            boxes, signals = sums[before, i], summed[before, i]
            take_sums(t - blocks, out, share, rows, columns, boxes, signals, team, epoch - 1)
        epoch += 1
    if i < tiles:
        slot, last = (epoch - 1) % SLOTS, i + (tiles - 1 - i) // blocks * blocks
        boxes, signals = sums[slot, i], summed[slot, i]
        take_sums(last, out, share, rows, columns, boxes, signals, team, epoch - 1)
    end_at(epochs, epoch - 1)


@shmem.jit(collective=True)
def gemm_at_once(
    a, b, out, share, rows, columns, tiles, near, mine, inbox, arrived, team, epochs
):  # fmt: skip
    """All `rows` are multiplied together; a PE gets a `share` of them, or all, and sums them up.

    `mine` (blocks, rows columns), `inbox` (SLOTS, blocks, n, share columns), `arrived` as above.
    """
    me, n, epoch, i = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs), cuda.blockIdx.x
    size, owners = share * columns, rows // share
    for t in range(i, tiles, cuda.gridDim.x):
        boxes, signals = inbox[epoch % SLOTS, i], arrived[epoch % SLOTS, i]
        _, _, left, right = tile_of(t, rows, columns, rows, b.shape[1])
        place = mine[i].reshape((rows, columns))[:, : right - left]
        shmem.gemm_block(place, a, b[:, left:right], False)
        for k in range(1, n):
            to = (me + k) % n
            part = mine[i, to % owners * size :][:size]
            send(boxes[me], part, signals[me:], epoch, member(team, to), near)
        tell_others(signals[me:], epoch, team, near)
        wait_for_others(signals, epoch, team)
        part = mine[i, me % owners * size :][:size]
        sum_in_order(part, boxes, me, n)
        copy_rows(out[:, left:right], part.reshape((share, columns)))
        cuda.syncthreads()  # before the next tile is multiplied to where this one was
        epoch += 1
    end_at(epochs, epoch - 1)


def parts(size: int, most: int) -> int:
    """How many parts of at most `most` there are; nothing is one part."""
    return max(1, -(-size // most))


def even(size: int, most: int) -> int:
    """The size of parts of at most `most` if they are made as even as can be."""
    return max(1, -(-size // parts(size, most)))


class Gemm(Plan):
    """What the plans have in common: sizes, and the tile that products are divided into."""

    fills = True

    def __init__(
        self, m: int, n: int, k: int, dtype: Any, team: Any, *, tile: tuple[int, int] | None,
        method: str | None, products: int, blocks: int | None, threads: int | None,
        out_dtype: Any = None,
    ) -> None:  # fmt: skip
        name, tuning = type(self).__name__, shmem.tuning()
        most = tuning.kernel_products
        by_size = "kernel" if tile or most is None or products <= most else "library"
        if out_dtype is not None:  # of 8-bit floats
            by_size = "library"
        self.method = by_size if method is None else method
        if self.method not in METHODS:
            raise shmem.ArgumentError(
                f"{name}: method is {method!r}; it can be {', '.join(map(repr, METHODS))}"
            )
        self.moves = self.method == "library"  # sums, when it has multiplied
        super().__init__(team, blocks=blocks, threads=threads)
        self.m, self.n, self.k, self.dtype = m, n, k, np.dtype(dtype)
        self.out_dtype = self.dtype if out_dtype is None else np.dtype(out_dtype)
        allowed = DTYPES if out_dtype is None else (CODES,)
        if self.dtype.name not in allowed:
            raise shmem.ArgumentError(
                f"{name}: dtype is {self.dtype}; it can be {', '.join(allowed)}"
            )
        if min(m, n, k) < 0:
            raise shmem.ArgumentError(f"{name}: m, n, k are {m}, {n}, {k}; they cannot be negative")
        self.tile = tile or self._suggested_tile()
        if min(self.tile) < 1:
            raise shmem.ArgumentError(
                f"{name}: tile is {self.tile}; it is rows and columns, each 1 or more"
            )

    def _suggested_tile(self) -> tuple[int, int]:
        """Rows and columns, where the user does not say."""
        return self.tuning.tile

    def expect_all(self, a: Any, b: Any, out: Any, rows: int, rows_out: int) -> None:
        """Raise `ArgumentError` unless a, b and out are of `rows`, k and `rows_out` rows."""
        self.expect("a", a, (rows, self.k), self.dtype)
        self.expect("b", b, (self.k, self.n), self.dtype)
        self.expect("out", out, (rows_out, self.n), self.out_dtype)


CODES, OF_CODES = "float8_e4m3fn", ("float16", "bfloat16", "float32")
DTYPES = "float16", "bfloat16", "float32", "float64"
METHODS = "kernel", "library"
AT_ONCE = 4  # all-reduces in one shot: so much may be sent of products that are made at once


class AllGatherGemm(Gemm):
    """Multiply the rows of all PEs with this one's b: `plan(a, b, out=out, gathered=None)`.

    `a` (m, k) is this PE's shard, contiguous; `b` (k, n) is its own; `out` (P m, n) is for the
    product of all P PEs' shards, one below the other, with `b`; `gathered` (P m, k) is for these
    shards themselves, if they are wanted. They are device arrays of `dtype`: float16,
    bfloat16, float32 or float64; what `gemm_block` says of strides holds of `b` and `out`. `method`
    is "kernel" or "library", see the module; by default what suits the size on this backend, and
    "kernel" if there is a `tile`: the rows and columns that are multiplied, and the rows that are
    sent, in one piece; with rows for several shards these are multiplied together, by the library
    as many as divide P. Both are the
    same on all PEs. The workspace is 2 P m k elements, of "library" P m k. Other strides of `a` are
    refused when the kernel is compiled.

    With `out_dtype`, float16, bfloat16 or float32, `dtype` is float8_e4m3fn and the method
    "library": a and b are 8-bit floats, as in `gemm_scaled`, and travel as such; calls have
    `scale_a=` and `scale_b=`, of float32. These are one number each, `scale_a` the same on all PEs;
    with `row_scales` of shape (m, 1) and (1, n), and those of a's rows travel, too.
    """

    def __init__(
        self, *, m: int, n: int, k: int, dtype: Any, team: Any = shmem.TEAM_WORLD,
        tile: tuple[int, int] | None = None, method: str | None = None, blocks: int | None = None,
        threads: int | None = None, out_dtype: Any = None, row_scales: bool = False,
    ) -> None:  # fmt: skip
        products = max(team.n_pes, 1) * m * n * k
        super().__init__(
            m, n, k, dtype, team, tile=tile, method=method, products=products, blocks=blocks,
            threads=threads, out_dtype=out_dtype,
        )  # fmt: skip
        self.row_scales = row_scales
        self._check_codes(out_dtype is not None)
        self._beside: GatherBeside | None = None
        if self.method == "library":
            self.groups = self._together(tile)
            self._beside = GatherBeside(self)
        else:
            self._prepare(m, n, k)

    def _check_codes(self, codes: bool) -> None:
        """Raise for what 8-bit floats, or others, do not have."""
        if codes and (self.method != "library" or self.out_dtype.name not in OF_CODES):
            raise shmem.ArgumentError(
                f"AllGatherGemm: method is {self.method!r}, out_dtype {self.out_dtype}; of 8-bit "
                f"floats these are 'library', and one of {', '.join(OF_CODES)}"
            )
        if codes and (self.n % 16 or self.k % 16 or not self.k):
            raise shmem.ArgumentError(
                f"AllGatherGemm: n is {self.n}, k is {self.k}; of 8-bit floats both are multiples "
                "of 16, and k is not 0"
            )
        if self.row_scales and not codes:
            raise shmem.ArgumentError(
                f"AllGatherGemm: row_scales are of 8-bit floats, which have an out_dtype; dtype is "
                f"{self.dtype}"
            )

    def _together(self, tile: tuple[int, int] | None) -> tuple[int, ...]:
        """How many shards the library multiplies together, at each time."""
        if tile is None:
            multiprocessors = self.tuning.multiprocessors
            size = max(2, self.dtype.itemsize)  # 8-bit floats are multiplied faster, too
            return shards_together(self.n_pes, self.m, self.n, size, multiprocessors)
        most = max(1, tile[0] // max(self.m, 1))
        together = (k for k in range(1, self.n_pes + 1) if self.n_pes % k == 0 and k <= most)
        return divided(self.n_pes, max(together), doubling=False)

    def _prepare(self, m: int, n: int, k: int) -> None:
        """Make what the kernel needs."""
        rows, columns = self.tile
        self.group = max(1, min(self.n_pes, rows // max(m, 1)))
        self.tiles = parts(m, rows)
        self._sizes = (
            self.group * m if self.group > 1 else even(m, rows),
            even(n, columns),
            self.group,
        )
        self._workspace = (
            self.boxes(self.n_pes * m, k, dtype=self.dtype), self.signals(self.n_pes, self.tiles)
        )  # fmt: skip
        self._no_rows = self._workspace[0][0][:0]
        first, last = self.my_pe * m, (self.my_pe + 1) * m
        # What others write to: the rows between may have what this PE sends to itself.
        self.inboxes = [part for slot in self.inboxes[0] for part in (slot[:first], slot[last:])]

    def _suggested_tile(self) -> tuple[int, int]:
        rows = self.tuning.product_rows
        return (max(self.m, rows), max(self.n, 1)) if rows else self.tuning.tile

    def __call__(
        self, a: Any, b: Any, *, out: Any, gathered: Any = None, scale_a: Any = None,
        scale_b: Any = None, stream: Any = 0,
    ) -> None:  # fmt: skip
        """Set `out` to the product, and `gathered` to all rows; asynchronous, in `stream`'s order.

        When its turn on the stream is over both are there, and `a` and `b` and the scales may be
        changed. Raises `ArgumentError` if a shape or dtype is not the plan's.
        """
        self.expect_all(a, b, out, self.m, self.n_pes * self.m)
        if gathered is not None:
            self.expect("gathered", gathered, (self.n_pes * self.m, self.k), self.dtype)
        self._check_scales(scale_a, scale_b)
        if self._beside is not None:
            self.repeat(self._beside, stream, a, b, out, gathered, scale_a, scale_b)
            return
        whole = self._no_rows if gathered is None else gathered
        self.launch(all_gather_gemm, stream, a, b, out, whole, *self._workspace, *self._sizes)

    def _check_scales(self, scale_a: Any, scale_b: Any) -> None:
        """Raise `ArgumentError` unless a call has those that it has to have, and they fit."""
        given = {"scale_a": scale_a, "scale_b": scale_b}
        if self.out_dtype == self.dtype:
            for name, scale in given.items():
                if scale is not None:
                    raise shmem.ArgumentError(f"AllGatherGemm: {name}: {self.dtype} has no scales")
            return
        for (name, scale), shape in zip(given.items(), ((self.m, 1), (1, self.n)), strict=True):
            if scale is None:
                raise shmem.ArgumentError(f"AllGatherGemm: {name} is missing: 8-bit floats have it")
            one = () if tuple(scale.shape) == () else (1,)
            self.expect(name, scale, shape if self.row_scales else one, np.dtype(np.float32))

    def sends(self) -> tuple[int, int]:
        """Bytes and messages that a PE sends to others in a call."""
        others = self.n_pes - 1
        nbytes = others * self.m * (self.k * self.dtype.itemsize + 4 * self.row_scales)
        return nbytes, self._beside.messages if self._beside else others * self.tiles


class Reducing(Gemm):
    """What the plans that sum up products have in common: every PE sums up a chunk of rows."""

    def __init__(
        self, rows: int, m: int, n: int, k: int, dtype: Any, team: Any,
        tile: tuple[int, int] | None, direct: bool | None, method: str | None, *,
        blocks: int | None, threads: int | None,
    ) -> None:  # fmt: skip
        self.rows, self.share = rows, max(1, -(-rows // max(team.n_pes, 1)))
        super().__init__(
            m, n, k, dtype, team, tile=tile, method=method, products=rows * n * k, blocks=blocks,
            threads=threads,
        )  # fmt: skip
        self.direct = self.reachable if direct is None else direct
        if self.direct and not self.reachable:
            raise shmem.ArgumentError(
                f"{type(self).__name__}: direct=True, but not all members of the team are in "
                "TEAM_SHARED; leave it out"
            )
        self._beside: ScatterBeside | AllReduceBeside | None = None
        # Of all PEs: what is allocated is the same in all teams.
        nbytes = (shmem.n_pes() - 1) * m * n * self.dtype.itemsize
        few = (
            tile is None
            and rows <= self.tuning.product_rows
            and nbytes <= AT_ONCE * self.tuning.one_shot_bytes
        )
        self.at_once = self.method == "kernel" and few and rows * n > 0
        if self.method == "library":
            self.rows_together = self._rows_together(tile)
            self._beside = self._of_library(self)
        elif self.at_once:
            self._prepare_at_once(n)
        else:
            self._prepare(n)

    _of_library: type[ScatterBeside] | type[AllReduceBeside]
    _workspace: tuple[Any, ...]

    def _rows_together(self, tile: tuple[int, int] | None) -> int:
        """How many rows the library multiplies at a time."""
        return self.share

    def _run(self, kernel: Any, a: Any, b: Any, out: Any, stream: Any) -> None:
        if self._beside is not None:
            self.repeat(self._beside, stream, a, b, out)
        else:
            kernel = gemm_at_once if self.at_once else kernel
            self.launch(kernel, stream, a, b, out, *self._workspace)

    def _prepare_at_once(self, n: int) -> None:
        """Make what `gemm_at_once` needs; a tile has all rows."""
        columns = even(n, self.tile[1])
        self.tiles, self.tile_size = parts(n, self.tile[1]), self.m * columns
        self._workspace = (
            self.m, self.rows, columns, self.tiles, self.direct,
            self.memory(self.blocks, self.rows * columns, dtype=self.dtype), *self._tiles_of_all(),
        )  # fmt: skip

    def _prepare(self, n: int) -> None:
        """Make what the kernel needs."""
        tile_rows, tile_columns = even(self.share, self.tile[0]), even(n, self.tile[1])
        self.tiles = parts(self.share, self.tile[0]) * parts(n, self.tile[1])
        self.tile_size = tile_rows * tile_columns
        self._workspace = (
            self.share, tile_rows, tile_columns, self.tiles, self.direct,
            self.memory(self.blocks, self.tile_size, dtype=self.dtype), *self._tiles_of_all(),
        )  # fmt: skip

    def _tiles_of_all(self) -> tuple[Any, Any]:
        """Boxes for a tile of each PE, and their signals, for each block."""
        shape = self.blocks, self.n_pes
        return self.boxes(*shape, self.tile_size, dtype=self.dtype), self.signals(*shape)


class GemmReduceScatter(Reducing):
    """Sum up all PEs' products, each PE its rows of them: `plan(a, b, out=out)`.

    `a` (P m, k) and `b` (k, n) are this PE's share of the inner dimension; `out` (m, n) is for its
    part, of m rows, of the sum of all P PEs' `a @ b`. They are device arrays of `dtype`: float16,
    bfloat16, float32 or float64; what `gemm_block` says of strides holds of all three. Products are
    rounded to `dtype` before they are summed up, in the order of the PEs. `method` is "kernel" or
    "library", see the module; by default what suits the size on this backend, and "kernel" if there
    is a `tile`: the rows and columns that are multiplied and sent in one piece. `direct` is whether
    a kernel stores products to the owner's memory; by default where that can be. All are the same
    on all PEs. The
    workspace of a block is 2 P + 1 tiles, that of "library" 2 P m n elements.
    """

    _of_library = ScatterBeside

    def __init__(
        self, *, m: int, n: int, k: int, dtype: Any, team: Any = shmem.TEAM_WORLD,
        tile: tuple[int, int] | None = None, direct: bool | None = None, method: str | None = None,
        blocks: int | None = None, threads: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            m * max(team.n_pes, 1), m, n, k, dtype, team, tile, direct, method, blocks=blocks,
            threads=threads,
        )  # fmt: skip

    def __call__(self, a: Any, b: Any, *, out: Any, stream: Any = 0) -> None:
        """Set `out` to this PE's rows; asynchronous, in `stream`'s order.

        When its turn on the stream is over `out` is there, and `a` and `b` may be changed. Raises
        `ArgumentError` if a shape or dtype is not the plan's.
        """
        self.expect_all(a, b, out, self.n_pes * self.m, self.m)
        self._run(gemm_reduce_scatter, a, b, out, stream)

    def sends(self) -> tuple[int, int]:
        """Bytes and messages that a PE sends in a call."""
        others = self.n_pes - 1
        messages = self._beside.messages if self._beside else others * self.tiles
        return others * self.m * self.n * self.dtype.itemsize, messages


class GemmAllReduce(Reducing):
    """Sum up all PEs' products, on all PEs: `plan(a, b, out=out)`.

    `a` (m, k) and `b` (k, n) are this PE's share of the inner dimension; `out` (m, n) is for the
    sum of all PEs' `a @ b`, the same bits on every PE. The rows are divided over the PEs, as evenly
    as can be, to be summed up. The rest is as of `GemmReduceScatter`; the workspace of a block is
    4 P + 1 tiles, that of "library" 2 m n elements; that multiplies as many rows at a time as suits
    the GPU, or as a `tile` has. With `in_place` the method is "library", `out` is a symmetric array
    of consecutive rows, in each call the same on all PEs, and nothing is copied: the workspace is
    m n elements.
    """

    _of_library = AllReduceBeside

    def __init__(
        self, *, m: int, n: int, k: int, dtype: Any, team: Any = shmem.TEAM_WORLD,
        tile: tuple[int, int] | None = None, direct: bool | None = None, method: str | None = None,
        blocks: int | None = None, threads: int | None = None, in_place: bool = False,
    ) -> None:  # fmt: skip
        if in_place and method not in (None, "library"):
            raise shmem.ArgumentError(
                f"GemmAllReduce: method is {method!r}; with in_place it is 'library'"
            )
        self.in_place = in_place
        method = "library" if in_place else method
        super().__init__(
            m, m, n, k, dtype, team, tile, direct, method, blocks=blocks, threads=threads
        )

    def _prepare(self, n: int) -> None:
        super()._prepare(n)
        self._workspace += self._tiles_of_all()

    def _rows_together(self, tile: tuple[int, int] | None) -> int:
        if tile is not None:
            return min(tile[0], max(self.rows, 1))
        item, multiprocessors = self.dtype.itemsize, self.tuning.multiprocessors
        parts = parts_to_sum(self.n_pes, self.rows, self.n, self.k, item, multiprocessors)
        return max(1, -(-self.rows // parts))

    def __call__(self, a: Any, b: Any, *, out: Any, stream: Any = 0) -> None:
        """Set `out` to the sum; asynchronous, in `stream`'s order.

        When its turn on the stream is over `out` is there, and `a` and `b` may be changed. Raises
        `ArgumentError` if a shape or dtype is not the plan's, `SymmetryError` if `out` is not
        symmetric and has to be.
        """
        self.expect_all(a, b, out, self.m, self.m)
        rows = self.n * self.dtype.itemsize, self.dtype.itemsize
        if self.in_place and not (isinstance(out, shmem.SymmetricArray) and out.strides == rows):
            raise shmem.SymmetryError(
                "GemmAllReduce: with in_place out must be a symmetric array of consecutive rows, "
                "the same on all PEs: allocate it with gpushmem.empty or zeros"
            )
        self._run(gemm_all_reduce, a, b, out, stream)

    def sends(self) -> tuple[int, int]:
        """Bytes and messages that a PE sends in a call, at most: the last chunk may be smaller."""
        others = self.n_pes - 1
        if self.at_once:
            return others * self.m * self.n * self.dtype.itemsize, others * self.tiles
        nbytes = 2 * others * self.dtype.itemsize
        if self._beside:
            return nbytes * self._beside.part, self._beside.messages
        return nbytes * self.share * self.n, 2 * others * self.tiles


def reference_gathered(
    shards: list[np.ndarray[Any, Any]], b: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """What `AllGatherGemm` leaves on a PE, from all PEs' shards of a and its own b."""
    return np.concatenate(shards) @ b


def reference(
    factors: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]],
) -> np.ndarray[Any, Any]:
    """What `GemmAllReduce` leaves, from all PEs' a and b; of `GemmReduceScatter`, all PEs' rows."""
    return np.sum(np.stack([a @ b for a, b in factors]), axis=0, dtype=factors[0][0].dtype)
