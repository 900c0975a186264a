"""`gpushmem run`: start PEs on this machine and run a script, or a module, in each."""

from __future__ import annotations

import atexit
import importlib.util
import io
import os
import runpy
import sys
import types
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import click

from gpushmem import settings
from gpushmem.errors import ArgumentError, ShmemError
from gpushmem.size import parse_size

__all__ = ["command"]


class _Size(click.ParamType):  # type: ignore[type-arg]
    name = "size"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_size(value)
        except ArgumentError as error:
            self.fail(str(error), param, ctx)


@click.command(
    "run",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="Start PEs on this machine and run a script in each.",
)
@click.option("-n", "n_pes", type=click.IntRange(min=1), help="Number of PEs.  [default: 1]")
@click.option(
    "--hosts",
    help="Hosts to start PEs on with mpirun or srun, and how many, such as node1:4,node2:4.",
)
@click.option(
    "--heap-size", type=_Size(), help="Symmetric heap of each PE, such as 256M.  [default: 1G]"
)
@click.option(
    "--threads-per-pe",
    type=click.IntRange(min=1),
    help="Cores for each PE's kernels.  [default: GPUSHMEM_THREADS, or an equal part of them]",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End the job, with a report, when a host has waited so long in one call.",
)
@click.option("--tag-output", is_flag=True, help="Prefix each line of output with its PE.")
@click.option("--verbose", is_flag=True, help="Say how the PEs found each other.")
@click.option("-m", "module", help="Run a module, as python -m does, instead of a script.")
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def command(
    n_pes: int | None,
    hosts: str | None,
    heap_size: int | None,
    threads_per_pe: int | None,
    timeout: float | None,
    tag_output: bool,
    verbose: bool,
    module: str | None,
    args: tuple[str, ...],
) -> None:
    """Start PEs on this machine and run SCRIPT in each; what follows SCRIPT is its own.

    The exit code is that of the first PE that fails. Standard input goes to PE 0, unless it is a
    terminal.
    """
    _check_settings()
    target = _module(module, args) if module else _script(args)
    if hosts is not None:
        asked = {
            "GPUSHMEM_HEAP_SIZE": heap_size,
            "GPUSHMEM_THREADS": threads_per_pe,
            "GPUSHMEM_TIMEOUT": timeout,
            "GPUSHMEM_VERBOSE": "1" if verbose else None,
        }
        program = [sys.executable, *(("-m", module) if module else ()), *args]
        _hand_over(hosts, n_pes, program, asked, tag_output)
    n_pes = n_pes or 1
    if verbose:
        settings.put("GPUSHMEM_VERBOSE", 1)
    from gpushmem import runtime  # noqa: PLC0415  (heavy: not for usage errors)
    from gpushmem.launch import local  # noqa: PLC0415

    try:
        runtime.asked_backend()
        local.preload(n_pes)
        outcome = local.launch(
            n_pes, target, heap_size=heap_size, tag_output=tag_output,
            threads_per_pe=threads_per_pe, timeout=timeout,
        )  # fmt: skip
    except ShmemError as error:
        raise click.ClickException(str(error)) from error
    summary = outcome.summary()
    if summary and (n_pes > 1 or outcome.code > 128):
        click.echo(f"gpushmem: {summary}", err=True)
    _leave(outcome.code)


def _leave(code: int) -> NoReturn:
    """End this process at once: taking the compiler apart would take it a second."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # nobody reads any more
            stream.flush()
    os._exit(code)


def _check_settings() -> None:
    """Refuse bad environment variables here, rather than in every PE with a traceback."""
    try:
        settings.check()
    except ArgumentError as error:
        raise click.ClickException(str(error)) from None


def _hand_over(
    hosts: str, n_pes: int | None, program: list[str], asked: dict[str, Any], tag_output: bool
) -> NoReturn:
    from gpushmem.launch import hosts as launcher  # noqa: PLC0415  (seldom needed)

    try:
        launcher.hand_over(launcher.parse(hosts, n_pes), program, asked, tag_output)
    except ShmemError as error:
        raise click.UsageError(str(error)) from None


def _script(args: tuple[str, ...]) -> Callable[[], None]:
    """What runs a script in a PE; usage errors are raised here, before any PE is started."""
    if not args:
        raise click.UsageError("give a script to run, or -m and a module")
    path = Path(args[0])
    if path.is_dir():
        if not (path / "__main__.py").exists():
            raise click.UsageError(f"{args[0]} is a directory without a __main__.py")
        return _as_python(args, lambda: runpy.run_path(args[0], run_name="__main__"))
    if not path.exists():
        raise click.UsageError(f"script {args[0]} does not exist (current directory: {Path.cwd()})")
    if not os.access(path, os.R_OK):
        raise click.UsageError(f"script {args[0]} cannot be read")
    with io.open_code(str(path)) as file:
        source = file.read()

    def run() -> None:
        sys.path.insert(0, str(path.resolve().parent))
        main = types.ModuleType("__main__")
        main.__dict__.update(__file__=args[0], __builtins__=__builtins__)
        sys.modules["__main__"] = main  # so that what the script defines can be pickled
        exec(compile(source, args[0], "exec"), main.__dict__)  # noqa: S102

    return _as_python(args, run)


def _module(name: str, args: tuple[str, ...]) -> Callable[[], None]:
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise click.UsageError(f"there is no module {name}")
    run = lambda: runpy.run_module(name, run_name="__main__", alter_sys=True)  # noqa: E731
    return _as_python((found.origin or name, *args), run)


def _as_python(argv: tuple[str, ...], run: Callable[[], object]) -> Callable[[], None]:
    def target() -> None:
        sys.argv[:] = argv
        run()

    return target
