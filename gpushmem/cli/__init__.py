"""The `gpushmem` command."""

from __future__ import annotations

import os
import signal
import sys

from gpushmem.job.descriptors import fill_standard

__all__ = ["main"]

INTERRUPTED = 128 + signal.SIGINT


def main(command: str = "") -> None:
    """Run the command, or this subcommand of it.

    Until PEs are running, Ctrl-C ends the process at once and silently.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    fill_standard()
    from gpushmem.cli.commands import group  # noqa: PLC0415  (takes a moment)

    args = [command, *sys.argv[1:]] if command else None
    group(args, prog_name="gpushmem")
