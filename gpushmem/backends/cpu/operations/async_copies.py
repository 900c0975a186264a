"""`copy_async` in kernels: performed at once, so that there is nothing to wait for."""

from __future__ import annotations

from gpushmem.backends.cpu.operations.access import address_of, aligned, itemsize_of
from gpushmem.backends.operation_errors import UNSHARED
from gpushmem.native.memory import copy_bytes
from gpushmem.native.structs import view
from gpushmem.simt.functions import device
from gpushmem.simt.layout import LAUNCH, THREAD
from gpushmem.simt.thread import fail_if, launch_word, thread_word

__all__ = ["BODIES", "check_piece", "check_shared", "piece_of"]

as_launch, as_thread = view(LAUNCH), view(THREAD)


@device
def check_shared(address, nbytes, fault):
    """Fail for memory that the block does not share."""
    start = as_thread(thread_word()).shared
    end = start + as_launch(launch_word()).shared_bytes
    fail_if(address < start or address + nbytes > end, fault, address, nbytes, 0, 0)


@device
def check_piece(target, source, nbytes):
    """Fail where a GPU would, and for memory that is not shared."""
    check_shared(target, nbytes, UNSHARED)
    aligned(target, nbytes)
    aligned(source, nbytes)


@device
def piece_of(dst, i, src, j, n):
    """Where a copy that can be made goes to, and is from, and its bytes."""
    size = itemsize_of(src)
    target, source = address_of(dst) + i * size, address_of(src) + j * size
    check_piece(target, source, n * size)
    return target, source, n * size


def copy_async(dst, i, src, j, n):
    target, source, nbytes = piece_of(dst, i, src, j, n)
    copy_bytes(target, source, nbytes)


def copy_async_commit():
    pass


def copy_async_wait(n):
    pass


BODIES = {f.__name__: f for f in (copy_async, copy_async_commit, copy_async_wait)}
