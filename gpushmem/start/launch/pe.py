"""The main program of a PE started by gpushmem: its setup, its target, and its exit."""

from __future__ import annotations

import _thread
import atexit
import ctypes
import faulthandler
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from gpushmem.errors import Deadlock, PeerFailed, WaitTimeout, of_the_caller, where_to_read_on
from gpushmem.job import forks
from gpushmem.job.board import FAILED
from gpushmem.job.exit_notice import note_failure, reason_of
from gpushmem.job.job import Job, adopt
from gpushmem.start.launch.output import Ends, Pipes, whole_lines

__all__ = ["HELD", "of_the_script", "run", "status"]

PR_SET_PDEATHSIG = 1
INTERRUPTED = 128 + signal.SIGINT
# Signals blocked here and in the launcher until a PE can handle them.
HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
VERDICTS = (PeerFailed, Deadlock, WaitTimeout)


def run(
    job: Job, target: Callable[[], object], parent: int, group: int, pipes: Ends | None,
    copy: bool = True, profiled: bool = False,
) -> NoReturn:  # fmt: skip
    """Run `target()` as a PE, and end the process with its exit code.

    The code is 0, that of a SystemExit, 1 for an exception, or 130 for Ctrl-C, whether or not
    anything can be printed. The first PE to fail prints its traceback. `group` is the process group
    to join (0: a new one). `pipes` receive the output (None: unchanged). `copy`: this process is a
    fork of the launcher. `profiled`: a profiler has started it, and is in that group.
    """
    code = 1
    try:
        if pipes is not None:
            Pipes.redirect(pipes)
        whole_lines()
        if not profiled:
            os.setpgid(0, group)
        if copy:
            _forget()
        _settle(job, parent, profiled)
        code = _exit_code(job, target)
        if code:
            note_failure(interrupted=code == INTERRUPTED)
        code = _wind_up(code)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BaseException:  # noqa: BLE001  (the last chance to report it)
        _say(traceback.format_exc())
        code = code or 1
    finally:
        os._exit(code)


def _settle(job: Job, launcher: int, profiled: bool) -> None:
    """Set up the process as a PE: parent-death signal, signal handlers, input, board."""
    if profiled:
        _end_with(launcher)
    else:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:  # it died before the call
            os._exit(1)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.unraisablehook = _keep_interrupts(sys.unraisablehook)
    faulthandler.register(signal.SIGUSR1, all_threads=True, file=2)
    if job.my_pe != 0 or os.isatty(0):
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
    adopt(job)
    torch = sys.modules.get("gpushmem.torch")
    if torch is not None:  # PyTorch was imported before the fork, where there was no job
        torch.set_variables()
    forks.note(job.my_pe, job.n_pes, alone=False)
    _ = job.board  # map it now: the script may close the descriptor, and its number be reused
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)


def _end_with(launcher: int) -> None:
    """Kill this process when the launcher, which is not its parent, has ended."""
    try:
        fd = os.pidfd_open(launcher)
    except ProcessLookupError:
        os._exit(1)

    def watch() -> None:
        select.select([fd], [], [])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def _forget() -> None:
    """Drop state inherited from the launcher."""
    signal.set_wakeup_fd(-1)
    atexit._clear()


def _keep_interrupts(previous: Callable[[Any], object]) -> Callable[[Any], object]:
    """Wrap `sys.unraisablehook`: Ctrl-C in places such as `__del__` is sent again."""
    main = threading.main_thread().ident or 0

    def again() -> None:
        time.sleep(0.01)  # raised inside the hook it would be lost as well
        signal.pthread_kill(main, signal.SIGINT)

    def hook(what: Any) -> None:
        if issubclass(what.exc_type, KeyboardInterrupt):
            _thread.start_new_thread(again, ())
        else:
            previous(what)

    return hook


def _exit_code(job: Job, target: Callable[[], object]) -> int:
    try:
        code = status(target)
        if code == 0:
            _surface_errors()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BaseException as error:  # noqa: BLE001  (whatever ends a script is reported)
        with suppress(Exception):
            _report(job, error)
        return 1
    return code


def status(target: Callable[[], object]) -> int:
    """Run the target, which may be any program, and return the exit code it asks for."""
    try:
        target()
    except SystemExit as stop:
        return _code_of(stop.code)
    return 0


def _code_of(asked: object) -> int:
    """Return the exit code that Python gives a process for a SystemExit's argument."""
    if asked is None:
        return 0
    if isinstance(asked, int):
        return asked & 0xFF if -(1 << 63) <= asked < 1 << 63 else 0xFF
    _say(f"{asked}\n")
    return 1


def _surface_errors() -> None:
    """Report errors of launches that were never waited for (see runtime._at_exit)."""
    runtime = sys.modules.get("gpushmem.runtime")
    if runtime is not None:
        runtime.settle()


def _report(job: Job, error: BaseException) -> None:
    """Print the traceback of the first PE that fails; one line for the errors of other PEs.

    Errors that only say that the job is over are skipped: the launcher has reported the cause. One
    of a process that the PE has forked is printed, and is none of the job's.
    """
    board = job.board
    shown = error.with_traceback(of_the_script(error))
    lines = "".join(traceback.format_exception(shown))
    if forks.is_child():
        _say(lines)
        return
    first = not isinstance(error, VERDICTS) and board.claim(
        FAILED, job.my_pe, reason_of(error), lines
    )
    if not first and str(error) == str(board.error()):
        return
    if not first:
        last = traceback.format_exception_only(error)[-1].strip()
        text = f"gpushmem: PE {job.my_pe} also failed: {last}\n"
    else:
        heading = f"gpushmem: PE {job.my_pe} failed:\n" if job.n_pes > 1 else ""
        text = heading + lines + where_to_read_on(error)
    with suppress(Exception):  # full disk, closed: still print the text below
        sys.stdout.flush()
    _say(text)


def _say(text: str) -> None:
    """Write to standard error in one piece, so that PEs' texts do not mix; ignores failures."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except Exception:  # noqa: BLE001  (the script's own stream, or none)
        with suppress(OSError):
            os.write(2, text.encode(errors="replace"))


ROOMS = f"start{os.sep}", f"cli{os.sep}", f"explain{os.sep}", "notebook.py"
LAUNCHER = tuple(f"{Path(__file__).parents[2]}{os.sep}{room}" for room in ROOMS)


def of_the_script(error: BaseException) -> TracebackType | None:
    """An error's traceback from the script's first frame on; none if Python could not read it."""
    start = tb = error.__traceback__
    while tb is not None:
        name = tb.tb_frame.f_code.co_filename
        ours = name.startswith((*LAUNCHER, "<frozen ")) or Path(name).name == "runpy.py"
        if not ours:
            return of_the_caller(error, tb)
        tb = tb.tb_next
    return None if isinstance(error, SyntaxError) else start


def _wind_up(code: int) -> int:
    """Do the interpreter's exit steps: threads, exit handlers, buffers. Ctrl-C ends a step."""
    interrupts: list[object] = []
    previous = sys.unraisablehook

    def note(what: Any) -> None:
        """Note an interrupted exit handler; the remaining ones still run."""
        (interrupts.append if issubclass(what.exc_type, KeyboardInterrupt) else previous)(what)

    sys.unraisablehook = note
    steps: Any = threading
    for step in (steps._shutdown, atexit._run_exitfuncs):
        try:
            step()
        except KeyboardInterrupt as interrupt:
            interrupts.append(interrupt)
    code = INTERRUPTED if interrupts else code
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except (OSError, ValueError):  # broken pipe; closed
            code = code or 1
    return code
