"""`gpushmem inspect JOB`: what each PE of a running job does, without stopping it."""

from __future__ import annotations

import click

from gpushmem.cli.patience import give_up_after
from gpushmem.errors import ShmemError

__all__ = ["command"]

LONGEST = 60.0  # seconds


@click.command("inspect", short_help="Say what each PE of a running job does.")
@click.option("--stacks", is_flag=True, help="With the Python stacks of all PEs.")
@click.argument("job", type=int)
def command(job: int, stacks: bool) -> None:
    """Say what each PE of JOB does, and who waits for whom; the job goes on.

    JOB is a number that `gpushmem ps` shows, or the process of a PE.
    """
    from gpushmem.launch.jobs import inspect  # noqa: PLC0415

    give_up_after(LONGEST)
    try:
        click.echo(inspect(job, stacks), nl=False)
    except ShmemError as error:
        raise click.ClickException(str(error)) from error
