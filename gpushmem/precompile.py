"""The engine's own functions, compiled before they are needed.

They are the same for all programs and all machines of a kind (`code_store.ENGINE`). A wheel has
them: its build runs `python -m gpushmem.precompile FOLDER PROGRAM...`, which puts there what these
programs have needed. Where the package came without them, as a clone does, the first `gpushmem run`
compiles them on two cores: `beside`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from numba import cuda, types

import gpushmem as shmem
from gpushmem import background as processes
from gpushmem import cache_files, code_store, settings
from gpushmem.artifacts.toolchain import compilers, engine
from gpushmem.backends.cpu.backend import CpuBackend
from gpushmem.backends.cpu.sync import host_barrier
from gpushmem.native.c_function import LEVELS, level
from gpushmem.simt.embed import build as build_engine
from gpushmem.simt.launch import Kernel

__all__ = ["beside", "build"]

ABOUT = "about.json"  # which compilers these are of
WAYS = (), ("--check",), ("--trace", "trace"), ("--stats",), ("--memory", "weak")


def beside() -> None:
    """Compile what every job needs, in a copy of this process; says so on a terminal.

    The copy begins with what this process needs last; both find in the store what the other has
    compiled. Where that has been done, or nothing is kept, or there is one core, nothing is done.
    """
    name, begun = (
        code_store.key(what, engine(), level()) + code_store.ENGINE for what in ("done", "begun")
    )
    if len(os.sched_getaffinity(0)) < 2 or _is_known(name) or not cache_files.save(begun, b""):
        return
    if settings.get("GPUSHMEM_PROGRESS") and sys.stderr.isatty():
        print("gpushmem: compiling the engine, once", file=sys.stderr, flush=True)

    def work() -> None:
        _compile()
        cache_files.save(name, b"")

    processes.beside(work)


def _is_known(name: str) -> bool:
    return cache_files.shipped(name) is not None or cache_files.load(name) is not None


def _compile() -> None:
    """Compile what every job needs; what is needed last comes first."""
    CpuBackend.install(1)
    data = types.Array(types.float32, 1, "C")
    flag = types.Array(types.uint64, 1, "C")
    Kernel(_usual, cache=True).compile((data, data, flag, types.int64))
    host_barrier.native()
    build_engine()


def _usual(dst, src, flag, team):  # type: ignore[no-untyped-def]
    """Call what most kernels call."""
    k = (shmem.team_my_pe(team) + 1) % shmem.team_n_pes(team)
    right = shmem.team_translate_pe(team, k, shmem.TEAM_WORLD)
    if right != (shmem.my_pe() + 1) % shmem.n_pes():
        return
    shmem.put_signal_block(dst, src, flag, 1, shmem.SIGNAL_SET, right)
    if cuda.threadIdx.x == 0:
        shmem.signal_wait_until(flag, shmem.CMP_GE, 1)
    cuda.syncthreads()


def build(folder: Path, programs: list[str]) -> None:
    """Put into a folder what programs need of the engine: the first one in all ways of running it.

    Device functions are the same on all levels, so there the first one is enough for the others.
    """
    shutil.rmtree(folder, ignore_errors=True)  # what an earlier build has left is of other sources
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as kept:
        for name in LEVELS:
            runs = [(*way, programs[0]) for way in WAYS]
            runs += [(program,) for program in programs[1:]] if name == next(iter(LEVELS)) else []
            ours = {"GPUSHMEM_CACHE": "1", "GPUSHMEM_CACHE_DIR": kept, "GPUSHMEM_CPU": name}
            for run in runs:
                command = [sys.executable, "-m", "gpushmem", "run", "-n", "2", *run]
                first = run[-1] == programs[0]  # others may need packages that are not there
                subprocess.run(command, env=os.environ | ours, cwd=kept, check=first)
        for record in Path(kept).glob(f"*{code_store.ENGINE}"):
            shutil.move(record, folder / record.name)
    (folder / ABOUT).write_text(json.dumps(compilers()))


if __name__ == "__main__":
    build(Path(sys.argv[1]), sys.argv[2:])
