"""Fourier transforms of two and three axes over PEs, with the transposition under the transforms.

    x      PE p has some rows of (R, C) or (R, C, K), all columns of them
    out    PE p has some columns: (its C, R) or (its C, R, K), the transform with two axes swapped

    block    transform a bundle of rows along C (and K) -> put its columns to their PEs -> next
             bundle, ..., then tell all
    all      take columns from PE after PE, as these have told, and transform them along R

A bundle is 8 rows of a matrix (32 on CPUs), interleaved: element (c, r) of them is at 8 c + r. So
what a PE gets of it, some c, is in one piece after the last step, and is sent from there; and a
column has 8 neighbours in each of the pieces that it is put together from. Of three axes a bundle
is one plane, with K in the place of 8. The last bundle of a PE is filled up with zeros.

That is `method="steps"`; on GPUs `fft_tiles` does it in registers and shared memory.

A transform of length N goes by Stockham's steps of radix 4, and one of 2 if N is 2 4^k, between two
buffers of a block. A step reads and writes in order, whatever the number of interleaved sequences,
and needs no reversal of bits; the inner loop is over interleaved elements, with one factor for all.

What a PE sends, for items of S bytes, with b bundles of i elements in a column, and c columns:

    bytes       b i (C - c) S, about (n - 1) / n of its part, once
    messages    (n - 1) b, and (n - 1) B signals of B blocks

**Order.** The puts of a block are followed by its `fence` and its signals, so who has seen a
signal of each block of a PE has what that PE sent. A PE sends a signal to each PE in each call,
itself among them, and its first block waits for all: that is the rule of `plan`, so two sets of
boxes suffice. What puts send is changed in the next call, and they are completed before this ends.

The transposed output is what FFTW's MPI transforms give with FFTW_MPI_TRANSPOSED_OUT (Frigo and
Johnson, "The design and implementation of FFTW3", Proc. IEEE 93, 2005). Stockham's algorithm:
Cochran et al., "What is the fast Fourier transform?", Proc. IEEE 55, 1967.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from gpushmem.kernels.fft_tiles import (
    DEPTH,
    END,
    ROWS,
    log_of,
    tell_all,
    tiles_of,
    transforms,
)
from gpushmem.kernels.parts import begin, complete, end, member, share_of, wait_for_all
from gpushmem.kernels.plan import SLOTS, Plan
from numba import cuda

import gpushmem as shmem

__all__ = ["FFT", "reference"]

BUNDLES = 32, 8  # rows of a matrix, on CPUs and on GPUs
TOGETHER = 8192  # elements of columns that a block transforms at once, about
METHODS = "tiles", "steps"
REALS = {"complex64": np.float32, "complex128": np.float64}


# --- transforms


@shmem.jit(device=True)
def of_four(a, b, c, d, one, two, three, turn):
    """Combine four elements to four."""
    both, apart, more, less = a + c, a - c, b + d, b - d
    turned = complex(-turn * less.imag, turn * less.real)
    return both + more, one * (apart - turned), two * (both - more), three * (apart + turned)


@shmem.jit(device=True)
def by_four(x, y, at, far, to, s, one, two, three, turn):
    """Combine four elements of `x`, `far` from each other, to four of `y`, `s` from each other."""
    a, b = x[np.uint64(at)], x[np.uint64(at + far)]
    c, d = x[np.uint64(at + 2 * far)], x[np.uint64(at + 3 * far)]
    found = of_four(a, b, c, d, one, two, three, turn)
    y[np.uint64(to)] = found[0]
    y[np.uint64(to + s)] = found[1]
    y[np.uint64(to + 2 * s)] = found[2]
    y[np.uint64(to + 3 * s)] = found[3]


@shmem.jit(device=True)
def by_two(x, y, at, far, to, s):
    """As `by_four`, of two."""
    a, b = x[np.uint64(at)], x[np.uint64(at + far)]
    y[np.uint64(to)] = a + b
    y[np.uint64(to + s)] = a - b


@shmem.jit(device=True)
def step_by_four(x, y, size, n, log_s, table, turn):
    """Make sequences of n / 4 of those of n, 4 * 2^log_s interleaved instead of 2^log_s."""
    t, threads, s, stride = cuda.threadIdx.x, cuda.blockDim.x, 1 << log_s, table.size // n
    part, far = n // 4 - 1, (n // 4) << log_s
    if s >= threads:
        for j in range(size >> log_s + 2):
            p, to = j & part, j << log_s + 2
            at = to - 3 * (p << log_s)
            one, two, three = table[stride * p], table[2 * stride * p], table[3 * stride * p]
            for q in range(t, s, threads):
                by_four(x, y, at + q, far, to + q, s, one, two, three, turn)
    else:
        for i in range(t, size >> 2, threads):
            j, q = i >> log_s, i & s - 1
            p, to = j & part, j << log_s + 2
            at = to - 3 * (p << log_s)
            one, two, three = table[stride * p], table[2 * stride * p], table[3 * stride * p]
            by_four(x, y, at + q, far, to + q, s, one, two, three, turn)


@shmem.jit(device=True)
def step_by_two(x, y, size, log_s):
    """The last step, if two are left of each sequence."""
    t, threads, s = cuda.threadIdx.x, cuda.blockDim.x, 1 << log_s
    if s >= threads:
        for j in range(size >> log_s + 1):
            at = j << log_s + 1
            for q in range(t, s, threads):
                by_two(x, y, at + q, s, at + q, s)
    else:
        for i in range(t, size >> 1, threads):
            at = (i >> log_s << log_s + 1) + (i & s - 1)
            by_two(x, y, at, s, at, s)


@shmem.jit(device=True)
def load_rows(to, x, width, bundle):
    """Interleave the rows of `x` (up to bundle * width,) in `to`, and zeros for those it lacks."""
    for r in range(bundle):
        row = x[min(r * width, x.size) : min((r + 1) * width, x.size)]
        for i in range(cuda.threadIdx.x, row.size, cuda.blockDim.x):
            to[np.uint64(i * bundle + r)] = row[i]
        for i in range(row.size + cuda.threadIdx.x, width, cuda.blockDim.x):
            to[np.uint64(i * bundle + r)] = 0
    cuda.syncthreads()


@shmem.jit(device=True)
def take_column(to, box, column, columns, inner, scale):
    """Set `to` to a column of one PE's rows; `box` has its bundles, each of so many `columns`."""
    for i in range(cuda.threadIdx.x, to.size, cuda.blockDim.x):
        e = i & inner - 1
        to[i] = scale * box[np.uint64((i - e) * columns + column * inner + e)]


# --- the kernel


@shmem.jit(device=True)
def log2(number):
    """The logarithm of a power of two."""
    found = 0
    while number >> found > 1:
        found += 1
    return found


@shmem.jit(device=True)
def transform(work, k, size, n, log_s, out, leaves, table, turn):
    """Transform sequences of n, 2^log_s interleaved, bundle after bundle: work[k, :size].

    The last step writes to `out` if it `leaves`, otherwise to one of `work` (2, any). Returns which
    one. `table` (any,) has the powers of a root of unity. Synchronises the block.
    """
    while n > 1:
        radix = 4 if n % 4 == 0 else 2
        target = work[1 - k]
        if leaves and n == radix:
            target = out
        if radix == 4:
            step_by_four(work[k], target, size, n, log_s, table, turn)
        else:
            step_by_two(work[k], target, size, log_s)
        cuda.syncthreads()
        n, log_s, k = n // radix, log_s + radix // 2, 1 - k
    return k


@shmem.jit(device=True)
def transform_rows(x, sent, columns, depth, bundle, work, table, turn):
    """Transform a bundle of rows, `x` (up to bundle * columns * depth,), to `sent`."""
    load_rows(work[0], x, columns * depth, bundle)
    k = transform(work, 0, sent.size, depth, 0, sent, False, table, turn)
    transform(work, k, sent.size, columns, log2(bundle * depth), sent, True, table, turn)


@shmem.jit(collective=True)
def fft(
    x, out, rows, columns, depth, bundle, group, scale, turn, table, works, sent, inbox, arrived,
    team, epochs,
):  # fmt: skip
    """`x` and `out` flat; `works` (blocks, 2, any), `sent` (bundles * columns * inner,).

    `inbox` (SLOTS, n, any), `arrived` (SLOTS, n, blocks). A block transforms `group` columns at
    once.
    """
    me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
    b, blocks, inner = cuda.blockIdx.x, cuda.gridDim.x, bundle * depth
    boxes, signals, work = inbox[epoch % SLOTS], arrived[epoch % SLOTS], works[b]
    width, whole = bundle * columns * depth, columns * inner
    for k in range(b, (x.size + width - 1) // width, blocks):
        part = sent[k * whole : (k + 1) * whole]
        mine = x[k * width : min((k + 1) * width, x.size)]
        transform_rows(mine, part, columns, depth, bundle, work, table, turn)
        for far in range(1, n):
            to = (me + far) % n
            first, last = share_of(columns, n, to)
            piece = part[first * inner : last * inner]
            box = boxes[me][k * piece.size : (k + 1) * piece.size]
            shmem.put_nbi_block(box, piece, member(team, to))
    tell_all(signals, epoch, team)
    first, last = share_of(columns, n, me)
    size = rows * depth
    for c in range(b * group, last - first, blocks * group):
        count = min(group, last - first - c)
        for far in range(n):
            source = (me + n - far) % n
            lower, upper = share_of(rows, n, source)
            if c == b * group:
                wait_for_all(signals[source], epoch)
            box, at, of = boxes[source], c, last - first
            if source == me:
                box, at, of = sent, first + c, columns
            for g in range(count):
                to = work[0][g * size + lower * depth : g * size + upper * depth]
                take_column(to, box, at + g, of, inner, scale)
        cuda.syncthreads()
        result = out[c * size : (c + count) * size]
        transform(work, 0, result.size, rows, log2(depth), result, True, table, turn)
    complete()
    end(epochs)


class FFT(Plan):
    """Transform arrays of two or three axes, cut along the first: `plan(x, out=out)`.

    `shape` (R, C) or (R, C, K), powers of two; R and C are at least 2 and the number of PEs.
    complex64 or complex128. PE p has the rows `plan.rows`, a range, and gets the columns
    `plan.columns`: `x` (rows, C) or (rows, C, K), `out` (columns, R) or (columns, R, K), with the
    first two axes swapped. `inverse` ones are divided by the number of elements, as NumPy's; so one
    of shape (C, R) or (C, R, K) takes `out` to `x` again. `method` is "steps", or "tiles", for
    GPUs, of axes of 16 to 16384 complex64 (8192 complex128), the first two divided evenly; by
    default what suits the backend. FFTW: FFTW_MPI_TRANSPOSED_OUT.
    """

    fills = True

    def __init__(
        self, *, shape: tuple[int, ...], dtype: Any = "complex64", inverse: bool = False,
        method: str | None = None, team: Any = shmem.TEAM_WORLD, blocks: int | None = None,
        threads: int | None = None,
    ) -> None:  # fmt: skip
        self.shape, self.dtype, self.inverse = tuple(shape), np.dtype(dtype), inverse
        self._check()
        rows, columns, depth = (*shape, 1)[:3]
        n, tuning = max(team.n_pes, 1), shmem.tuning()
        self.team, self._tiles = team, None
        if self.reachable and (method == "tiles" or (tuning.multiprocessors and method is None)):
            self._tiles = tiles_of(
                (rows, columns, depth), n, self.dtype.itemsize, threads, tuning.multiprocessors
            )
        self.method = method or METHODS[self._tiles is None]
        most = BUNDLES[bool(tuning.multiprocessors)] if depth == 1 else 1
        self.bundle = min(most, 1 << max(rows // n, 1).bit_length() - 1)
        parts = max(-(-rows // n // self.bundle), -(-columns // n))
        if self._tiles is not None:
            threads, parts = self._tiles.threads, self._tiles.parts
        elif threads is None and not tuning.multiprocessors:
            threads = min(tuning.threads, BUNDLES[0])  # loops over bundles are vectorised
        super().__init__(team, blocks=blocks, threads=threads, parts=parts)
        if self.method not in METHODS or (self.method == "tiles" and self._tiles is None):
            raise shmem.ArgumentError(
                f"FFT: method is {method!r}, with shape {self.shape}, {self.dtype}, {threads} "
                f"threads and {n} PEs; it can be 'steps', or 'tiles' where these allow it"
            )
        if min(rows, columns) < self.n_pes:
            raise shmem.ArgumentError(
                f"FFT: shape is {self.shape}, the team has {self.n_pes} PEs: each must have a row "
                "and a column"
            )
        self.rows, self.columns = (
            range(*share_of(size, self.n_pes, self.my_pe)) for size in (rows, columns)
        )
        self._workspace = self._make_workspace(rows, columns, depth)
        self._planes: Any = None  # of three axes: where the third has been transformed
        if self._tiles is not None and depth > 1:
            self._planes = shmem.device_array(len(self.rows) * columns * depth, self.dtype)

    def _check(self) -> None:
        name, shape = self.dtype.name, self.shape
        powers = all(size > 0 and size & size - 1 == 0 for size in shape)
        if name not in REALS or len(shape) not in (2, 3) or not powers or min(shape[:2]) < 2:
            raise shmem.ArgumentError(
                f"FFT: shape is {shape} and dtype {name}; there are two or three axes, powers of "
                f"two, the first two of them from 2 on, and {' and '.join(REALS)}"
            )

    def _make_workspace(self, rows: int, columns: int, depth: int) -> tuple[Any, ...]:
        n, real, inner = self.n_pes, REALS[self.dtype.name], self.bundle * depth
        mine, most = (-(-size // n) for size in (rows, columns))
        scale, turn = (1 / prod(self.shape), -1) if self.inverse else (1, 1)
        longest = max(self.shape)
        roots = np.exp(-2j * turn * np.pi * np.arange(longest) / longest).astype(self.dtype)
        numbers = real(scale), real(turn), shmem.to_device(roots)
        if self._tiles is not None:
            boxes = self.boxes(n, mine * most * depth, dtype=self.dtype)
            sizes = *map(log_of, (rows, columns, depth)), *self._tiles.logs, log_of(most)
            world = [self.team.translate_pe(k, shmem.TEAM_WORLD) for k in range(n)]
            members = shmem.to_device(np.array(world, "int64"))
            return *sizes, *numbers, log_of(longest), members, boxes, self.signals(n, self.blocks)
        bundles, size = -(-mine // self.bundle), rows * depth
        group = max(1, min(TOGETHER // size, -(-most // self.blocks)))
        work = max(columns * inner, group * size)
        sent = shmem.to_device(np.zeros(bundles * columns * inner, self.dtype))
        return (
            rows, columns, depth, self.bundle, group, *numbers,
            shmem.device_array((self.blocks, 2, work), self.dtype), self.sendable(sent),
            self.boxes(n, bundles * most * inner, dtype=self.dtype), self.signals(n, self.blocks),
        )  # fmt: skip

    def __call__(self, x: Any, *, out: Any, stream: Any = 0) -> None:
        """Set `out` to the transform of all PEs' `x`; asynchronous, in `stream`'s order.

        `x` is not changed, and may be `out` if they have as many elements. Raises `ArgumentError`
        for other shapes or dtypes.
        """
        rows, columns, *depth = self.shape
        self.expect("x", x, (len(self.rows), columns, *depth), self.dtype)
        self.expect("out", out, (len(self.columns), rows, *depth), self.dtype)
        x, out = self.flat(x), self.flat(out)
        if self._tiles is None:
            self.launch(fft, stream, x, out, *self._workspace)
            return
        kernel, shared = transforms(REALS[self.dtype.name], self.dtype.type), self._tiles.shared
        if self._planes is not None:
            steps = x, self._planes, DEPTH, ROWS
            self.launch(kernel, stream, *steps, *self._workspace, shared=shared)
            x = self._planes
        self.launch(kernel, stream, x, out, ROWS, END, *self._workspace, shared=shared)

    def sends(self) -> tuple[int, int]:
        """Bytes and messages that this PE sends in a call, its signals among them."""
        others, bundles = self.n_pes - 1, -(-len(self.rows) // self.bundle)
        inner = self.bundle * prod(self.shape[2:])
        elements = bundles * inner * (self.shape[1] - len(self.columns))
        if self._tiles is not None:  # stored, without messages
            bundles = 0
        return elements * self.dtype.itemsize, others * (bundles + self.blocks)


def reference(
    whole: np.ndarray[Any, Any], n_pes: int, me: int, inverse: bool = False
) -> np.ndarray[Any, Any]:
    """What PE `me` gets, from all rows in one place."""
    made = (np.fft.ifftn if inverse else np.fft.fftn)(whole).swapaxes(0, 1)
    return made[slice(*share_of(len(made), n_pes, me))]
