"""`gpushmem ps`: list the running jobs of this user on this machine."""

from __future__ import annotations

import click

from gpushmem.cli.time_limit import give_up_after

__all__ = ["command"]

LONGEST = 60.0  # seconds


@click.command("ps", short_help="List your jobs on this machine.")
def command() -> None:
    """List your jobs on this machine, however they were started."""
    from gpushmem.diagnosis.jobs import jobs  # noqa: PLC0415

    give_up_after(LONGEST)
    rows = [("JOB", "PES", "RUNNING", "SECONDS", "COMMAND")] + [
        (str(j.number), str(j.n_pes), str(j.n_running), f"{j.seconds:.0f}", j.command)
        for j in jobs()
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for *numbers, what in rows:
        cells = [cell.rjust(width) for cell, width in zip(numbers, widths, strict=False)]
        click.echo("  ".join([*cells, what]))
