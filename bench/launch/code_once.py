"""Taking over a kernel that another PE has compiled, beside compiling it.

Each of both is done by a process forked for it, as by a PE.
"""

import os
import pickle
import struct
import time

import numpy as np
from harness import row
from numba import cuda
from numba.cuda.typing.typeof import Purpose, typeof

import gpushmem as shmem
from gpushmem.artifacts.fingerprint import fingerprint
from gpushmem.simt.grid import entry
from gpushmem.simt.grid.kernel_cache import machine
from gpushmem.start.launch import local

TURNS = 5


def saxpy(y, x, a):
    i = cuda.grid(1)
    if i < y.size:
        y[i] += a * x[i]


def put(dst, src, pe):
    shmem.put(dst, src, pe)


def reduce(dst, src):
    shmem.reduce_block(shmem.TEAM_WORLD, dst, src, "sum")


A = np.zeros(8)
KERNELS = {"saxpy": (saxpy, (A, A, 1.0)), "put": (put, (A, A, 1)), "reduce": (reduce, (A, A))}


def forked(function, *args):
    """Seconds that `function(*args)` takes in a process forked for it."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        began = time.perf_counter()
        function(*args)
        os.write(writer, struct.pack("d", time.perf_counter() - began))
        os._exit(0)
    os.waitpid(pid, 0)
    (seconds,) = struct.unpack("d", os.read(reader, 8))
    os.close(reader)
    os.close(writer)
    return seconds


def rows():
    local.preload("cpu")
    frozen = {}
    for name, (function, args) in KERNELS.items():
        types = tuple(typeof(a, Purpose.argument) for a in args)

        def compile_it(function=function, types=types):
            fingerprint(function, types, {}, machine())
            return pickle.dumps(entry.freeze(entry.build(function, types)[1]))

        def take_over(function=function, types=types, name=name):
            fingerprint(function, types, {}, machine())
            entry.thaw(pickle.loads(frozen[name]))

        compiling = min(forked(compile_it) for _ in range(TURNS))
        frozen[name] = _of_another(compile_it)
        taking = min(forked(take_over) for _ in range(TURNS))
        size = f"{len(frozen[name]) / 1024:.0f} KiB"
        yield row(
            f"first launch of {name}: code of another PE, {size}", taking, "compiling it",
            compiling, "", compiling / taking,
        )  # fmt: skip


def _of_another(function):
    """What `function()` returns in another process."""
    memory = os.memfd_create("frozen")
    pid = os.fork()
    if pid == 0:
        os.write(memory, function())
        os._exit(0)
    os.waitpid(pid, 0)
    data = os.pread(memory, os.fstat(memory).st_size, 0)
    os.close(memory)
    return data
