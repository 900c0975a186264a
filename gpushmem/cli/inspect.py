"""`gpushmem inspect JOB`: show what each PE of a running job is doing, without stopping it."""

from __future__ import annotations

import click

from gpushmem.cli.patience import give_up_after
from gpushmem.errors import ShmemError

__all__ = ["command"]

LONGEST = 60.0  # seconds


@click.command("inspect", short_help="Show what each PE of a running job is doing.")
@click.option("--stacks", is_flag=True, help="Include the Python stacks of all PEs.")
@click.argument("job", type=int)
def command(job: int, stacks: bool) -> None:
    """Show what each PE of JOB is doing, and which PEs wait for each other; the job continues.

    JOB is a number from `gpushmem ps`, or the pid of a PE.
    """
    from gpushmem.diagnosis.jobs import inspect  # noqa: PLC0415

    give_up_after(LONGEST)
    try:
        click.echo(inspect(job, stacks), nl=False)
    except ShmemError as error:
        raise click.ClickException(str(error)) from error
