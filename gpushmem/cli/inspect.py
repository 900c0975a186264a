"""`gpushmem inspect JOB`: show what each PE of a running job is doing, without stopping it."""

from __future__ import annotations

import signal
from typing import Any

import click

from gpushmem.cli.help_layout import Command
from gpushmem.cli.time_limit import give_up_after
from gpushmem.errors import ShmemError

__all__ = ["command"]

LONGEST = 60.0  # seconds


@click.command(
    "inspect",
    cls=Command,
    examples=["gpushmem inspect --live 12345"],
    short_help="Show what each PE of a running job is doing.",
)
@click.option("--stacks", is_flag=True, help="Include the Python stacks of all PEs.")
@click.option("--live", is_flag=True, help="Go on showing it, up to twice a second.")
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
    from rich.live import Live  # noqa: PLC0415

    from gpushmem.diagnosis.jobs import follow  # noqa: PLC0415

    console = Console()
    if not console.is_terminal:
        raise click.UsageError("--live needs a terminal: leave it out for one report")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # to show the cursor again
    with Live(console=console, auto_refresh=False) as display:

        def show(rows: list[Any]) -> None:
            display.update(_table(job, rows, max(console.height - 4, 1)), refresh=True)
            give_up_after(LONGEST)

        give_up_after(LONGEST)
        try:
            follow(job, show)
        except KeyboardInterrupt:
            return
    click.echo(f"job {job} has ended")


def _table(job: int, rows: list[Any], most: int) -> Any:
    """The rows as a table; if they are more than `most`, those that wait come first."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from gpushmem.diagnosis.live import COMPUTING, WAITING  # noqa: PLC0415
    from gpushmem.job.pe_ranges import compact  # noqa: PLC0415

    waiting = sum(row.does == WAITING for row in rows)
    pes = "1 PE" if len(rows) == 1 else f"{len(rows)} PEs"
    title = f"job {job}: {pes}, {waiting} waiting; Ctrl-C ends this, not the job"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("PE", "does", "since", "waited", "for", "what", "line"):
        right = name in ("PE", "since", "waited")
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    if len(rows) > most:
        rows = sorted(rows, key=lambda row: bool(row.does != WAITING))
        table.caption = f"and {len(rows) - most} more PEs"
    colours = {COMPUTING: "green", WAITING: "yellow"}
    for row in rows[:most]:
        table.add_row(
            str(row.pe), Text(row.does, colours.get(row.does, "")),
            "" if row.seconds is None else f"{row.seconds:.1f} s",
            "" if row.waited is None else f"{row.waited:.0%}",
            Text(compact(row.waits_for) if row.waits_for else ""), Text(row.what), Text(row.line),
        )  # fmt: skip
    return table
