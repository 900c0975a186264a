"""Fourier transforms in registers and shared memory: `FFT(method="tiles")`, what GPUs are for.

    tile      L = N S elements: S sequences of length N, interleaved; element (i, g) is at S i + g
    thread    L / 16 threads have a tile, thread u of them its elements u + m L / 16, m = 0, ..., 15
    step      of radix 16 in the 16 registers, then an exchange of the tile in shared memory
    last      of radix 16, 8, 4 or 2: its results are where its operands were, so the thread that
              has elements u + m L / 16 stores them, without an exchange

These are Stockham's steps as in `fft`, four levels in one. A thread loads its elements with one
distance between them, all 16 before it uses the first, and stores them so. Sequences that are
interleaved are neighbours in memory, in what is loaded or in what is stored: S elements are the
32 bytes that a GPU moves at least, unless the tile would be too large then.

What a row's transform gives is stored in the boxes of the PEs that have the columns, wherever they
are; there columns are loaded as they are needed. So with two axes each element is loaded twice and
stored twice. With three, planes have no room in a block: what is cut along the third axis is
transformed along it before, by another launch.

In shared memory S elements are left out after each 16 S, from N = 256 on: else threads that follow
each other would store in the same banks.

**Order.** As in `fft`, with stores to others' boxes in the place of puts.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from gpushmem.kernels.decode_lanes import each, pairs
from gpushmem.kernels.parts import begin, end, member, wait_for_all
from gpushmem.kernels.plan import SLOTS
from numba import cuda

import gpushmem as shmem

__all__ = [
    "DEPTH", "EACH", "END", "ROWS", "SECTOR", "Tiles", "log_of", "tell_all", "tiles_of",
    "transforms",
]  # fmt: skip

EACH = 16  # elements of a thread
SECTOR = 32  # bytes that a GPU moves at least
LARGEST = 128 << 10  # bytes of a tile
WARP, ENOUGH = 32, 512  # threads
ROOM = 17  # elements of shared memory for 16
DEPTH, ROWS, COLUMNS, END = range(4)  # along what is transformed


@shmem.jit(device=True)
def four(a, b, c, d, turn):
    """The transform of four elements."""
    both, apart, more, less = a + c, a - c, b + d, b - d
    turned = complex(-turn * less.imag, turn * less.real)
    return both + more, apart - turned, both - more, apart + turned


# --- of tuples of 16


@shmem.jit(device=True)
def loaded(k, given, m):
    x, first, far = given
    return shmem.load_vector(x, first + m * far, 1)[0]


@shmem.jit(device=True)
def stored(value, given, m):
    x, first, far = given
    shmem.store_vector(x, first + m * far, (value,))
    return m


@shmem.jit(device=True)
def sent(value, given, m):
    """Store what a row gives for column c + m far in the boxes of the PE that has it.

    A PE has 2^log_share columns, each with 2^log_inner elements of a bundle; those of its first
    column are at `first`.
    """
    box, c, far, log_share, first, log_inner, members = given
    c += m * far
    there = shmem.peer_array(box, members[np.uint64(c >> log_share)])
    shmem.store_vector(there, first + ((c & (1 << log_share) - 1) << log_inner), (value,))
    return m


@shmem.jit(device=True)
def fetched(k, given, m):
    tile, first, far = given
    return tile[np.uint64(first + m * far)]


@shmem.jit(device=True)
def shared(value, given, m):
    tile, first, far = given
    tile[np.uint64(first + m * far)] = value
    return m


@shmem.jit(device=True)
def scaled(value, by, m):
    return complex(by * value.real, by * value.imag)


@shmem.jit(device=True)
def product(value, by, m):
    return by * value


@shmem.jit(device=True)
def plus(a, b, given):
    return a + b


@shmem.jit(device=True)
def minus(a, b, given):
    return a - b


ALL = tuple(range(EACH))
take, leave, send_all = each(EACH, loaded), each(EACH, stored), each(EACH, sent)
fetch, share, scale_all = each(EACH, fetched), each(EACH, shared), each(EACH, scaled)
times, sums, differences = each(4, product), pairs(8, plus), pairs(8, minus)


@shmem.jit(device=True)
def turned(v, one, two, three):
    """Four elements, all but the first times a root of unity."""
    return v[0], one * v[1], two * v[2], three * v[3]


@shmem.jit(device=True)
def twiddled(v, one, fourth):
    """Element m times one^m; `fourth` is one^4."""
    two, eighth = one * one, fourth * fourth
    three = one * two
    a = turned(v[:4], one, two, three)
    b = times(turned(v[4:8], one, two, three), fourth, 0)
    c = times(turned(v[8:12], one, two, three), eighth, 0)
    return a + b + c + times(turned(v[12:], one, two, three), eighth * fourth, 0)


@shmem.jit(device=True)
def fours(v, turn):
    """Four transforms of four elements, each of one of each four."""
    return (
        four(v[0], v[4], v[8], v[12], turn) + four(v[1], v[5], v[9], v[13], turn)
        + four(v[2], v[6], v[10], v[14], turn) + four(v[3], v[7], v[11], v[15], turn)
    )  # fmt: skip


@shmem.jit(device=True)
def across(v):
    """Four fours, with the first of each in front, then the second of each."""
    return (
        v[0], v[4], v[8], v[12], v[1], v[5], v[9], v[13],
        v[2], v[6], v[10], v[14], v[3], v[7], v[11], v[15],
    )  # fmt: skip


@shmem.jit(device=True)
def by_turns(v):
    """Two fours, an element of each by turns."""
    return v[0], v[4], v[1], v[5], v[2], v[6], v[3], v[7]


# --- kernels


@shmem.jit(device=True)
def padded(at, log_s, log_n):
    """Where element `at` of a tile is in shared memory.

    A multiple of L / 16 is as far from any element there as from the first.
    """
    return at + (at >> log_s + 4 << log_s) if log_n >= 8 else at


@shmem.jit(device=True)
def place_of(log_l):
    """How many tiles of 2^log_l threads a block has, which is this one's, and its place there."""
    t = cuda.threadIdx.x
    return cuda.blockDim.x >> log_l, t >> log_l, t & (1 << log_l) - 1


@shmem.jit(device=True)
def places(axis, tile, i, g, log_s, sizes):
    """Where element (i, g) of a tile is loaded from, and stored to, and how far from the next one.

    What rows give is stored by `sent`: the next one is of a column so far away.
    """
    log_r, log_c, log_k, log_rows, log_share = sizes
    each = (tile << log_s) + g  # of what is interleaved, counted through
    group, e = each >> log_k, each & (1 << log_k) - 1  # of three axes
    if axis == DEPTH:
        at, far = (each << log_k) + i, 1 << log_k - 4
        return at, far, at, far
    if axis == ROWS:
        by = 1 << log_c - 4
        if log_k > 0:
            return (
                ((group << log_c) + i << log_k) + e,
                by << log_k,
                (group << log_share + log_k) + e,
                by,
            )
        return (each << log_c) + i, by, (tile << log_share + log_s) + g, by
    by = 1 << log_r - 4 + log_k
    if log_k > 0:
        return (
            (i << log_share + log_k) + each,
            by << log_share,
            ((group << log_r) + i << log_k) + e,
            by,
        )
    # Boxes, one behind the other, have all bundles in order.
    at = ((i >> log_rows << log_share) + each << log_rows) + (i & (1 << log_rows) - 1)
    return at, by << log_share, (each << log_r) + i, by


@shmem.jit(device=True)
def tell_all(signals, epoch, team):
    """Tell all members, this PE among them, of what the block has sent: `signals` (n, blocks)."""
    me, n, t = shmem.team_my_pe(team), shmem.team_n_pes(team), cuda.threadIdx.x
    cuda.syncthreads()
    if t < n:
        shmem.fence()
    for k in range(t, n, cuda.blockDim.x):
        to = member(team, (me + 1 + k) % n)
        shmem.signal_op(signals[me, cuda.blockIdx.x :], epoch, shmem.SIGNAL_SET, to)


@cache
def transforms(real: Any, kind: Any) -> Any:  # noqa: PLR0915
    """The kernel for complex numbers of a `kind`, of two numbers of type `real`."""
    cos, sin, half = (float(f(np.pi / k)) for f, k in ((np.cos, 8), (np.sin, 8), (np.cos, 4)))

    @shmem.jit(device=True)
    def sixteen(v, turn):
        """The transform of sixteen elements."""
        c, s, h = real(cos), real(sin), real(half)
        second, third, sixth = complex(h, -turn * h), complex(s, -turn * c), complex(-h, -turn * h)
        v = fours(v, turn)
        b = turned(v[4:8], complex(c, -turn * s), second, third)
        d = turned(v[8:12], second, complex(real(0), -turn), sixth)
        return across(
            fours(v[:4] + b + d + turned(v[12:], third, sixth, complex(-c, turn * s)), turn)
        )

    @shmem.jit(device=True)
    def last_step(v, log_n, turn):
        """The last step, of sequences of 2, 4, 8 or 16."""
        if log_n == 4:
            return sixteen(v, turn)
        if log_n == 1:
            return sums(v[:8], v[8:], 0) + differences(v[:8], v[8:], 0)
        v = fours(v, turn)
        if log_n == 2:
            return across(v)
        h = real(half)
        one, two, three = complex(h, -turn * h), complex(real(0), -turn), complex(-h, -turn * h)
        odd = turned(v[8:12], one, two, three) + turned(v[12:], one, two, three)
        return by_turns(sums(v[:8], odd, 0)) + by_turns(differences(v[:8], odd, 0))

    @shmem.jit(device=True)
    def transformed(v, u, base, log_n, log_s, turn, table, log_table):
        """What thread `u` of a tile has of its transforms: sequences of n, 2^log_s interleaved.

        `v` are the elements that it has of these. The tile is at `base` of shared memory. `table`
        has the powers of a root of unity. Synchronises the block.
        """
        tile, log_t, log_all = cuda.shared.array(0, kind), log_s, log_n
        far, mine = padded(1 << log_n + log_s - 4, log_s, log_n), base + padded(u, log_s, log_n)
        while log_n > 4:
            p = u >> log_t
            one = shmem.load_vector(table, p << log_table - log_n, 1)[0]
            fourth = shmem.load_vector(table, p << log_table - log_n + 2, 1)[0]
            v = twiddled(sixteen(v, turn), one, fourth)
            to = base + padded((p << log_t + 4) + (u & (1 << log_t) - 1), log_s, log_all)
            cuda.syncthreads()  # all have read what they had of the tile before
            share(v, (tile, to, padded(1 << log_t, log_s, log_all)), 0)
            cuda.syncthreads()
            v = fetch(ALL, (tile, mine, far), 0)
            log_n, log_t = log_n - 4, log_t + 4
        return last_step(v, log_n, turn)

    @shmem.jit(collective=True)
    def in_tiles(
        x, out, first, last, log_r, log_c, log_k, log_depth, log_rows, log_columns, log_share,
        scale, turn, table, log_table, members, inbox, arrived, team, epochs,
    ):  # fmt: skip
        """Transform along axes from `first` to before `last`; `x` and `out` flat.

        `inbox` (SLOTS, n, any), `arrived` (SLOTS, n, blocks); `members` (n,) are the numbers in the
        world. All in powers of two: the shape; how many rows or columns are interleaved, or of
        three axes elements along the third, but there rows; a PE has 2^log_share columns.
        """
        epoch, b, blocks = begin(epochs), cuda.blockIdx.x, cuda.gridDim.x
        boxes, signals = inbox[epoch % SLOTS], arrived[epoch % SLOTS]
        box, log_inner = boxes[shmem.team_my_pe(team)], log_k if log_k > 0 else log_rows
        sizes = log_r, log_c, log_k, log_rows, log_share
        for axis in range(first, last):
            log_n, log_s, source = log_c, log_rows, x
            if axis == DEPTH:
                log_n, log_s = log_k, log_depth
            elif axis == COLUMNS:
                tell_all(signals, epoch, team)
                wait_for_all(signals.reshape(signals.size), epoch)
                log_n, log_s, source = log_r, log_columns, boxes.reshape(boxes.size)
            log_l = log_n + log_s - 4
            of, which, u = place_of(log_l)
            i, g, base = u >> log_s, u & (1 << log_s) - 1, ROOM * which << log_l
            for k in range(b * of, x.size >> log_l + 4, blocks * of):
                tile = k + which
                at, far, to, by = places(axis, tile, i, g, log_s, sizes)
                v = take(ALL, (source, at, far), 0)
                if axis == COLUMNS:
                    v = scale_all(v, scale, 0)
                v = transformed(v, u, base, log_n, log_s, turn, table, log_table)
                if axis == ROWS:
                    there = box, i, by, log_share, to, log_inner, members
                    send_all(v, there, 0)
                else:
                    leave(v, (out, to, by), 0)
        if last > COLUMNS:
            end(epochs)

    return in_tiles


def log_of(power: int) -> int:
    """The logarithm of a power of two."""
    return power.bit_length() - 1


class Tiles(NamedTuple):
    """How an array is cut into tiles."""

    logs: tuple[int, ...]  # of what is interleaved when axes 3 (0 if there is none), 2, 1 are done
    threads: int
    parts: int  # that a block transforms at once
    shared: int  # bytes of a block


def tiles_of(
    shape: tuple[int, int, int], n: int, item: int, threads: int | None, multiprocessors: int
) -> Tiles | None:
    """The tiles of an array over `n` PEs of items of so many bytes, for a GPU, if there can be.

    A block has one tile of the largest kind; more, if all multiprocessors have something to do.
    """
    rows, columns, depth = shape
    if rows % n or columns % n or min(rows, columns) < EACH or 1 < depth < EACH:
        return None
    mine, most = rows * columns * depth // n, LARGEST // item
    if depth > 1:
        together = rows // n * columns, depth, depth  # neighbours along another axis
    else:
        together = 1, min(rows // n, rows // EACH), columns // n
    axes = [
        (size, min(SECTOR // item, most // size, near))
        for size, near in zip((depth, columns, rows), together, strict=True)
    ]
    needed = max(size * near for size, near in axes) // EACH
    found = threads or max(needed, WARP)
    if needed == 0 or not all(near for _, near in axes):
        return None
    while not threads and found < ENOUGH and mine >= 2 * EACH * found * max(1, multiprocessors):
        found *= 2
    if found & found - 1 or not needed <= found <= min(most, mine) // EACH:
        return None
    logs = tuple(log_of(near) for _, near in axes)
    return Tiles(logs, found, mine // EACH // found, ROOM * found * item)
