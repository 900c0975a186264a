"""What kernels of this package are made of: device functions that all threads of a block call.

None of them synchronises the block unless it says so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

import gpushmem as shmem

__all__ = [
    "begin", "block_sum", "block_sum32", "complete", "copy", "end", "end_at", "fours_of",
    "get_tile", "member", "part_of", "put_tile", "send", "share_of", "signal_others", "sum_before",
    "sum_in_order", "tell", "tell_others", "wait_for", "wait_for_all", "wait_for_others",
]  # fmt: skip

ALIGN = 32  # elements: parts begin at multiples of it, so that none shares a cache line
MAX_THREADS, SUMS = 1024, 32  # in a block, and of them those that add up others' numbers


@shmem.jit(device=True)
def begin(epochs):
    """The number of this call, from 1; `epochs` (blocks,) has that of the last. See `plan`."""
    return epochs[cuda.blockIdx.x] + 1


@shmem.jit(device=True)
def end(epochs):
    """Count this call; the last thing that a block does. Synchronises the block."""
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        epochs[cuda.blockIdx.x] += 1


@shmem.jit(device=True)
def end_at(epochs, last):
    """As `end`, of a call that was several epochs: from what `begin` said to `last`."""
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        epochs[cuda.blockIdx.x] = last


@shmem.jit(device=True)
def member(team, k):
    """The number in the world of PE `k` of a team, the number that `put` and the like take."""
    if team == shmem.TEAM_WORLD:  # on GPUs to ask takes three loads, one after the other
        return k
    return shmem.team_translate_pe(team, k, shmem.TEAM_WORLD)


@shmem.jit(device=True)
def part_of(size, parts, k):
    """First and last (exclusive) of `size` elements that are part `k` of so many `parts`."""
    share = ((size + parts - 1) // parts + ALIGN - 1) // ALIGN * ALIGN
    return min(k * share, size), min((k + 1) * share, size)


@shmem.jit(device=True)
def fours_of(row):
    """How many fours `load_vector` can access a row by: none if it is not aligned."""
    return row.size // 4 if row.ctypes.data % (4 * row.itemsize) == 0 else 0


@shmem.jit(device=True)
def share_of(size, parts, k):
    """As `part_of`, of rows, or what else is not in one cache line: as even as can be."""
    return k * size // parts, (k + 1) * size // parts


@shmem.jit(device=True)
def copy(dst, src):
    """Set dst to src, both of one axis; dst's size counts."""
    for i in range(cuda.threadIdx.x, dst.size, cuda.blockDim.x):
        dst[i] = src[i]


@shmem.jit(device=True)
def sum_in_order(mine, boxes, me, n):
    """Add what the others have sent to `mine`: from left to right by their numbers, me among them.

    `mine` (size,), `boxes` (n, size or more); box `me` is written. Floats of 16 bits are added as
    float32, and rounded once. Addition is commutative to the bit, though not associative: so all
    who call this with the same addends end with the same bits, whichever of them is their own.
    Synchronises the block.
    """
    if n == 2:
        shmem.reduce_local_block(mine, boxes[1 - me][: mine.size], "sum")
    else:
        shmem.copy_block(boxes[me][: mine.size], mine)
        shmem.reduce_rows_block(mine, boxes[:n, : mine.size], "sum")


def block_sum_of(real: Any) -> Any:
    """The function `block_sum` for numbers of a type."""

    @shmem.jit(device=True)
    def block_sum(value):
        """Return the sum of a number over the threads of the block, to all; synchronises the block.

        32 threads add up every 32nd number, then all threads the sums of these: the same bits.
        """
        t, n = cuda.threadIdx.x, cuda.blockDim.x
        values, sums = cuda.shared.array(MAX_THREADS, real), cuda.shared.array(SUMS, real)
        values[t] = value
        cuda.syncthreads()  # who is here has read the sums of the call before
        if t < SUMS:
            part = real(0)
            for k in range(t, n, SUMS):
                part += values[k]
            sums[t] = part
        cuda.syncthreads()
        total = sums[0]
        for k in range(1, min(n, SUMS)):
            total += sums[k]
        return total

    return block_sum


block_sum = block_sum_of(np.float64)
block_sum32 = block_sum_of(np.float32)


@shmem.jit(device=True)
def sum_before(value):
    """Return the sum of an int64 over the threads before this one; synchronises the block."""
    t, n, far = cuda.threadIdx.x, cuda.blockDim.x, 1
    values = cuda.shared.array(MAX_THREADS, np.int64)
    values[t] = value
    cuda.syncthreads()
    while far < n:
        more = values[t - far] if t >= far else 0
        cuda.syncthreads()
        values[t] += more
        cuda.syncthreads()
        far *= 2
    return values[t] - value


@shmem.jit(device=True)
def wait_for(signal, epoch):
    """Wait until element 0 of `signal` is `epoch`; then all threads of the block see what came."""
    if cuda.threadIdx.x == 0:
        shmem.signal_wait_until(signal, shmem.CMP_EQ, epoch)
    cuda.syncthreads()


@shmem.jit(device=True)
def wait_for_all(signals, epoch):
    """Wait until all of `signals` are `epoch`; then all threads of the block see what came.

    A thread waits for some of them, all at the same time.
    """
    for k in range(cuda.threadIdx.x, signals.size, cuda.blockDim.x):
        shmem.signal_wait_until(signals[k:], shmem.CMP_EQ, epoch)
    cuda.syncthreads()


@shmem.jit(device=True)
def tell(signal, epoch, pe):
    """Set element 0 of `signal` on `pe`, after all that the block's threads stored to that PE."""
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        shmem.fence()
        shmem.signal_op(signal, epoch, shmem.SIGNAL_SET, pe)


@shmem.jit(device=True)
def send(box, src, signal, epoch, pe, near):
    """Send `src` to `box` on `pe`; `src` may be changed then. Not `near`: with its signal.

    Where all members are `near`, data are stored, and `tell_others` or `tell` follows: one fence
    for all, not one for each.
    """
    if near:
        shmem.copy_block(shmem.peer_array(box, pe), src)
    else:
        shmem.put_signal_block(box, src, signal, epoch, shmem.SIGNAL_SET, pe)


@shmem.jit(device=True)
def tell_others(signal, epoch, team, near):
    """Set element 0 of `signal` on all other members, who are `near`, after what `send` has sent.

    A thread tells one of them, all at the same time.
    """
    if near:
        cuda.syncthreads()
        if cuda.threadIdx.x < shmem.team_n_pes(team) - 1:
            shmem.fence()
        signal_others(signal, epoch, team)


@shmem.jit(device=True)
def signal_others(signal, epoch, team):
    """Set element 0 of `signal` on all other members; after `complete` they need no fence."""
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    for k in range(1 + cuda.threadIdx.x, n, cuda.blockDim.x):
        shmem.signal_op(signal, epoch, shmem.SIGNAL_SET, member(team, (me + k) % n))


@shmem.jit(device=True)
def wait_for_others(signals, epoch, team):
    """Wait until all of `signals` (n,) but mine are `epoch`; then the block sees what came.

    A thread waits for one of them, all at the same time.
    """
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    for k in range(1 + cuda.threadIdx.x, n, cuda.blockDim.x):
        shmem.signal_wait_until(signals[(me + k) % n :], shmem.CMP_EQ, epoch)
    cuda.syncthreads()


@shmem.jit(device=True)
def put_tile(dst, to, src, at, shape, pe):
    """Send a tile of `src` to one of `dst` on `pe`, row by row; `tell` or `complete` follows.

    `to` and `at` are the tiles' corners, (row, column), in contiguous arrays of two axes, `shape`
    is (rows, columns). MPI: a put of a subarray; NVSHMEM 3: nvshmemx_tile_put.
    """
    for r in range(shape[0]):
        row = src[at[0] + r, at[1] : at[1] + shape[1]]
        shmem.put_nbi_block(dst[to[0] + r, to[1] : to[1] + shape[1]], row, pe)


@shmem.jit(device=True)
def get_tile(dst, to, src, at, shape, pe):
    """Fetch a tile of `src` on `pe` to one of `dst`, row by row; `complete` follows: as `put_tile`.

    MPI: a get of a subarray; NVSHMEM 3: nvshmemx_tile_get.
    """
    for r in range(shape[0]):
        row = dst[to[0] + r, to[1] : to[1] + shape[1]]
        shmem.get_nbi_block(row, src[at[0] + r, at[1] : at[1] + shape[1]], pe)


@shmem.jit(device=True)
def complete():
    """Complete what the block has sent, before its sources may change. Synchronises the block."""
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        shmem.quiet()
    cuda.syncthreads()
