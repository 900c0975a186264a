"""Who waits on this PE, for people: printed on SIGUSR1, and when Ctrl-C ends a wait."""

from __future__ import annotations

import ctypes
import faulthandler
import signal
import sys
import time
from typing import Any

import numpy as np

from gpushmem.backends.cpu.collectives import MEMBER
from gpushmem.backends.cpu.hostcalls import ON_THE_HOST
from gpushmem.backends.cpu.meeting import Meeting
from gpushmem.ops.constants import COMPARISONS
from gpushmem.simt.kernel import running
from gpushmem.simt.primitives import LANE_MEETING, MEETING, POLLING
from gpushmem.simt.waits import Wait, unstarted, waits

__all__ = ["install", "lines", "uninstall"]

MOST = 20  # lines for one PE; the rest is counted


def lines(pe: int, meeting: Meeting) -> list[str]:
    """One line for each thing this PE waits for; threads that wait alike share a line."""
    found = []
    if meeting.waiting is not None:
        what, since, *_ = meeting.waiting
        missing = ", ".join(f"PE {pe}" for pe in meeting.missing())
        found.append(f"host, in {what}, waits for {missing}, for {time.monotonic() - since:.1f} s")
    # Threads of a block that wait at one line for one thing differ only by their numbers.
    alike: dict[tuple[Any, ...], list[Wait]] = {}
    records = waits()
    for wait in records:
        alike.setdefault((wait.kernel, wait.block, wait.site, _condition(wait)), []).append(wait)
    for (kernel, block, site, condition), group in alike.items():
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        who = f"kernel {kernel}, block {block}, thread {group[0].thread}{more}, {site}"
        if kernel.endswith(ON_THE_HOST):
            who = "host"
        found.append(f"{who}: {condition}, for {group[0].seconds:.1f} s")
    quiet = {launch.name for launch in list(running)} - {wait.kernel for wait in records}
    found += [f"kernel {name} is running, and none of its threads waits" for name in quiet]
    for kernel, resident, rest in unstarted():
        found.append(
            f"kernel {kernel}: {rest} blocks start only when one of {resident} resident ones ends"
        )
    shown = found[:MOST]
    if len(found) > MOST:
        shown.append(f"... and {len(found) - MOST} more")
    return [f"PE {pe}: {line}" for line in shown] or [f"PE {pe}: waits for nothing in gpushmem"]


def _condition(wait: Wait) -> str:
    if wait.compare == MEETING:
        return f"{wait.what}, {wait.wanted} threads have to arrive"
    if wait.compare == LANE_MEETING:
        return f"{wait.what}, the lanes of mask {wait.wanted:#x} have to arrive"
    if wait.compare == MEMBER:
        return f"{wait.what}, waits for PE {wait.wanted}"
    if wait.address == 0:
        return f"is in {wait.what}"
    number = np.dtype(f"{'i' if wait.width < 0 else 'u'}{abs(wait.width)}")
    buffer = (ctypes.c_char * number.itemsize).from_address(wait.address)
    seen = np.frombuffer(memoryview(buffer), number)[0]
    if wait.compare == POLLING:
        return f"polls with {wait.what} at {wait.address:#x}, sees {seen}"
    wanted = wait.wanted if wait.width < 0 else wait.wanted % 2**64
    sign = COMPARISONS.get(wait.compare, "?")
    return f"{wait.what} at {wait.address:#x} {sign} {wanted}, sees {seen}"


_previous: dict[int, Any] = {}


def install(pe: int, meeting: Meeting) -> None:
    """Print the report on SIGUSR1 (with Python's stacks) and before a KeyboardInterrupt."""

    def report() -> None:
        # In one piece: the PEs write to one terminal.
        sys.stderr.write("".join(f"{line}\n" for line in lines(pe, meeting)))
        sys.stderr.flush()

    def on_usr1(number: int, frame: Any) -> None:
        report()
        faulthandler.dump_traceback(all_threads=True)

    def on_interrupt(number: int, frame: Any) -> None:
        if meeting.waiting or waits():
            report()
        signal.default_int_handler(number, frame)

    try:
        faulthandler.unregister(signal.SIGUSR1)
        if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
            _previous[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, on_usr1)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            _previous[signal.SIGINT] = signal.signal(signal.SIGINT, on_interrupt)
    except ValueError:
        pass  # init() outside the main thread: signals are somebody else's


def uninstall() -> None:
    """Put the signal handlers back."""
    while _previous:
        number, handler = _previous.popitem()
        signal.signal(number, handler)
