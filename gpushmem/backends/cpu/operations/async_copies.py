"""`copy_async` in kernels: performed at once, so that there is nothing to wait for."""

from __future__ import annotations

from gpushmem.backends.cpu.operations.access import address_of, aligned, itemsize_of, size_of
from gpushmem.backends.operation_errors import BAD_PIECE, TOO_SMALL, UNSHARED
from gpushmem.native.memory import copy_bytes
from gpushmem.native.structs import view
from gpushmem.simt.functions import device
from gpushmem.simt.layout import LAUNCH, THREAD
from gpushmem.simt.thread import fail_if, launch_word, thread_word

__all__ = ["BODIES", "check_piece", "piece_of"]

as_launch, as_thread = view(LAUNCH), view(THREAD)


@device
def check_piece(target, source, nbytes):
    """Fail where a GPU would, and for memory that is not shared."""
    fail_if(nbytes not in (4, 8, 16), BAD_PIECE, nbytes, 0, 0, 0)
    start = as_thread(thread_word()).shared
    end = start + as_launch(launch_word()).shared_bytes
    fail_if(target < start or target + nbytes > end, UNSHARED, target, nbytes, 0, 0)
    aligned(target, nbytes)
    aligned(source, nbytes)


@device
def piece_of(dst, src):
    """The bytes of a copy that can be made."""
    n = size_of(src)
    fail_if(size_of(dst) < n, TOO_SMALL, size_of(dst), n, address_of(dst), address_of(src))
    check_piece(address_of(dst), address_of(src), n * itemsize_of(src))
    return n * itemsize_of(src)


def copy_async(dst, src):
    nbytes = piece_of(dst, src)
    copy_bytes(address_of(dst), address_of(src), nbytes)


def copy_async_commit():
    pass


def copy_async_wait(n):
    pass


BODIES = {f.__name__: f for f in (copy_async, copy_async_commit, copy_async_wait)}
