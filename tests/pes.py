"""Running a test's function in real PEs."""

import inspect
import os
import pickle
import sys

import numpy as np
import pytest

from gpushmem.job import job
from gpushmem.launch import local

DEFAULT_HEAP = 64 << 20


def run_pes(n, function, *args, timeout=60, heap_size=DEFAULT_HEAP):
    """Run `function(*args)` in `n` PEs; return their results, or fail with all they printed."""
    local.preload()
    results = [os.memfd_create("result") for _ in range(n)]
    outputs = [os.memfd_create("output") for _ in range(n)]

    def target():
        pe = job.current().my_pe
        for fd in (1, 2):
            os.dup2(outputs[pe], fd)
        # Under pytest these may be objects that write somewhere else.
        sys.stdout, sys.stderr = map(_writer, (1, 2))
        value = function(*args)
        with open(results[pe], "wb", closefd=False) as file:
            pickle.dump(value, file)

    try:
        outcome = local.launch(n, target, heap_size=heap_size, timeout=timeout)
        if outcome.code:
            printed = "".join(f"--- PE {pe}\n{_read(fd).decode()}" for pe, fd in enumerate(outputs))
            pytest.fail(f"{outcome.summary()}\n{printed}", pytrace=False)
        return [pickle.loads(_read(fd)) for fd in results]
    finally:
        for fd in results + outputs:
            os.close(fd)


def compile_first(function, *examples):
    """Compile for arguments of the types of `examples` here: PEs forked later find it done.

    `function` is a kernel or an operation, which then is compiled as the host calls it.
    """
    from numba.cuda.typing.typeof import Purpose, typeof

    from gpushmem.backends.cpu.hostcalls import HostCalls
    from gpushmem.jit import Kernel
    from gpushmem.ops import OPS
    from gpushmem.simt import kernel as simt

    local.preload()
    if isinstance(function, Kernel):
        prepared = function._prepared.setdefault("cpu", simt.Kernel(function.py_func))
        prepared.compile(tuple(typeof(example, Purpose.argument) for example in examples))
    else:
        op = OPS[function.__name__]
        arguments = inspect.signature(function).bind(*examples).arguments
        HostCalls(np.zeros(1)).prepare(op, arguments)


def _writer(fd):
    return open(fd, "w", buffering=1, closefd=False)


def _read(fd):
    size = os.fstat(fd).st_size
    return os.pread(fd, size, 0) if size < 2**31 else _read_large(fd, size)


def _read_large(fd, size):
    return b"".join(os.pread(fd, 2**30, at) for at in range(0, size, 2**30))
