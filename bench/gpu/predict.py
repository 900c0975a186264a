"""Predict the ready kernels on 8 GPUs, from machine code and formulas, without a GPU.

python -m bench.gpu.predict               all; then python docs/make_tables.py
python -m bench.gpu.predict KERNEL ...    those whose names begin so; what is known of others stays

A kernel's blocks go through pieces, one after the other; a piece is

    passes      over memory: bytes / (threads * bytes that a thread has under way) trips, each as
                long as a load from where the bytes are (HBM, L2 cache)
    fences      of the system: until what was stored has arrived
    hops        signals from one PE to another
    waits       for signals that have come, one after the other

    time        launch + max(pieces * a piece, bytes / rate of NVLink, of HBM, of the L2 cache,
                instructions / rate, where lanes of warps compute with all that they read, bytes
                / rate of shared memory); the sum, where nothing can begin before all else has ended
    limit       max(bytes / rate of NVLink, bytes / rate of HBM, flops / rate), of the data sheet

Products by the library follow each other on a stream; in `by_library` copy engines send meanwhile:

    a product   launch + max(waves of tiles of 128x256, one on a multiprocessor, * a tile's time,
                which is its flops / (rate that the library reaches / multiprocessors); bytes of the
                matrices / rate of HBM); tiles of 64x256 for fewer rows

What a thread has under way, registers and memory are read from the machine code; passes and bytes
follow from the algorithm (`FORMULAS`); the machines are described in `machines.py`.
"""

import json
import os
import sys
from functools import cache
from math import ceil, log, log2, prod, sqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np
from gpushmem.kernels.all_reduce import part_size
from gpushmem.kernels.buckets import InBuckets
from gpushmem.kernels.embedding_lanes import TOGETHER
from gpushmem.kernels.fft_tiles import EACH, SECTOR
from gpushmem.kernels.gemm_beside import summed_in_parts
from gpushmem.kernels.muon import SPREAD, cost

from bench.gpu.machines import MACHINES
from gpushmem.artifacts.gpu_limits import most_registers
from gpushmem.explain.occupancy import occupancy
from gpushmem.ops import OPS
from tests.nvshmem import kernels
from tests.nvshmem.machine import loops, plans, reader

os.environ["GPUSHMEM_CUBLASDX"] = "0"  # its products are not in the formulas
RESULT = Path(__file__).parents[1] / "results/predictions.json"
PUT, COPY, SUM, ELEMENTS = "put", "copy", "sum", "elements"  # what a pass does
MANY_ROWS, FEW_ROWS = (128, 256), (64, 256)  # of the library, and for products of so many rows
PAIRS = "pairs"  # of elements, and single ones beside them
FETCH = "fetch"  # elements of a product, to shared memory
READ = "read"  # packs that lanes of a warp use together
FLAG, LOOK, SWITCH = "flag", "look", "switch"  # LL: data with flags, there and back; multimem
LINES = "lines"  # LL128: data in lines; they are looked at as LL's are
KNOWN = {FLAG: 16, LINES: 30, LOOK: 256, SWITCH: 64}  # bytes under way: see test_vectors.py
TILE = "tile"  # elements of a thread of a transform
FOURS = "fours"  # of two arrays, or twice of one: see test_kernels.py
HBM, L2, FAR = "hbm trip", "l2 trip", "far trip"  # where it loads from
N, OTHERS = plans.N_PES, plans.N_PES - 1


class Pass(NamedTuple):
    """A block loads so many bytes, `times` one after the other."""

    does: str
    nbytes: float
    source: str = L2
    times: float = 1


class Work(NamedTuple):
    """What a call does on a PE, and a block for one of its `pieces`."""

    link: float  # bytes sent
    hbm: float  # bytes loaded and stored, if what is used again is found in the cache
    passes: tuple[Pass, ...]
    pieces: int = 1
    fences: float = 1
    hops: float = 1
    waits: float = 1
    least: float | None = None  # bytes sent by the best algorithm, if by another one
    serial: float = 0  # loads from the L1 cache, of which each needs the one before
    steps: float = 0  # of products, one after the other
    fetched: float = 0  # bytes that a step loads
    flops: float = 0
    read: float = 0  # bytes that warps load to use them together
    library: tuple[tuple[int, int, int, int], ...] = ()  # of products: m, n, k, and how many
    launches: float = 1  # but theirs
    cached: float = 0  # bytes that the L2 cache gives beside
    exchanged: float = 0  # bytes through shared memory
    then: "Work | None" = None  # what begins when this has ended


# --- formulas


def one_shot(b):
    first, others = Pass(COPY, b, HBM), Pass(COPY, b, L2, OTHERS - 1)
    return (first, others, Pass(COPY, b), Pass(SUM, N * b)), 1, 1, 1


def two_shot(b):
    p = b / N
    there = Pass(COPY, p, HBM, OTHERS), Pass(COPY, p, HBM), Pass(SUM, b)
    return (*there, Pass(COPY, p, L2, OTHERS), Pass(COPY, b / 2, L2, 2)), 2, 2, 2


def multicast(b):
    p = b / N
    there = Pass(COPY, b, HBM), Pass(SWITCH, p, FAR), Pass(COPY, p)
    return (*there, Pass(COPY, b / 2, L2, 2)), 2, 2, 2


def ring(b):
    steps, p = 2 * OTHERS, b / N
    passes = Pass(COPY, p, HBM, steps), Pass(SUM, 2 * p, L2, OTHERS), Pass(COPY, p, L2, OTHERS)
    return passes, steps, steps, steps


def ll(b):
    return (Pass(FLAG, b, HBM), Pass(FLAG, b, L2, OTHERS), Pass(LOOK, 2 * N * b)), 0, 1, 1


def ll128(b):
    return (Pass(LINES, b, HBM), Pass(LINES, b, L2, OTHERS), Pass(LOOK, 16 / 15 * N * b)), 0, 1, 1


def ll128_two_shot(b):
    p = b / N
    there = Pass(LINES, p, HBM, OTHERS), Pass(LINES, p, HBM), Pass(LOOK, 16 / 15 * b)
    back = Pass(LINES, p, L2, OTHERS), Pass(LOOK, 16 / 15 * p, L2, OTHERS)
    return (*there, *back), 0, 2, 1


ALGORITHMS = {
    "one_shot": one_shot, "two_shot": two_shot, "multicast": multicast, "ring": ring, "ll": ll,
    "ll128": ll128, "ll128_two_shot": ll128_two_shot,
}  # fmt: skip


def summed(plan, nbytes, b, pieces, arrays, more=()):
    """Arrays that are summed, and pass through HBM `arrays` times; `more` passes over each piece.

    To `multicast` others send what the switch adds for a PE, too.
    """
    passes, *counts = ALGORITHMS[plan.algorithm](b)
    link = plan.sends()[0] + (nbytes if plan.algorithm == "multicast" else 0)
    best = min(link, 2 * OTHERS / N * nbytes)
    return Work(link, arrays * nbytes, passes + more, pieces, *counts, best)


def in_pieces(plan):
    """Bytes of an array, and of a piece, and how many of these a block has."""
    item, of_block = plan.dtype.itemsize, part_size(plan.size, plan.blocks)
    return plan.size * item, plan.piece * item, ceil(of_block / plan.piece)


def all_reduce(plan):
    return summed(plan, *in_pieces(plan), 2)


def norm(plan):
    tokens, row = plan.shape[0], plan.shape[1] * plan.dtype.itemsize
    b, pieces = plan.rows * row, ceil(ceil(tokens / plan.rows) / plan.blocks)
    more = Pass(SUM, 2 * b, HBM), Pass(FOURS, 2 * b, L2, 2)
    return summed(plan, tokens * row, b, pieces, 5, more)


def gather(plan):
    part, b, pieces = in_pieces(plan)
    stores = Pass(COPY, b, HBM), Pass(COPY, b, L2, OTHERS - 1)
    passes = *stores, Pass(COPY, b), Pass(COPY, b, L2, OTHERS)
    return Work(OTHERS * part, (1 + N) * part, passes, pieces, 1, 1, OTHERS)


def exchange(plan):
    part, b, pieces = in_pieces(plan)
    passes = Pass(COPY, b, HBM, 1 + OTHERS), Pass(COPY, b, L2, OTHERS)
    return Work(OTHERS * part, 2 * N * part, passes, pieces, 1, 1, OTHERS)


def scatter(plan):
    part, b, pieces = in_pieces(plan)
    passes = Pass(COPY, b, HBM, OTHERS + 2), Pass(SUM, N * b)
    return Work(OTHERS * part, (1 + N) * part, passes, pieces)


def zero(plan):
    """Reduce-scatter, three float32 of state of my part there and back, all-gather."""
    item, part = plan.dtype.itemsize, plan.parts[0][1] - plan.parts[0][0]
    b, pieces = plan.piece * item, ceil(part_size(part, plan.blocks) / plan.piece)
    twice = plan.clip is not None  # sums are looked at once more, then, by a second launch
    passes = (
        Pass(COPY, b, HBM, OTHERS), Pass(COPY, b, HBM), Pass(SUM, N * b),
        Pass(FOURS, b, HBM, twice), Pass(FOURS, 12 * plan.piece + b, HBM),
        Pass(COPY, b, L2, 2 * OTHERS),
    )  # fmt: skip
    hbm = part * ((2 * N + 2 * twice) * item + 24)
    waits = 1 + OTHERS
    launches = 1 + twice + plan.overlap_param_gather
    return Work(plan.sends()[0], hbm, passes, pieces, 2, 2, waits, launches=launches)


def muon(plan):
    """As `zero`, with 15 products of each of this PE's matrices, which are square, in between.

    Before them momentum and update go through HBM, after each third one a polynomial, at last the
    masters.
    """
    item, part = plan.dtype.itemsize, plan.parts[0][1] - plan.parts[0][0]
    b, pieces = plan.piece * item, ceil(part_size(part, plan.blocks) / plan.piece)
    m, mine = plan.shapes[0][0], len(plan._matrices)
    each = part * item / (SPREAD * plan.blocks)
    passes = (
        Pass(COPY, b, HBM, OTHERS), Pass(COPY, b, HBM), Pass(SUM, N * b),
        Pass(FOURS, 4 * plan.piece + b, HBM), Pass(COPY, b, L2, 2 * OTHERS),
        Pass(FOURS, 2 * each / pieces, HBM, 3 + plan.steps),
    )  # fmt: skip
    hbm = part * ((2 * N + 6 + 3 * plan.steps) * item + 16)
    return Work(
        plan.sends()[0], hbm, passes, pieces, 2, 2, 1 + OTHERS,
        flops=sum(plan.steps * cost(plan.shapes[0]) for _ in range(mine)),
        library=((m, m, m, 1),) * (3 * plan.steps * mine), launches=2 + mine * (2 + plan.steps),
    )  # fmt: skip


def scan(plan):
    """The first PE's part, who sends to all others, with the last one's sum."""
    part, b, pieces = in_pieces(plan)
    passes = Pass(PUT, b, HBM), Pass(PUT, b, L2, OTHERS - 1), Pass(SUM, OTHERS * b)
    return Work(OTHERS * part, 2 * part, passes, pieces)


def of_rows(plan, rows):
    """Bytes of `rows` for one PE, and of a piece, and how many of these a block has."""
    row, of_block = plan.width * plan.dtype.itemsize, part_size(rows, plan.blocks)
    return rows * row, min(plan.piece, of_block) * row, ceil(of_block / plan.piece)


def exchange_rows(plan):
    """As many rows for each PE; lanes of a warp wait together for how many there are."""
    part, b, pieces = of_rows(plan, ceil(plan.rows / N))
    passes = Pass(PUT, b, HBM, OTHERS), Pass(COPY, b, HBM), Pass(COPY, b, L2, OTHERS)
    return Work(OTHERS * part, 2 * N * part, passes, pieces, 1, 1, 1)


def gather_rows(plan):
    """As many rows of each PE."""
    part, b, pieces = of_rows(plan, plan.rows)
    puts = Pass(PUT, b, HBM), Pass(PUT, b, L2, OTHERS - 1)
    passes = *puts, Pass(COPY, b), Pass(COPY, b, L2, OTHERS)
    return Work(OTHERS * part, (1 + N) * part, passes, pieces, 1, 1, 1)


def broadcast(plan):
    """The root's part, and the copy of the last PE to hear."""
    nbytes, b, pieces = in_pieces(plan)
    passes = Pass(COPY, b, HBM), Pass(COPY, b, L2, OTHERS)
    return Work(OTHERS * nbytes, nbytes, passes, pieces, 1, 2)


def product(plan, m, n, k, dtype=None):
    """Steps of `gemm_block` for a product, and the bytes that each loads."""
    from numba.cuda import types

    from gpushmem.backends.nvshmem.operations.gemm import TILES

    dtype = np.dtype(dtype or plan.dtype)
    rows, columns, depth, *_ = TILES[getattr(types, dtype.name)]
    steps = ceil(m / rows) * ceil(n / columns) * ceil(k / depth)
    return steps, (rows + columns) * depth * dtype.itemsize


def beside(plan, gathers, times=1):
    """What the library reads and writes, and what is sent, `times` a shard or chunk to each."""
    part = plan.m * plan.k if gathers else plan.share * plan.n
    m, item = N * plan.m if gathers else plan.rows, plan.dtype.itemsize
    moved = Pass(COPY if gathers else SUM, part * item, HBM)
    hbm = (m * plan.k + plan.k * plan.n + m * plan.n) * item
    link, flops = times * OTHERS * part * item, 2 * m * plan.n * plan.k
    return Work(link, hbm, (moved,), 1, times, times, flops=flops)


def gather_product(plan):
    if plan._beside:
        return beside(plan, True)
    rows, columns, _ = plan._sizes
    tiles = ceil(N * plan.tiles * ceil(plan.n / columns) / plan.blocks)  # of a block
    steps, fetched = product(plan, rows, columns, plan.k)
    puts = ceil(OTHERS * plan.tiles / plan.blocks)
    item, m = plan.dtype.itemsize, N * plan.m
    return Work(
        plan.sends()[0], (m * plan.k + plan.k * plan.n + m * plan.n) * item,
        (Pass(PUT, rows * plan.k * item, HBM, puts),), 1, puts, 1, tiles,
        steps=steps * tiles, fetched=fetched, flops=2 * m * plan.n * plan.k,
    )  # fmt: skip


def product_summed(plan, back=0):
    """`back`: 1 if the sums are sent to all."""
    if plan._beside:
        return beside(plan, False, 1 + back)
    rows, columns = plan._workspace[1:3]
    item, pieces, m = plan.dtype.itemsize, ceil(plan.tiles / plan.blocks), N * plan.share
    steps, fetched = product(plan, rows, columns, plan.k)
    tile = rows * columns * item
    passes = (
        Pass(COPY, tile), Pass(SUM, N * tile), Pass(ELEMENTS, tile, L2, 1 + back * OTHERS),
        Pass(PUT, tile, L2, back * OTHERS),
    )  # fmt: skip
    out = m if back else plan.share
    return Work(
        plan.sends()[0], (m * plan.k + plan.k * plan.n + out * plan.n) * item, passes, pieces,
        OTHERS * (1 + back), 1 + back, 1 + back * OTHERS,
        steps=steps * N * pieces, fetched=fetched, flops=2 * m * plan.n * plan.k,
    )  # fmt: skip


def product_summed_for_all(plan):
    return product_summed(plan, 1)


def sums(plan, machine, code):
    """What it takes to sum up what has come; of an all-reduce a part, and to copy one out."""
    for_all = summed_by_all(plan)
    part = (plan.rows_together if for_all else plan.rows) * plan.n
    added = part_size(part // N, plan.blocks) * plan.dtype.itemsize
    part *= plan.dtype.itemsize
    does = [Work(0, (N + 1 + 2 * for_all) * part / N, (Pass(SUM, N * added, HBM),), 1, 0, 0)]
    if for_all:  # and each after a wait
        copied = (0, ()) if plan.in_place else (2 * part, (Pass(COPY, N * added, HBM),))
        does += [Work(0, *copied, 1, 0, 0, launches=1 if plan.in_place else 2)]
    return [predict(work, machine, code)["seconds"] for work in does]


def summed_by_all(plan):
    return type(plan).__name__ == "GemmAllReduce"


def sorting(plan):
    """Accesses of a thread, one after the other, to sort pairs by expert: each block sorts all."""
    of_tokens = 3 * ceil(plan.pairs / plan.threads)
    return of_tokens + 2 * ceil(plan.experts / plan.threads) * ceil(plan.tokens / 32)


def routed(plan):
    """Rows that are sent, the segments of a block, and the rows of each."""
    return plan.pairs * OTHERS / N, ceil(plan.experts / plan.blocks), plan.pairs / plan.experts


def by_warps(plan, rows, nbytes, source=HBM, times=1):
    """So many rows that a block's warps copy, each its own."""
    warps = plan.threads // 32
    return Pass(COPY, warps * nbytes, source, times * ceil(rows / warps))


def low_latency(plan):
    rows, segments, each = routed(plan)
    nbytes = rows * plan.row_bytes
    copies = by_warps(plan, each, plan.row_bytes, HBM, segments)
    return Work(nbytes, 2 * nbytes, (copies,), serial=sorting(plan))


def throughput(plan):
    """Rows go to each PE once, and from there once for each expert, by segments."""
    row, share, segment = plan.row_bytes, plan.pairs / N / plan.blocks, plan.pairs / plan.experts
    passes = (
        by_warps(plan, plan.once / plan.blocks, row, HBM, N),
        by_warps(plan, min(share, segment), row, L2, N * ceil(share / segment)),
    )
    hbm = (plan.tokens + 2 * N * plan.once + plan.pairs) * row
    serial = 2 * sorting(plan) + 2 * ceil(plan.pairs / plan.threads) + 3 * plan.experts
    link = OTHERS * (plan.once * row + 4 * plan.pairs / N)
    return Work(link, hbm, passes, waits=1 + N, serial=serial)


def combine(plan):
    rows, segments, each = routed(plan)
    row = plan.hidden * plan.dtype.itemsize
    passes = (
        Pass(COPY, row * ceil(each), L2, segments),
        Pass(SUM, plan.top_k * row, L2, ceil(plan.tokens / plan.blocks)),
    )  # fmt: skip
    waits = ceil(plan.experts / plan.threads)
    return Work(rows * row, 2 * rows * row, passes, waits=waits)


def mixture(plan):
    rows, segments, each = routed(plan)
    item, of_pe = plan.dtype.itemsize, plan.experts_per_pe
    row, m = plan.hidden * item, ceil(each * N)
    steps, fetched = product(plan, m, plan.inner, plan.hidden)
    passes = (
        Pass(COPY, row * ceil(each), HBM, segments), Pass(PUT, row * ceil(each), L2, segments),
        Pass(SUM, plan.top_k * row, L2, ceil(plan.tokens / plan.blocks)),
    )  # fmt: skip
    return Work(
        2 * rows * row, 2 * of_pe * plan.hidden * plan.inner * item + 4 * rows * row, passes, 1,
        2 * segments, 2, segments + ceil(plan.experts / plan.threads), serial=sorting(plan),
        steps=2 * steps * ceil(of_pe / plan.blocks), fetched=fetched,
        flops=4 * m * plan.inner * plan.hidden * of_pe,
    )  # fmt: skip


def mixture_by_library(plan):
    """Tokens there, put behind each other; two products of all experts; and back.

    Of each expert as many rows are multiplied as the one with most has, up to a power of two: that
    is a binomial number of rows, taken to be three deviations above its mean. That the host waits
    for it is taken as three launches.
    """
    rows, segments, each = routed(plan)
    back, of_pe, item = combine(plan), plan.experts_per_pe, plan.dtype.itemsize
    row, mean = plan.hidden * item, each * N
    most = max(64, 1 << ceil(log2(mean + 3 * sqrt(mean))))
    experts, active = ceil(of_pe / plan.blocks), plan._layer._grid
    passes = (
        Pass(COPY, ceil(each) * row, HBM, segments), Pass(COPY, ceil(each) * row, L2, N * experts),
        Pass(ELEMENTS, plan.inner * item, L2, ceil(plan.pairs / active)), *back.passes,
    )  # fmt: skip
    weights = 2 * of_pe * plan.hidden * plan.inner * item
    return Work(
        2 * rows * row, weights + 6 * rows * row, passes, 1, 2, 2, back.waits, serial=sorting(plan),
        flops=4 * plan.pairs * plan.inner * plan.hidden, launches=4 + 3,
        library=((most, plan.inner, plan.hidden, of_pe), (most, plan.hidden, plan.inner, of_pe)),
    )  # fmt: skip


def attention(plan, products=2, grads=0):
    """Blocks that are passed on, and products of tiles; half of them where it is causal."""
    item, tokens, size = plan.dtype.itemsize, plan.tokens, plan.head_dim
    block, share = 2 * tokens * plan.kv_heads * size, 0.5 if plan.causal else 1
    rows, columns = plan.tile
    workers = min(plan.blocks, plan.kv_heads) if grads else plan.blocks
    tiles = share * N * plan.heads * ceil(tokens / rows) * ceil(tokens / columns) / workers
    steps, fetched = product(plan, rows, columns, size, "float32")
    passes = (
        Pass(PUT, block * item / plan.blocks, L2, OTHERS),
        Pass(ELEMENTS, rows * columns * 4, L2, 3 * tiles),
        Pass(SUM, 2 * block * grads / workers, L2, OTHERS if grads else 0),
    )  # fmt: skip
    return Work(
        plan.sends()[0], (2 * N * block + 2 * tokens * plan.heads * size) * item, passes, 1,
        2 * OTHERS, OTHERS, 2 * OTHERS, steps=products * steps * tiles, fetched=fetched,
        flops=2 * products * share * N * tokens * tokens * plan.heads * size,
    )  # fmt: skip


def attention_gradients(plan):
    return attention(plan, 5, 4)


def ulysses(plan):
    """Rows are gathered at one end, and those of all heads but the last part's are rotated.

    By a cos and a sin, of float32, for each two numbers.
    """
    item, turned = plan.dtype.itemsize, sum(plan.heads[:-1]) / sum(plan.heads)
    message = plan.rows * plan.head_dim * item / plan.blocks
    passes = (
        Pass(COPY, message, HBM, N), Pass(SUM, turned * message * (1 + 4 / item), L2, N),
        Pass(PUT, message, L2, OTHERS),
        Pass(COPY, message, HBM, N),
    )  # fmt: skip
    whole = N * message * plan.blocks
    return Work(plan.sends()[0], 4 * whole, passes, 1, OTHERS, 1, OTHERS)


def pages_sent(plan):
    """A layer of a request; a warp puts a piece, or a block makes a row of 8-bit floats there."""
    nbytes, messages = plan.sends()
    units = max(1, messages - plan.blocks * len(plan._out[0]))
    at_once = plan.blocks * (1 if plan.wire else plan.threads // 32)
    item = plan.dtype.itemsize
    kind, wide = (FOURS, item * 32 / 33) if plan.wire else (PUT, 1)  # a scale for 128 numbers
    share = wide * nbytes / units * at_once / plan.blocks
    read = plan.most_pages * 2 * plan.page_size * plan.heads * plan.cache[0].shape[-1] * item
    return Work(nbytes, read, (Pass(kind, share, HBM, ceil(units / at_once)),), 1, 1, 1, 1)


def decoded(plan):
    """Keys and values are read once, for each few rows of queries, by warps that are alone."""
    from gpushmem.kernels.decode_lanes import MOST_ROWS

    items, rows = plan._items
    item, dim, keys = plan.dtype.itemsize, plan.head_dim, plan.most_pages * plan.page_size
    mine, again = ceil(items / plan.blocks), ceil(rows / MOST_ROWS)
    of_item = 2 * ceil(keys / plan.splits) * dim * item
    passes = (
        Pass(READ, of_item, HBM, mine), Pass(READ, of_item, L2, mine * (again - 1)),
        Pass(SUM, 4 * rows * dim * plan.threads / 32, L2, mine),
        Pass(PUT, 4 * rows * plan._row, L2, mine * N),
        Pass(SUM, 4 * N * plan.splits * rows * dim, L2, ceil(items / plan.splits / plan.blocks)),
    )  # fmt: skip
    read = 2 * plan.batch * keys * plan.kv_heads * dim * item
    return Work(
        plan.sends()[0], read, passes, 1, 1, 1, 1 + ceil(N * plan.splits / plan.threads),
        flops=4 * plan.batch * keys * plan.heads * plan.queries * dim, read=again * read,
    )  # fmt: skip


def one_item(plan):
    """An item that is sent, of which no other one is in the box; or one that has come."""
    nbytes = plan.sends()[0]
    moved = Pass(COPY, nbytes / plan.blocks, HBM)
    return Work(nbytes, 2 * nbytes, (moved,))


def layers(plan):
    """All actions of the first stage, and that it waits for the others: the schedule's bubble.

    Each block multiplies its rows, and its tiles of gradients of weights.
    """
    size, item, times = plan.hidden, plan.dtype.itemsize, plan.microbatches
    products = times * (2 * plan.layers - 1)  # of rows: no other stage needs gradients of x
    rows = ceil(plan.rows / plan.blocks)
    of_rows, fetched = product(plan, rows, size, size)
    tiles = ceil(plan.layers * ceil(size / plan.tile[0]) * ceil(size / plan.tile[1]) / plan.blocks)
    of_tiles, _ = product(plan, *plan.tile, plan.rows)
    steps = products * of_rows + times * tiles * of_tiles
    wait = 1 / (1 - plan.schedule.bubble())
    b = rows * size * item
    passes = Pass(COPY, b, HBM, 3 * times), Pass(ELEMENTS, b, L2, 2 * times * plan.layers)
    weights, values = size * size * item, plan.rows * size * item
    products += times * plan.layers
    return Work(
        plan.sends()[0], products * (weights + 2 * values), passes, 1, 4 * times,
        2 * plan.schedule.stages, 2 * times, steps=wait * steps, fetched=fetched,
        flops=2 * products * plan.rows * size * size,
    )  # fmt: skip


def halo(plan):
    """Also what is copied in the meantime."""
    rows, row = plan.shape[0], plan.shape[1] * plan.dtype.itemsize
    part, own = plan.width * row / plan.blocks, rows * row / plan.blocks
    passes = (
        Pass(COPY, part, HBM, 2), Pass(PUT, part, L2, 2), Pass(COPY, own, HBM),
        Pass(COPY, part, L2, 2),
    )  # fmt: skip
    return Work(2 * plan.width * row, 2 * rows * row, passes, 1, 2, 1, 2)


def jacobi(plan):
    """One iteration, with two cells at once of each of several rows that follow each other."""
    from gpushmem.kernels.jacobi import rows_at_once

    rows, columns = plan.local_shape
    row = columns * plan.dtype.itemsize
    own = ceil(rows / min(plan.blocks, rows)) * row
    loads = 2 + 2 / rows_at_once(len(plan.shape), plan.dtype.itemsize)  # of a cell
    passes = Pass(PAIRS, loads * own, HBM), Pass(PUT, row), Pass(ELEMENTS, row)
    return Work(2 * row, 2 * rows * row, passes, 1, 2, 1, 2)


def transforms(plan):
    """Tiles of rows are loaded, transformed, stored to others; then tiles of columns.

    Of three axes the third comes before, by a launch of its own. Each step goes through shared
    memory but the last. In what has come neighbours can be less than a sector.
    """
    (rows, columns, depth), item, tiles = (*plan.shape, 1)[:3], plan.dtype.itemsize, plan._tiles
    elements, several = prod(plan.shape) // N, ceil(tiles.parts / plan.blocks)
    mine, of_tile = elements * item, Pass(TILE, EACH * plan.threads * item, HBM, several)
    run = item * (4 if depth > 1 else 1 << sum(tiles.logs[1:]))

    def along(length, **more):
        steps = ceil(log2(length) / log2(EACH))
        return Work(
            0, 2 * mine, (of_tile,), fences=0, hops=0, serial=2 * (steps - 1) * several,
            flops=5 * elements * log2(length), read=steps * mine, exchanged=2 * (steps - 1) * mine,
        )._replace(**more)  # fmt: skip

    last = along(rows, launches=0, cached=max(0, SECTOR / run - 1) * mine)
    waits = ceil(N * plan.blocks / plan.threads)
    found = along(columns, link=plan.sends()[0], fences=1, hops=1, waits=waits, then=last)
    return along(depth, then=found) if depth > 1 else found


def sparse(plan):
    """A thread has a row: four entries are under way, then what they multiply; the rest singly."""
    item, needed, rows = plan.dtype.itemsize, plan._needs.needed.size, plan._shape[0]
    own, far = (plan._workspace[k].size for k in (1, 6))

    def of_rows(entries, rows):
        each, several = entries / rows, ceil(rows / plan.blocks / plan.threads)
        return 2 * several * (each // 4 + each % 4)

    passes = (
        Pass(ELEMENTS, needed * item / plan.blocks, HBM), Pass(PUT, 1, HBM, of_rows(own, rows)),
        Pass(PUT, 1, L2, of_rows(far, plan._workspace[3].size)),
    )  # fmt: skip
    hbm = (own + far) * (4 + item) + rows * (8 + 2 * item)
    waits = ceil(len(plan._friends) * plan.blocks / plan.threads)
    return Work(needed * item, hbm, passes, waits=waits, flops=2 * (own + far))


def searched(plan):
    """All levels of a random graph. A warp has a vertex; for its edges it waits for atomics.

    For new vertices of others also for those on other GPUs, then, which all its edges wait for.
    """
    edges, m, v = plan._workspace[0][1].size, plan._shape[0], plan._state[0].size
    levels = 1 + ceil(log(N * m) / log(edges / m))
    vertices = ceil(m * 32 / plan.blocks / plan.threads)  # of a warp
    came = ceil(v / plan.blocks / plan.threads)
    passes = (
        Pass(PUT, 1, HBM, 2 * vertices + came), Pass(PUT, 1, L2, 2 * vertices + 2 * came),
        Pass(PUT, 1, FAR, vertices),
    )  # fmt: skip
    hbm = 4 * edges + 36 * m + 36 * v  # results, starts and lists; queues, and whose they are
    waits = levels * ceil((N + 1) * plan.blocks / plan.threads)
    return Work(8 * v, hbm, passes, 1, 2 * levels, levels, waits)


def bags_summed(plan):
    """Numbers go to all; warps sum up rows, eight for each group of lanes at once; sums come back.

    Numbers of rows, which are anywhere, are as many of each PE that has some of the columns.
    """
    item, wide, parts, warps = (
        plan.dtype.itemsize,
        plan._width,
        plan.column_parts,
        plan.threads / 32,
    )
    bags, words = ceil(plan.bags / plan.blocks), wide * item / 16
    lanes = min(32, 1 << ceil(log2(words)))
    each = ceil(plan.most * parts / N / (TOGETHER * 32 // lanes)) * ceil(words / lanes)
    numbers, sums = 4 * plan.bags * plan.most, plan.bags * wide * item
    mine, times = 4 * bags * plan.most, ceil(N * bags / warps)
    out = Work(
        0, (1 + parts) * sums, (Pass(COPY, 1, HBM, ceil(bags * words * parts / plan.threads)),),
        fences=0, hops=0, launches=0,
    )  # fmt: skip
    rows = Work(
        OTHERS * sums, plan.bags * plan.most * plan.dim * item + N * sums,
        (Pass(COPY, 1, L2, times), Pass(COPY, 1, HBM, times * each)), launches=0, then=out,
    )  # fmt: skip
    asked = Pass(COPY, mine, HBM), Pass(COPY, mine, L2, OTHERS)
    return Work(OTHERS * numbers, (1 + N) * numbers, asked, then=rows)


FORMULAS = {
    "AllReduce": all_reduce, "AllReduceRMSNorm": norm, "AllGather": gather, "AllToAll": exchange,
    "AllGatherV": gather_rows, "AllToAllV": exchange_rows, "ReduceScatter": scatter,
    "ExclusiveScan": scan, "Broadcast": broadcast, "ZeroAdam": zero, "ZeroMuon": muon,
    "AllGatherGemm": gather_product, "GemmReduceScatter": product_summed,
    "GemmAllReduce": product_summed_for_all,
    "ExpertParallel low_latency": low_latency, "ExpertParallel throughput": throughput,
    "ExpertParallel combine": combine, "MoE": mixture, "MoE library": mixture_by_library,
    "FFT": transforms, "SpMV": sparse, "BFS": searched, "EmbeddingBags": bags_summed,
    "HaloExchange": halo, "Jacobi": jacobi,
    "RingAttention": attention, "RingAttentionBackward": attention_gradients, "Ulysses": ulysses,
    "KVTransfer": pages_sent, "FlashDecode": decoded,
    "PipelineExchange": one_item, "PipelinedLayers": layers,
}  # fmt: skip


def work(name, plan):
    """What a case's plan does in a call."""
    return (FORMULAS.get(name) or FORMULAS[name.split()[0]])(plan)


# --- machine code


def built(launch, threads, arch):
    """A kernel's code as it is launched: with as many registers as a block can have."""
    from gpushmem.backends.nvshmem.compile import aot, options

    given = options.code_options(launch.kernel.options)
    made = aot.build(launch.kernel.py_func, launch.types, given, arch)
    if made.needs.registers > (most := most_registers(threads)):
        given |= {"max_registers": most}
        made = aot.build(launch.kernel.py_func, launch.types, given, arch)
    return made


def read(made):
    """The function of a kernel, in machine code."""
    return reader.sass(made.code["cubin"])[made.entry]


@cache
def put_loop(arch):
    """Bytes that a thread of `put_block` has under way."""
    from gpushmem.backends.nvshmem.compile import aot

    function, types = kernels.kernel_of(OPS["put_block"], "float32")
    found = loops.innermost(read(aot.build(function, types, {}, arch)))
    return max(loop.in_flight for loop in found if loop.is_wide)


def in_flight(found, item, arch):
    """Bytes that a thread has under way in passes of each kind, for elements of so many bytes."""
    kinds = {
        COPY: [loop for loop in found if loop.is_wide and len(loop.loads) == len(loop.stores)],
        SUM: [
            loop for loop in found
            if loop.is_wide and len(loop.loads) > len(loop.stores) and not loop.shuffles
        ],
        ELEMENTS: [
            loop for loop in found
            if loop.loads and loop.stores and {*loop.loads, *loop.stores} == {item}
        ],
        PAIRS: [
            loop for loop in found
            if len(loop.stores) > 4 and {*loop.stores} == {2 * item}
            and {*loop.loads} == {item, 2 * item}
        ],
        READ: [loop for loop in found if loop.is_wide and loop.shuffles],
        # Of what is widened as well.
        FETCH: [loop for loop in found if loop.fills and {*loop.loads} in ({item}, {4})],
    }  # fmt: skip
    read = {kind: max(loop.in_flight for loop in some) for kind, some in kinds.items() if some}
    return {PUT: put_loop(arch), **KNOWN, FOURS: 16 * item, **read}


def a_byte(found, of_tiles, item):
    """Instructions of a thread for a byte that it reads, where lanes use it together.

    Or for a byte of the tile that it has, in each step of a transform.
    """
    several = [loop.length / sum(loop.loads) for loop in found if loop.is_wide and loop.shuffles]
    if of_tiles:
        several = [loop.length / (EACH * item) for loop in found if loop.fills]
    return {"instructions": float(f"{max(several):.4g}")} if several else {}


def code_of(name, dtype, arch, gpu):
    """What the machine code of a case's kernel says."""
    with plans.made(name, dtype, None, gpu) as (plan, (*others, launch)):
        threads, size = plan.threads, np.dtype(dtype).itemsize
    made, moves = built(launch, threads, arch), {}
    others = {other.kernel: other for other in others}.values()
    if getattr(plan, "method", "") != "library":  # of the same call, else
        others = [*others][: isinstance(plan, InBuckets)]  # the first pass
    for other in others:
        found = loops.innermost(read(built(other, threads, arch)))
        moves |= in_flight(found, size, arch)
    function, needs = read(made), made.needs
    found, capability = loops.innermost(function), (int(arch[3:-2]), int(arch[-2]))
    of_tiles = dtype.startswith("complex")
    if of_tiles:  # they are loaded outside of the loop over steps
        moves[TILE] = loops.in_flight(function.code)
    shared = needs.shared + launch.shared
    held = occupancy(capability, threads, needs.registers, shared, needs.barriers)
    return {
        "kernel": name, "dtype": dtype, "arch": arch, "threads": threads,
        "registers": needs.registers, "shared": shared,
        "spills": needs.spill_stores + needs.spill_loads,
        "resident": held.blocks_per_multiprocessor,
        "wide loops": sum(loop.is_wide for loop in found),
        "narrow loops": sum(loop.is_narrow for loop in found),
        "mixed loops": sum(loop.is_mixed for loop in found),
        "lonely loops": len(loops.lonely(found)),
        "fences": loops.fences(function),
        "in flight": moves | in_flight(found, size, arch), **a_byte(found, of_tiles, size),
    }  # fmt: skip


# --- times


def phases(does):
    """What a call does, one after the other."""
    return [does, *phases(does.then)] if does.then else [does]


def total(does, what):
    """So many bytes, say, of all phases."""
    return sum(getattr(phase, what) for phase in phases(does))


def predict(does, machine, code):
    """The time of a call, what it is made of, what bounds it, and the limit: of all phases."""
    if does.then:
        some = [predict(phase._replace(then=None), machine, code) for phase in phases(does)]
        made, busy = (
            {k: sum(one[what].get(k, 0.0) for one in some) for k in some[0][what]}
            for what in ("made of", "busy")
        )
        every = {what: total(does, what) for what in ("link", "hbm", "flops")}
        whole = predict(Work(every["link"], every["hbm"], (), flops=every["flops"]), machine, code)
        return {
            "seconds": sum(one["seconds"] for one in some), "bound by": max(busy, key=busy.get),
            "made of": made, "busy": busy, "limit": whole["limit"],
        }  # fmt: skip
    is_ = {name: figure.value for name, figure in machine.items()}
    is_[FAR] = is_[L2] + 2 * is_["wire"]

    def trips(kind, nbytes, source=L2):
        at_once = code["threads"] * code["in flight"][kind]
        return max(1, ceil(nbytes / at_once)) * is_[source]

    made = {
        "passes": sum(p.times * trips(p.does, p.nbytes, p.source) for p in does.passes if p.times),
        "fences": does.fences * (is_["fence"] + 2 * is_["wire"]),
        "hops": does.hops * (is_["one way"] + is_["wire"]),
        "waits": (does.waits - 1) * 2 * is_[L2],
    }
    made = {what: does.pieces * taken for what, taken in made.items()}
    made["sorting"] = does.serial * is_["l1 trip"]
    if does.steps:  # to multiply takes about as long as a trip
        made["products"] = does.steps * (trips(FETCH, does.fetched) + is_[L2])
    if does.library:
        made["products"] = sum(by_tiles(is_, code["dtype"], *sizes) for sizes in does.library)
    launches = does.launches * is_["launch"]
    busy = {
        "NVLink": does.link / (is_["link"] * is_["link reached"]),
        "HBM": does.hbm / (is_["hbm"] * is_["hbm reached"]),
        "L2 cache": (does.hbm + 2 * does.link + does.cached) / is_["l2 rate"],
        "blocks": sum(made.values()),
    }
    if does.read:  # four schedulers issue an instruction for 32 threads each
        rate = 4 * 32 * is_["clock"] * is_["multiprocessors"]
        busy["instructions"] = does.read * code["instructions"] / rate
    if does.exchanged:  # 128 bytes a clock
        rate = 128 * is_["clock"] * is_["multiprocessors"]
        busy["shared memory"] = does.exchanged / rate
    least = does.link if does.least is None else does.least
    rate = is_.get(f"{code['dtype']} rate", is_["float32 rate"])  # complex ones have two float32
    return {
        "seconds": launches + max(busy.values()), "bound by": max(busy, key=busy.get),
        "made of": {"launch": launches, **made}, "busy": busy,
        "limit": max(
            least / is_["link"], does.hbm / is_["hbm"], does.flops / rate
        ),
    }  # fmt: skip


def by_tiles(is_, dtype, m, n, k, times=1):
    """The time of so many products by one call of the library, with its launch.

    By tiles, those of fewer rows for small products, or as long as HBM takes for the matrices.
    """
    sides = FEW_ROWS if m <= FEW_ROWS[0] else MANY_ROWS
    tiles = times * min(ceil(m / y) * ceil(n / x) for y, x in (sides, sides[::-1]))
    of_tile = 2 * sides[0] * sides[1] * k / is_["matmul reached"]
    waves = ceil(tiles / is_["multiprocessors"])
    nbytes = times * (m * k + k * n + m * n) * np.dtype(dtype).itemsize
    rate = is_[f"{dtype} rate"] / is_["multiprocessors"]
    return is_["launch"] + max(waves * of_tile / rate, nbytes / (is_["hbm"] * is_["hbm reached"]))


def by_library(plan, machine, code):
    """The time of a call with products by the library, as `predict`; beside that, of it alone."""
    is_ = {name: figure.value for name, figure in machine.items()}
    gathers, launch = hasattr(plan, "groups"), is_["launch"]
    rows = N * plan.m if gathers else plan.rows
    nbytes = plan.dtype.itemsize * (plan.m * plan.k if gathers else plan.share * plan.n)
    sent, link = nbytes / (is_["link"] * is_["link reached"]), OTHERS * nbytes
    signal = launch + is_["one way"] + is_["wire"]  # the stream writes it, a kernel waits

    def product(m):
        return by_tiles(is_, plan.dtype, m, plan.n, plan.k)

    begun = now = launch + launch * gathers  # boxes are empty; this PE's shard is copied
    added = 0
    if gathers:
        multiplied, have = 0, 0
        for size in plan.groups:
            have += size
            now = max(now, begun + (have - 1) * sent) + signal + product(size * plan.m)
            multiplied += product(size * plan.m)
    elif summed_by_all(plan):
        parts, link = plan.rows / plan.rows_together, 2 * link
        each, of_part = product(plan.rows_together), sums(plan, machine, code)
        now = summed_in_parts(int(parts), each, *of_part, OTHERS * sent / parts, signal, now)
        multiplied, added = parts * each, parts * sum(of_part)
    else:
        each, (added,), free = product(plan.share), sums(plan, machine, code), 0
        for _ in range(OTHERS):
            now += each
            free = max(free, now) + sent
        now, multiplied = max(now + each, free) + signal + added, N * each
    made = {"products": multiplied, "sums": added, "launches": 2 * launch + launch * gathers}
    now += launch  # boxes can be filled again
    made["waits"] = now - sum(made.values())
    flops = 2 * rows * plan.n * plan.k
    busy = {"NVLink": link / (is_["link"] * is_["link reached"]), "library": multiplied}
    return {
        "seconds": now, "bound by": max(busy, key=busy.get), "made of": made, "busy": busy,
        "limit": max(link / is_["link"], flops / is_[f"{plan.dtype} rate"]),
        "library": product(rows),
    }  # fmt: skip


def by_attention(plan, machine, code):
    """The time of a call with attention by the library, as `predict`: blocks come meanwhile."""
    is_ = {name: figure.value for name, figure in machine.items()}
    item, numbers = plan.dtype.itemsize, plan.tokens * plan.heads * plan.head_dim
    block, launch = 2 * plan.tokens * plan.kv_heads * plan.head_dim * item, is_["launch"]
    hbm, link = is_["hbm"] * is_["hbm reached"], is_["link"] * is_["link reached"]
    flops = 2 * plan.tokens * numbers * (1 if plan.causal else 2)  # of a block
    rate = is_[f"{plan.dtype} rate"]
    each = launch + flops / (rate * is_["attention reached"])
    part = numbers / (2 if plan.zigzag else 1)  # of half of the blocks; the others have all rows
    merged = 2 * launch + (part + numbers) / 2 * (8 + 3 * item) / hbm
    now, waits = launch + each + numbers * (4 + item) / hbm, 0.0
    for step in range(1, N):
        waits += max(0.0, launch + step * block / link - now)
        now = max(now, launch + step * block / link) + is_["one way"] + is_["wire"]
        now += 2 * launch + each + merged
    now += launch + numbers * (4 + item) / hbm
    made = {"products": N * each, "sums": OTHERS * merged, "waits": waits}
    busy = {"NVLink": OTHERS * block / link, "library": N * each}
    made["launches"] = now - sum(made.values())
    return {
        "seconds": now, "bound by": max(busy, key=busy.get), "made of": made, "busy": busy,
        "limit": max(OTHERS * block / is_["link"], N * flops / rate),
    }  # fmt: skip


def under_way(does, machine, code, blocks):
    """Bytes under way on a multiprocessor in the first pass; what Little's law wants there."""
    first, used = does.passes[0].does, min(blocks, machine["multiprocessors"].value)
    held = min(code["resident"], ceil(blocks / used))
    rate = "link" if does.link / machine["link"].value > does.hbm / machine["hbm"].value else "hbm"
    wanted = machine[rate].value * machine[HBM].value / used
    return held * code["threads"] * code["in flight"][first], wanted


def predictions(name, dtype, machine_name):
    """The machine code of a case, and a row for each size."""
    machine, rows = MACHINES[machine_name], []
    gpu = machine["multiprocessors"].value, machine["capability"].value
    code = code_of(name, dtype, f"sm_{gpu[1]}0a", gpu)
    for nbytes in plans.CASES[name].sizes:
        with plans.made(name, dtype, nbytes, gpu) as (plan, _):
            does, blocks = work(name, plan), plan.blocks
            ways = {"_beside": by_library, "_library": by_attention}
            found = next((ways[name] for name in ways if getattr(plan, name, None)), predict)
            of_size = code | {"threads": plan.threads}
            made = found(does if found is predict else plan, machine, of_size)
        have, want = under_way(does, machine, of_size, blocks)
        rows.append({
            "kernel": name, "dtype": dtype, "machine": machine_name, "bytes": nbytes,
            "blocks": blocks, "pieces": does.pieces,
            "round trips": total(does, "fences") + total(does, "hops") / 2,
            "sent": total(does, "link"), "hbm": total(does, "hbm"), "flops": total(does, "flops"),
            "under way": have, "wanted": want, **made,
        })  # fmt: skip
    return code, rows


def shown(row):
    """A row for the terminal."""
    longest = sorted(row["made of"].items(), key=lambda item: -item[1])[:3]
    parts = ", ".join(f"{what} {taken * 1e6:.1f}" for what, taken in longest)
    if "library" in row:
        parts += f"; {row['library'] / row['seconds']:.1%} of the library alone"
    return (
        f"{row['machine']} {row['kernel']:28} {row['dtype']:8} {row['bytes'] or '':>10} "
        f"{row['blocks']:4} blocks {row['seconds'] * 1e6:10.1f} us "
        f"{row['limit'] / row['seconds']:6.1%} of the limit, by {row['bound by']}: {parts}"
    )


def main(names):
    """Predict all cases, or those that begin with these names; what is known of others stays."""
    known = json.loads(RESULT.read_text())
    data = {"machines": MACHINES, "code": known["code"], "rows": known["rows"]}
    for name in plans.CASES:
        if names and not name.startswith(tuple(names)):
            continue
        for what in ("code", "rows"):
            data[what] = [row for row in data[what] if row["kernel"] != name]
        for machine in MACHINES:
            for dtype in plans.CASES[name].dtypes:
                code, rows = predictions(name, dtype, machine)
                data["code"].append(code)
                data["rows"] += rows
                print(*map(shown, rows), sep="\n", flush=True)
        RESULT.write_text(written(data))


def written(data):
    """As JSON, with a line for each row, and four digits of each number."""

    def digits(value):
        if isinstance(value, dict):
            return {name: digits(inner) for name, inner in value.items()}
        return float(f"{value:.4g}") if isinstance(value, float) else value

    def order(row):
        return place[row["kernel"]]

    def lines(rows):
        return ",\n".join(json.dumps(digits(row)) for row in rows)

    place = {name: k for k, name in enumerate(plans.CASES)}
    code, rows = (
        lines(sorted((row for row in data[what] if row["kernel"] in place), key=order))
        for what in ("code", "rows")
    )
    machines = json.dumps(data["machines"], indent=1)
    return f'{{"machines": {machines},\n"code": [\n{code}\n],\n"rows": [\n{rows}\n]}}\n'


if __name__ == "__main__":
    main(sys.argv[1:])
