"""`gpushmem sim`: run a program of numba.cuda on this machine's cores."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import click

from gpushmem import settings, simulator
from gpushmem.cli.exit_codes import leave, show
from gpushmem.cli.help_layout import Command
from gpushmem.errors import ShmemError
from gpushmem.start.launch.pe import of_the_script, status
from gpushmem.start.launch.program import Program

__all__ = ["command"]


@click.command(
    "sim", cls=Command,
    examples=[
        "gpushmem sim program.py", "gpushmem sim --gpu a100 -m pytest",
        "gpushmem sim --interpret program.py  # breakpoint() stops in a kernel",
    ],
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="Run a program of numba.cuda on this machine's cores, without a GPU.",
)  # fmt: skip
@click.option(
    "--gpu", type=click.Choice(settings.GPUS),
    help="The GPU whose limits there are.  [default: GPUSHMEM_SIM_GPU, or h100]",
)  # fmt: skip
@click.option(
    "--devices", type=click.IntRange(1, settings.MOST),
    help="How many GPUs there are.  [default: GPUSHMEM_SIM_DEVICES, or 1]",
)  # fmt: skip
@click.option(
    "--threads", type=click.IntRange(1, settings.MOST),
    help="Cores that kernels use.  [default: GPUSHMEM_THREADS, or all]",
)  # fmt: skip
@click.option(
    "--check", is_flag=True,
    help="Find races, accesses out of bounds, unwritten memory, divergent barriers; exit with "
    "code 66 if there are any.",
)  # fmt: skip
@click.option(
    "--interpret", is_flag=True,
    help="Run kernels as plain Python: breakpoint() and pdb stop in them, coverage.py counts "
    "their lines.",
)  # fmt: skip
@click.option(
    "--check-format", type=click.Choice(["text", "json", "sarif"]), default="text",
    help="How --check reports.  [default: text]",
)  # fmt: skip
@click.option(
    "--check-ignore", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File of known problems that --check is not to report.",
)  # fmt: skip
@click.option("-m", "module", help="Run a module, as python -m does, instead of a script.")
@click.option("-c", "code", help="Run this code, as python -c does.")
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def command(
    gpu: str | None,
    devices: int | None,
    threads: int | None,
    check: bool,
    interpret: bool,
    check_format: str,
    check_ignore: Path | None,
    module: str | None,
    code: str | None,
    args: tuple[str, ...],
) -> None:
    """Run SCRIPT as python does, with numba.cuda on this machine's cores; args are passed to it.

    The exit code is that of SCRIPT. Processes that it starts are simulated, too: GPUSHMEM_SIM=1 is
    set for them.
    """
    if module is not None and code is not None:
        raise click.UsageError("-m and -c: choose one of them")
    if check and interpret:
        raise click.UsageError("--check and --interpret: choose one; only compiled code is checked")
    kind, words = "script", args
    if module is not None:
        kind, words = "module", (module, *args)
    elif code is not None:
        kind, words = "code", (code, *args)
    try:
        settings.check()
        target = Program(kind, words).target()
        if threads is not None:
            settings.put("GPUSHMEM_THREADS", threads)
        if interpret:
            settings.put("GPUSHMEM_SIM_INTERPRET", 1)
        if not check:
            simulator.enable(gpu, devices)
            sys.exit(_run(target))
    except ShmemError as error:
        raise click.UsageError(str(error)) from None
    from gpushmem.check import command as checker  # noqa: PLC0415  (for those who check)

    def checked() -> None:
        simulator.enable(gpu, devices)
        target()

    found = checker.Findings(checker.Known(check_ignore), check_format)
    ended = checker.run_often(lambda: _in_child(checked), 1, None, found)
    show(found, check_format)
    leave(checker.EXIT_CODE if found.problems else ended)


def _run(target: Callable[[], object]) -> int:
    """Run a program as python would; returns its exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return status(target)
    except BaseException as error:  # noqa: BLE001
        sys.last_type = type(error)  # as the interpreter does
        error.__traceback__ = of_the_script(error)
        sys.excepthook(type(error), error, error.__traceback__)
        return 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1


def _in_child(target: Callable[[], object]) -> int:
    """Run a program in a process of its own; returns its exit code, as a shell's."""
    child = os.fork()
    if child == 0:
        leave(_run(target))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the program's
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code
