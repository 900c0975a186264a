"""How PEs' processes come into being: as copies of the launcher, or as new ones.

Copies start at once, with all that the launcher has imported and compiled. New processes have
nothing of it: CUDA, which does not survive a fork, may then be used in the launcher and in PEs.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Protocol

from gpushmem.backends.nvshmem.transport import without_ours
from gpushmem.job.job import Job
from gpushmem.launch import pe as pe_main
from gpushmem.launch.output import Ends, own_streams
from gpushmem.launch.program import Program

__all__ = ["Copies", "New", "Starter", "main"]


class Starter(Protocol):
    """A way of starting PEs."""

    how: str

    def start(self, job: Job, group: int, pipes: Ends | None) -> int:
        """Start the PE whose job this is; its process, in `group` (0: a new one), is returned."""

    def starting(self) -> Any:
        """A context in which all PEs of a job are started."""


class Copies:
    """PEs that are forked, and run `target()`, with `environ` added to the environment."""

    how = "forked"

    def __init__(self, target: Callable[[], object], environ: dict[str, str]) -> None:
        self._target, self._environ = target, environ

    def start(self, job: Job, group: int, pipes: Ends | None) -> int:
        """See `Starter`."""
        parent = os.getpid()
        pid = _fork()
        if pid == 0:
            os.environ.update(self._environ)
            pe_main.run(job, self._target, parent, group, pipes)
        return pid

    @contextmanager
    def starting(self) -> Iterator[None]:
        """A collection of garbage in a PE would write to, and so copy, all the memory it shares."""
        if gc.get_freeze_count():  # the program has its own
            yield
            return
        gc.freeze()
        try:
            yield
        finally:
            gc.unfreeze()


def _fork() -> int:
    with warnings.catch_warnings():
        # Python warns of threads it does not know. They are the worker pools of numerical
        # libraries, idle here, and those libraries see to themselves across a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


# The first that a new PE does. Until it can do better, Ctrl-C ends it without a word, and so does
# the launcher's end. What it imports is found where the launcher finds it.
CODE = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "signal.pthread_sigmask(signal.SIG_UNBLOCK, (1, 2, 15)); "
    "import ctypes, json, os, sys; about = json.loads(sys.argv[1]); "
    "ctypes.CDLL(None).prctl(1, 9); os.getppid() == about['parent'] or os._exit(1); "
    "sys.path[:] = about['path']; "
    "from gpushmem.launch.start import main; main(about)"
)


class New:
    """PEs that are new processes of this Python, and run a program; `fds` are for them to keep."""

    how = "started"

    def __init__(self, program: Program, environ: dict[str, str], fds: Sequence[int] = ()) -> None:
        self._program, self._environ, self._fds = program, environ, fds

    def start(self, job: Job, group: int, pipes: Ends | None) -> int:
        """See `Starter`."""
        about = {
            "job": asdict(job), "parent": os.getpid(), "group": group, "piped": pipes is not None,
            "path": sys.path, "kind": self._program.kind, "words": self._program.words,
        }  # fmt: skip
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        out, err = (writer for _, writer in pipes) if pipes is not None else (None, None)
        process = subprocess.Popen(
            [sys.executable, *flags, "-c", CODE, json.dumps(about)],
            stdin=None if job.my_pe == 0 else subprocess.DEVNULL, stdout=out, stderr=err,
            pass_fds=(*job.fds, *self._fds), env={**without_ours(os.environ), **self._environ},
            **_in(group),
        )  # fmt: skip
        process.returncode = 0  # it is the launcher that waits for it, by its number
        return process.pid

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Nothing is to be seen to."""
        yield


def _in(group: int) -> dict[str, Any]:
    """What has the new process be in the group before anything can go wrong with it."""
    if sys.version_info >= (3, 11):
        return {"process_group": group}
    return {"preexec_fn": lambda: os.setpgid(0, group)}


def main(about: dict[str, Any]) -> None:
    """Be a PE, in a new process, as `New.start` describes it."""
    fields = about["job"]
    job = Job(**{**fields, "heap_fds": tuple(fields["heap_fds"])})
    if about["piped"]:
        own_streams()

    def target() -> object:
        return Program(about["kind"], tuple(about["words"])).target()()

    pe_main.run(job, target, about["parent"], about["group"], None, copy=False)
