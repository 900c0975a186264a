"""Launching kernels on the engine."""

import os
import threading
import time
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest

from gpushmem.artifacts.launch_shape import shape_of
from gpushmem.errors import KernelError
from gpushmem.simt.run import cores, queue
from gpushmem.simt.run.kernel import Kernel, running


def launch(function, grid, block, *args, shared=0, twice=True, **options):
    """Compile and run a kernel; return what ran its threads.

    One that waits is run twice, in lockstep and on fibers, which must leave the same in all arrays,
    or only in lockstep if not `twice`. One made again, as a closure is, has the same code.
    """
    shape = shape_of(grid, block, shared)
    first = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
    kernel = Kernel(function, cache=True, **options)
    running = kernel.prepare(shape, tuple(first))
    if running.entry.kind != "lockstep" or not twice:
        running = kernel.prepare(shape, args)
        running()
        return running.entry.kind
    running()
    again = Kernel(function, cache=True, lockstep=False, **options).prepare(shape, args)
    again()
    for before, after in zip(first, args, strict=True):
        np.testing.assert_array_equal(before, after)
    return again.entry.kind


@contextmanager
def hanging(launched):
    """Run a launch that hangs in another thread; in the end it is cancelled, and must say so."""
    failed = []

    def call():
        try:
            launched()
        except KernelError as error:
            failed.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield
    finally:
        while thread.is_alive() and not running():  # it may still be compiled
            time.sleep(0.01)
        for part in running():
            part.cancel()
        thread.join(20)
    assert "cancelled" in str(failed[0])


@contextmanager
def spread(threads):
    """Let launches that never wait be spread over so many cores, however little they do."""
    usual = int(queue.of_process["worth"][0])
    queue.of_process["worth"] = -1
    try:
        with mock.patch.dict(os.environ, {cores.VARIABLE: str(threads)}):
            yield
    finally:
        queue.of_process["worth"] = usual


@pytest.fixture
def optimised(monkeypatch):
    """Have the kernels of a test optimised, whatever those of its file are."""
    monkeypatch.setenv("GPUSHMEM_TIER", "full")


@pytest.fixture
def patched():
    """Run the test with `numba.cuda` on the engine."""
    from gpushmem.simt.numba_cuda import patch_numba_cuda

    with patch_numba_cuda():
        yield
