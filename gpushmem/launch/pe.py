"""What runs in a PE that we have started: its surroundings, its target, and how it ends."""

from __future__ import annotations

import _thread
import atexit
import ctypes
import faulthandler
import os
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

from gpushmem.errors import Deadlock, PeerFailed, WaitTimeout
from gpushmem.job.board import FAILED
from gpushmem.job.ending import note_failure, reason_of
from gpushmem.job.job import Job, adopt
from gpushmem.launch.output import Ends, Pipes

__all__ = ["HELD", "run"]

PR_SET_PDEATHSIG = 1
INTERRUPTED = 128 + signal.SIGINT
# Signals that are held back, here and in the launcher, until a PE can do with them as it should.
HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
VERDICTS = (PeerFailed, Deadlock, WaitTimeout)


def run(
    job: Job, target: Callable[[], object], parent: int, group: int, pipes: Ends | None,
    copy: bool = True,
) -> NoReturn:  # fmt: skip
    """Be a PE: run `target()` and end the process with its exit code.

    The code is 0, that of a SystemExit, 1 for an exception, 130 for Ctrl-C; whether anything can
    be printed is of no consequence. The first PE to fail shows its traceback. `group` is the
    process group to join (0: a new one), `pipes` are for what is printed (None: nothing to be
    done). `copy` says that this process is one of the launcher.
    """
    code = 1
    try:
        if pipes is not None:
            Pipes.redirect(pipes)
        os.setpgid(0, group)
        if copy:
            _forget()
        _settle(job, parent)
        code = _exit_code(job, target)
        if code:
            note_failure()
        code = _wind_up(code)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BaseException:  # noqa: BLE001  (there is nobody else to say it)
        _say(traceback.format_exc())
        code = code or 1
    finally:
        os._exit(code)


def _settle(job: Job, parent: int) -> None:
    """Die with the launcher, and have the signals, the input and the board of a PE."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call
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
    _ = job.board  # mapped now: later its descriptor might get the number of one the script closed
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)


def _forget() -> None:
    """Drop what belongs to the launcher."""
    signal.set_wakeup_fd(-1)
    atexit._clear()


def _keep_interrupts(previous: Callable[[Any], object]) -> Callable[[Any], object]:
    """A hook for what is raised where nothing can be, such as `__del__`: Ctrl-C comes again."""
    main = threading.main_thread().ident or 0

    def again() -> None:
        time.sleep(0.01)  # from within the hook it would be lost as well
        signal.pthread_kill(main, signal.SIGINT)

    def hook(what: Any) -> None:
        if issubclass(what.exc_type, KeyboardInterrupt):
            _thread.start_new_thread(again, ())
        else:
            previous(what)

    return hook


def _exit_code(job: Job, target: Callable[[], object]) -> int:
    try:
        code = _status(target)
        if code == 0:
            _surface_errors()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BaseException as error:  # noqa: BLE001  (whatever ends a script is reported)
        with suppress(Exception):
            _report(job, error)
        return 1
    return code


def _status(target: Callable[[], object]) -> int:
    """The exit code that a script asks for."""
    try:
        target()
    except SystemExit as stop:
        return _code_of(stop.code)
    return 0


def _code_of(asked: object) -> int:
    """The code that Python itself gives a process for what a SystemExit has."""
    if asked is None:
        return 0
    if isinstance(asked, int):
        return asked & 0xFF if -(1 << 63) <= asked < 1 << 63 else 0xFF
    _say(f"{asked}\n")
    return 1


def _surface_errors() -> None:
    """Make errors of launches nobody waited for count as the script's (see runtime._at_exit)."""
    runtime = sys.modules.get("gpushmem.runtime")
    if runtime is not None:
        runtime.settle()


def _report(job: Job, error: BaseException) -> None:
    """Show the traceback of the first PE that fails, one line for others with errors of their own.

    What only says that the job is over has been said, by the launcher.
    """
    board = job.board
    first = not isinstance(error, VERDICTS) and board.claim(FAILED, job.my_pe, reason_of(error))
    if not first and str(error) == str(board.error()):
        return
    if not first:
        last = traceback.format_exception_only(error)[-1].strip()
        text = f"gpushmem: PE {job.my_pe} also failed: {last}\n"
    else:
        heading = f"gpushmem: PE {job.my_pe} failed:\n" if job.n_pes > 1 else ""
        shown = error.with_traceback(_of_the_script(error.__traceback__))
        text = heading + "".join(traceback.format_exception(shown))
    with suppress(Exception):  # a full disk, closed: what follows matters more
        sys.stdout.flush()
    _say(text)


def _say(text: str) -> None:
    """Write to standard error, in one piece, so that PEs' texts do not mix; if it can be done."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except Exception:  # noqa: BLE001  (the script's own stream, or none)
        with suppress(OSError):
            os.write(2, text.encode(errors="replace"))


LAUNCHER = tuple(str(Path(__file__).parent.parent / room) + os.sep for room in ("launch", "cli"))


def _of_the_script(tb: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames that led to the script."""
    start = tb
    while tb is not None:
        name = tb.tb_frame.f_code.co_filename
        if not name.startswith((*LAUNCHER, "<frozen runpy")):
            return tb
        tb = tb.tb_next
    return start


def _wind_up(code: int) -> int:
    """What the interpreter does at its end: threads, exit handlers, buffers. Ctrl-C ends a step."""
    interrupts: list[object] = []
    previous = sys.unraisablehook

    def note(what: Any) -> None:
        """An exit handler was interrupted: those that are left do their work."""
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
        except (OSError, ValueError):  # nobody reads any more
            code = code or 1
    return code
