"""Loads and stores of several elements at once, by one thread, in the order that it needs."""

from __future__ import annotations

from gpushmem.ops.roles import Elements, LoadAccess, Place, StoreAccess, Vector, VectorSize, Words
from gpushmem.ops.row import declare

NOTE = """`array` is contiguous memory that this PE can load from and store to: its own, or that of
another PE (`peer_array`). Its elements are counted row by row. The elements moved have 1, 2, 4, 8
or 16 bytes in all, and begin at a multiple of that: other places raise `ArgumentError` on the cpu
backend, and end the kernel on a GPU. PTX ISA: ld, st, with vectors; CUDA C++: cuda::atomic_ref."""


@declare(note=NOTE)
def load_vector(array: Words, i: Place, n: VectorSize, access: LoadAccess = "weak") -> Elements:
    """Return elements `i` to `i + n` of `array`, as a tuple, by one load. `n` is a literal.

    `access`, written as a literal in the call, is "weak": a load as `array[i]`; "stream": the same,
    of data that is not loaded again soon, and need not stay in caches; "relaxed.cta",
    "relaxed.gpu", "relaxed.sys": atomic for the threads of the block, of the GPU, or of all PEs, so
    a loop that polls loads each time; "acquire.cta", "acquire.gpu", "acquire.sys": the same, and
    what follows sees what came before the "release" whose elements it has loaded. Atomic are 8
    bytes at most: of 16, each half on its own.
    """


@declare(note=NOTE)
def store_vector(array: Words, i: Place, value: Vector, access: StoreAccess = "weak") -> None:
    """Set elements `i` and following of `array` to those of the tuple `value`, by one store.

    Values are converted to the dtype of `array`. `access` is as in `load_vector`, with "release" in
    the place of "acquire": what this thread has loaded and stored before, through `peer_array`,
    too, and what others had when it synchronised with them, comes before. Only "release.sys" orders
    stores for other PEs. It is no `fence`: puts, signals and the like need that.
    """
