"""What the programs of the set share: C with OpenMP beside kernels, on the same data.

A program is a module with

- `SIZES`: keyword arguments of the functions below, for "full", "short" and "tiny" problems;
- `data(**size)`: its arrays by name, as they are before the first launch;
- `launches(d, **size)`: launches kernels on device arrays `d.name`, and does what a program's host
  does between launches;
- `calls(c, h, **size)`: the same by functions of the C file beside it, on arrays `h.name`;
- `RESULTS`: the arrays to compare, with the relative tolerance of each (0: equal);
- `reference(h, **size)`: computes the same in NumPy; returns these arrays by name.
"""

import ctypes
import os
import shutil
import subprocess
import tempfile
import time
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from numba import cuda

from gpushmem.simt.run import cores

HERE = Path(__file__).parent
COMPILER = ["gcc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"]
NAMES = (
    "backprop", "bfs", "gaussian", "hotspot", "kmeans", "lud", "nw", "particlefilter",
    "pathfinder", "srad", "streamcluster",
)  # fmt: skip
OF_NUMBERS = {int: ctypes.c_int, np.float32: ctypes.c_float, float: ctypes.c_double}


def has_compiler():
    return shutil.which(COMPILER[0]) is not None


class Library:
    """A C file, compiled: its functions take arrays and numbers, and use as many threads as we."""

    def __init__(self, source):
        with tempfile.TemporaryDirectory() as folder:
            built = Path(folder) / f"{source.stem}.so"
            subprocess.run([*COMPILER, "-o", built, source, "-lm"], check=True)
            self.library = ctypes.CDLL(os.fspath(built))
        self.library.omp_set_num_threads(cores.usable_cores())

    def __getattr__(self, name):
        function = getattr(self.library, name)
        function.restype = ctypes.c_int
        return lambda *args: function(*map(converted, args))


def converted(value):
    if isinstance(value, np.ndarray):
        return ctypes.c_void_p(value.ctypes.data)
    return OF_NUMBERS[type(value)](value)


@cache
def library(name):
    return Library(HERE / f"{name}.c")


class Case:
    """A program with data of one of its sizes, in memory of both sides."""

    def __init__(self, name, size):
        self.program = import_module(name)
        self.size = self.program.SIZES[size]
        self.data = self.program.data(**self.size)
        self.on_device = SimpleNamespace(**{n: cuda.to_device(a) for n, a in self.data.items()})
        self.on_host = self.copies()
        self.library = library(name) if has_compiler() else None

    def copies(self):
        return SimpleNamespace(**{name: array.copy() for name, array in self.data.items()})

    def run_engine(self):
        """Seconds from the first launch to the end of the last, on data as at the beginning."""
        for name, array in self.data.items():
            getattr(self.on_device, name).copy_to_device(array)
        cuda.synchronize()
        began = time.perf_counter()
        self.program.launches(self.on_device, **self.size)
        cuda.synchronize()
        return time.perf_counter() - began

    def run_c(self):
        for name, array in self.data.items():
            np.copyto(getattr(self.on_host, name), array)
        began = time.perf_counter()
        self.program.calls(self.library, self.on_host, **self.size)
        return time.perf_counter() - began

    def of_engine(self):
        return {n: getattr(self.on_device, n).copy_to_host() for n in self.program.RESULTS}

    def of_c(self):
        return {n: getattr(self.on_host, n) for n in self.program.RESULTS}

    def of_reference(self):
        return self.program.reference(self.copies(), **self.size)

    def check(self, results, expected):
        """Raise `AssertionError` unless each array is as expected, to its tolerance."""
        for name, rtol in self.program.RESULTS.items():
            scale = np.abs(expected[name]).max() or 1
            np.testing.assert_allclose(
                results[name], expected[name], rtol=rtol, atol=rtol * scale, err_msg=name
            )
