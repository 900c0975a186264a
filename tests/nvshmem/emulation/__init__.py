"""CUDA and NVSHMEM without a GPU, for the host side of the nvshmem backend.

This proves nothing about GPUs. It runs our host code's calls against the rules of the interfaces:
real cuda.core, cuda.bindings and nvshmem.core, on a stub of the CUDA driver whose devices' memory
is this machine's (libcuda/), and on a stand-in for the functions of nvshmem.bindings that moves
bytes between processes (nvshmem_bindings.py). No kernel runs: launches are logged, and a test may
do in a callback what its kernel would have done (driver.py).

What it guards is what backend nvshmem-cpu, whose host is that of backend cpu, never runs: which of
NVSHMEM's host functions are called, on which stream and in what order; loading, launching and
tracing of kernels; device memory, registration, teams and their limits; init to finalize. What
operations do in kernels, and atomic operations and waits altogether, nvshmem-cpu runs in NVSHMEM's
own code (tests/nvshmem_cpu); of those there is nothing here.

    from tests.nvshmem import emulation

    emulation.install()                     # before anything imports cuda.bindings
    env = emulation.environment()           # for a child process: its Python installs it at start

Environment: EMULATION_DEVICES (2), EMULATION_MEMORY (bytes of each device, 8 GiB), EMULATION_SMS
(132), EMULATION_TRACE (print what is asked for and not there), EMULATION_NODE_PES (PEs of each
pretended node: `ptr` between nodes is 0), EMULATION_MPS (0: PEs that share a device have no MPS,
and may do no more than NVSHMEM then allows), EMULATION_TIMEOUT (seconds after which a wait for
another PE raises, 60), EMULATION_LAUNCHES (0: they do nothing, unchecked, so that what calls them
can be timed), and CUDA_VISIBLE_DEVICES and NVSHMEM_SYMMETRIC_SIZE as ever.
EMULATION_LIBCUDA, which `environment` sets, is what `site/` installs the emulation for.
"""

import ctypes
import os
from pathlib import Path

from tests.nvshmem.emulation.build import LIBRARY, compiled, load, missing
from tests.nvshmem.emulation.hooks import after_import

__all__ = ["environment", "install", "missing"]

HERE = Path(__file__).parent
ROOT = HERE.parents[2]

_state = {"installed": False}


def install() -> None:
    """Make this process, and those forked from it, use the emulation. Again: nothing happens."""
    if _state["installed"]:
        return
    load()
    after_import(
        {
            "cuda.bindings.runtime": _patch_runtime,
            "cuda.core": _patch_core,
            "cuda.core.system": _patch_system,
            "nvshmem.bindings": _patch_nvshmem,
            "gpushmem.backends.nvshmem.versions": _patch_versions,
            "gpushmem.backends.nvshmem.backend": _patch_backend,
            "gpushmem.backends.nvshmem.gpu.cublaslt": _patch_cublaslt,
        }
    )
    _state["installed"] = True


def environment(**more) -> dict[str, str]:
    """Return the environment for a child process that is to use the emulation, and `more`."""
    paths = [str(HERE / "site"), str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    paths = list(dict.fromkeys(path for path in paths if path))
    own = {LIBRARY: str(compiled()), "PYTHONPATH": os.pathsep.join(paths)}
    return {**os.environ, **own, **{name: str(value) for name, value in more.items()}}


class _Library:
    """NVSHMEM's functions that nvshmem4py has not."""

    qps = 0

    def nvshmemx_buffer_register(self, address, nbytes):
        from tests.nvshmem.emulation.stream_ops import registered

        ends = ((start, start + size) for start, size in registered.items())
        if any(start < address + nbytes and address < end for start, end in ends):
            return 1
        registered[address] = nbytes
        return 0

    def nvshmemx_buffer_unregister(self, address):
        from tests.nvshmem.emulation.stream_ops import registered

        del registered[address]
        return 0

    def nvshmemx_qp_create(self, n, made):
        from tests.nvshmem.emulation.world import complete

        numbers = (ctypes.c_int32 * n)(*range(64 + _Library.qps, 64 + _Library.qps + n))
        _Library.qps += n
        ctypes.pointer(made._obj)[0] = ctypes.cast(numbers, ctypes.POINTER(ctypes.c_int32))
        complete().teams.barrier(0, "qp_create")
        return 0


def _patch_backend(module):
    module._library = _Library


def _patch_cublaslt(module):
    from tests.nvshmem.emulation.cublaslt import Library

    library = Library()
    module.library = lambda: library


def _patch_versions(module):
    module._no_gpu = lambda: None


def _patch_runtime(module):
    from tests.nvshmem.emulation.runtime import patch_runtime

    patch_runtime(module)


def _patch_core(module):
    from tests.nvshmem.emulation.arguments import patch_core

    patch_core(module)


def _patch_system(module):
    from tests.nvshmem.emulation.runtime import patch_system

    patch_system(module)


def _patch_nvshmem(module):
    from tests.nvshmem.emulation.nvshmem_bindings import patch

    patch(module)
