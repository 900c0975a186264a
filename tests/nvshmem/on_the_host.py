"""The C++ by which kernels on GPUs record events, compiled for this machine.

What only PTX has is replaced: a clock that a test sets, the number of the grid, and accesses of
memory, which are moved by `shift` bytes: to where the host finds a device's memory.
"""

import ctypes
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from gpushmem.backends.nvshmem.trace import instrumentation

MACHINE = """
#define __device__

struct Three { unsigned x, y, z; };
extern "C" { Three threadIdx, blockIdx, blockDim, gridDim; word now, grid, shift; }
static word clock_now() { return now; }
static word grid_number() { return grid; }
static word *here(word at) { return (word *)(at + shift); }
static word take(word at) { return __atomic_fetch_add(here(at), 1, __ATOMIC_RELAXED); }
static word look(word at) { return *here(at); }
static void write(word at, word a) { *here(at) = a; }
static void write(word at, word a, word b) { here(at)[0] = a, here(at)[1] = b; }
"""


class Three(ctypes.Structure):
    """CUDA's dim3."""

    _fields_ = [(name, ctypes.c_uint) for name in "xyz"]


@cache
def library():
    """The functions, which take and return 64-bit integers."""
    folder = Path(mkdtemp(prefix="gpushmem-trace-"))
    source = instrumentation.SOURCE.replace(instrumentation.MACHINE, MACHINE)
    assert source.count("here(at)") == 5
    assert "asm" not in source
    (folder / "events.cpp").write_text(source)
    made = folder / "events.so"
    command = ["g++", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", made]
    subprocess.run([*command, folder / "events.cpp"], check=True)
    found = ctypes.CDLL(str(made))
    for name, kind in instrumentation.FUNCTIONS.items():
        function = getattr(found, f"gpushmem_trace_{name}")
        function.argtypes = [{32: ctypes.c_int, 64: ctypes.c_int64}[a.width] for a in kind.args]
        function.restype = None if str(kind.return_type) == "void" else ctypes.c_int64
    return found


def place(ring, shift=0, **words):
    """Where the ring is; and what threads see: `now`, `grid`."""
    ctypes.c_int64.in_dll(library(), instrumentation.GLOBAL).value = ring
    for name, value in {"shift": shift, **words}.items():
        ctypes.c_int64.in_dll(library(), name).value = value


def at(now, **threads):
    """The time, and of the calling thread `threadIdx` and so on, as tuples."""
    ctypes.c_int64.in_dll(library(), "now").value = now
    for name, values in threads.items():
        if name == "grid":
            ctypes.c_int64.in_dll(library(), "grid").value = values
        else:
            three = Three.in_dll(library(), name)
            three.x, three.y, three.z = (
                (*values, 1, 1)[:3] if "Dim" in name else (*values, 0, 0)[:3]
            )


def call(name, *given):
    """Call one of the functions."""
    return getattr(library(), f"gpushmem_trace_{name}")(*given)
