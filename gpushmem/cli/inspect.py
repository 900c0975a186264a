"""`gpushmem inspect JOB`: show what each PE of a running job is doing, without stopping it."""

from __future__ import annotations

import signal
import time
from typing import Any

import click

from gpushmem.cli.patience import give_up_after
from gpushmem.errors import ArgumentError, ShmemError

__all__ = ["command"]

LONGEST = 60.0  # seconds
PAUSE = 0.5  # seconds between two looks


@click.command("inspect", short_help="Show what each PE of a running job is doing.")
@click.option("--stacks", is_flag=True, help="Include the Python stacks of all PEs.")
@click.option("--live", is_flag=True, help="Go on showing it, twice a second, until Ctrl-C.")
@click.argument("job", type=int)
def command(job: int, stacks: bool, live: bool) -> None:
    """Show what each PE of JOB is doing, and which PEs wait for each other; the job continues.

    JOB is a number from `gpushmem ps`, or the pid of a PE.
    """
    from gpushmem.diagnosis.jobs import inspect  # noqa: PLC0415

    if live and stacks:
        raise click.UsageError("--stacks is not shown live: leave --live out")
    try:
        if live:
            _follow(job)
            return
        give_up_after(LONGEST)
        click.echo(inspect(job, stacks), nl=False)
    except ShmemError as error:
        raise click.ClickException(str(error)) from error


def _follow(job: int) -> None:
    """Show the job until it ends, or Ctrl-C."""
    from rich.console import Console  # noqa: PLC0415  (not for --help)
    from rich.live import Live as Display  # noqa: PLC0415

    from gpushmem.diagnosis.jobs import jobs, look  # noqa: PLC0415
    from gpushmem.diagnosis.live import Live  # noqa: PLC0415

    console, live = Console(), Live()
    if not console.is_terminal:
        raise click.UsageError("--live needs a terminal: leave it out for one report")
    rows = look(job, live)  # an error that there is no such job is the command's
    signal.signal(signal.SIGINT, signal.default_int_handler)  # to show the cursor again
    try:
        with Display(_table(job, rows), console=console, auto_refresh=False) as display:
            while True:
                time.sleep(PAUSE)
                display.update(_table(job, look(job, live)), refresh=True)
    except ArgumentError:
        if any(job in (found.number, *found.processes) for found in jobs()):
            raise
        click.echo(f"job {job} has ended")
    except KeyboardInterrupt:
        pass


def _table(job: int, rows: list[Any]) -> Any:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from gpushmem.diagnosis.live import COMPUTING, WAITING  # noqa: PLC0415
    from gpushmem.job.pes import compact  # noqa: PLC0415

    waiting = sum(row.does == WAITING for row in rows)
    title = f"job {job}: {len(rows)} PEs, {waiting} waiting; Ctrl-C ends this, not the job"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("PE", "does", "since", "waited", "for", "what", "line"):
        right = name in ("PE", "since", "waited")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    colours = {COMPUTING: "green", WAITING: "yellow"}
    for row in rows:
        table.add_row(
            str(row.pe), Text(row.does, colours.get(row.does, "")),
            "" if row.seconds is None else f"{row.seconds:.1f} s",
            f"{row.waited:.0%}", compact(row.waits_for) if row.waits_for else "",
            Text(row.what), Text(row.line),
        )  # fmt: skip
    return table
