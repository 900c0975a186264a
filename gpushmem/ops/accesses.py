"""Loads, stores and copies of several elements at once, by one thread, in the order it needs."""

from __future__ import annotations

from gpushmem.ops.roles import (
    Elements,
    Groups,
    LoadAccess,
    Loaded,
    Place,
    SharedTarget,
    StoreAccess,
    Vector,
    VectorSize,
    Words,
)
from gpushmem.ops.row import COPY, declare, reads, writes

NOTE = """`array` is contiguous memory that this PE can load from and store to: its own, or that of
another PE (`peer_array`). Its elements are counted row by row. The elements moved have 1, 2, 4, 8
or 16 bytes in all, and begin at a multiple of that; or 32, 64 or 128, from a multiple of 16 on,
with an access for each 16. Other places raise `ArgumentError` on the cpu backend, and end the
kernel on a GPU. PTX ISA: ld, st, with vectors; CUDA C++: cuda::atomic_ref."""


@declare(note=NOTE)
def load_vector(array: Words, i: Place, n: VectorSize, access: LoadAccess = "weak") -> Elements:
    """Return elements `i` to `i + n` of `array`, as a tuple, at once. `n` is a literal.

    `access`, written as a literal in the call, is "weak": a load as `array[i]`; "stream": the same,
    of data that is not loaded again soon, and need not stay in caches; "relaxed.cta",
    "relaxed.gpu", "relaxed.sys": atomic for the threads of the block, of the GPU, or of all PEs, so
    a loop that polls loads each time; "acquire.cta", "acquire.gpu", "acquire.sys": the same, and
    what follows sees what came before the "release" whose elements it has loaded. Atomic are 8
    bytes at most: of more, each 8 on their own.
    """


@declare(note=NOTE)
def store_vector(array: Words, i: Place, value: Vector, access: StoreAccess = "weak") -> None:
    """Set elements `i` and following of `array` to those of the tuple `value`, at once.

    Values are converted to the dtype of `array`. `access` is as in `load_vector`, with "release" in
    the place of "acquire": what this thread has loaded and stored before, through `peer_array`,
    too, and what others had when it synchronised with them, comes before. Only "release.sys" orders
    stores for other PEs. It is no `fence`: puts, signals and the like need that.
    """


@declare(reads("src", "n"), writes("dst", "n"), completion=COPY)
def copy_async(dst: SharedTarget, i: Place, src: Loaded, j: Place, n: VectorSize) -> None:
    """Begin to copy elements `j` to `j + n` of `src` to `i` and following of `dst`, shared memory.

    One thread's piece of a tile: `n` is a literal, of 4, 8 or 16 bytes, and both begin at a
    multiple of that. Arrays are contiguous, of one dtype; their elements are counted row by row,
    from 0. `dst` is in the block's shared memory (`cuda.shared.array`); `src` is in global memory,
    the PE's own or another one's (`peer_array`). Other places raise `ArgumentError` on the cpu
    backend; on a GPU they end the kernel, and other memory is undefined. It is one instruction that
    uses no register, and the thread goes on at once; 16 bytes go past the first-level cache. CUDA:
    __pipeline_memcpy_async; PTX ISA: cp.async.
    """


@declare(orders="commit")
def copy_async_commit() -> None:
    """Let the calling thread's copies since its last call be a group, which may be empty.

    CUDA: __pipeline_commit; PTX ISA: cp.async.commit_group.
    """


@declare(orders="copies")
def copy_async_wait(n: Groups) -> None:
    """Wait until all but the last `n` groups of the calling thread's copies are complete.

    `n` is a literal from 0 to 8. On return the thread may read what it has copied in those groups,
    and `src` may be changed. Other threads see it once they have synchronised with this one:
    `cuda.syncthreads()` after the wait, and once more before the memory is copied to again.
    Common mistake: a barrier without the wait. `quiet` and barriers complete no such copies.
    CUDA: __pipeline_wait_prior; PTX ISA: cp.async.wait_group.
    """
