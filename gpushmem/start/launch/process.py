"""How a PE's process is created: by forking the launcher, or as a new process.

A fork starts at once, with everything the launcher has imported and compiled. A new process shares
nothing with it, so both can use CUDA, which does not survive a fork.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from gpushmem.backends.nvshmem.transport import without_ours
from gpushmem.background import fork
from gpushmem.job.job import Job
from gpushmem.start.launch import pe as pe_main
from gpushmem.start.launch.output import Ends, own_streams
from gpushmem.start.launch.profiler import Profiler
from gpushmem.start.launch.program import Program

__all__ = ["ExecStarter", "ForkStarter", "Starter", "main"]


class Starter(Protocol):
    """The interface of the two ways of starting PEs."""

    how: str
    profiled: bool  # each PE is a child of a profiler

    def start(self, job: Job, group: int, pipes: Ends | None) -> int:
        """Start the PE of this job in process group `group` (0: a new one); returns its pid."""


class ForkStarter:
    """Forks the launcher; PEs run `target()`, with `environ` added to the environment."""

    how = "forked"
    profiled = False

    def __init__(self, target: Callable[[], object], environ: dict[str, str]) -> None:
        self._target, self._environ = target, environ

    def start(self, job: Job, group: int, pipes: Ends | None) -> int:
        """See `Starter`."""
        parent = os.getpid()
        pid = fork()
        if pid == 0:
            gc.freeze()  # a collection in the PE would write to, and so copy, shared memory
            os.environ.update(self._environ)
            pe_main.run(job, self._target, parent, group, pipes)
        return pid


# The first statements of a new PE. Ctrl-C and the launcher's death end it silently until it has set
# up its own handling. It uses the launcher's import path.
CODE = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "signal.pthread_sigmask(signal.SIG_UNBLOCK, (1, 2, 15)); "
    "import ctypes, json, os, sys; about = json.loads(sys.argv[1]); "
    "about['profiled'] or (ctypes.CDLL(None).prctl(1, 9), "
    "os.getppid() == about['parent'] or os._exit(1)); "
    "sys.path[:] = about['path']; "
    "from gpushmem.start.launch.process import main; main(about)"
)


class ExecStarter:
    """Starts new processes of this Python, which run a program and inherit `fds`.

    With a `profiler`, that is started, and starts the process.
    """

    how = "started"

    def __init__(
        self, program: Program, environ: dict[str, str], fds: Sequence[int] = (),
        profiler: Profiler | None = None,
    ) -> None:  # fmt: skip
        self._program, self._environ, self._fds = program, environ, fds
        self._profiler, self.profiled = profiler, profiler is not None

    def start(self, job: Job, group: int, pipes: Ends | None) -> int:
        """See `Starter`."""
        about = {
            "job": asdict(job), "parent": os.getpid(), "group": group, "piped": pipes is not None,
            "path": sys.path, "kind": self._program.kind, "words": self._program.words,
            "profiled": self.profiled,
        }  # fmt: skip
        before = self._profiler.words(job.my_pe, job.n_pes) if self._profiler is not None else ()
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        out, err = (writer for _, writer in pipes) if pipes is not None else (None, None)
        process = subprocess.Popen(
            [*before, sys.executable, *flags, "-c", CODE, json.dumps(about)],
            stdin=None if job.my_pe == 0 else subprocess.DEVNULL, stdout=out, stderr=err,
            pass_fds=(*job.fds, *self._fds), env={**without_ours(os.environ), **self._environ},
            **_in(group),
        )  # fmt: skip
        process.returncode = 0  # the launcher waits for the pid itself
        return process.pid


def _in(group: int) -> dict[str, Any]:
    """Return the Popen options that put the new process in the group before it runs."""
    if sys.version_info >= (3, 11):
        return {"process_group": group}
    return {"preexec_fn": lambda: os.setpgid(0, group)}


def main(about: dict[str, Any]) -> None:
    """Run a PE in a new process, as described by `ExecStarter.start`."""
    fields = about["job"]
    job = Job(**{**fields, "heap_fds": tuple(fields["heap_fds"])})
    if about["piped"]:
        own_streams()

    def target() -> object:
        return Program(about["kind"], tuple(about["words"])).target()()

    pe_main.run(
        job, target, about["parent"], about["group"], None, copy=False, profiled=about["profiled"]
    )
