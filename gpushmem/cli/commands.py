"""The subcommands of `gpushmem`, each in a file of its name."""

from __future__ import annotations

import importlib

import click

from gpushmem import __version__
from gpushmem.cli.help_layout import Group

__all__ = ["group"]

# Headings of the help, and their commands.
GROUPS = {
    "Run": ("new", "run", "sim"),
    "Look at what runs": ("ps", "inspect", "trace", "explain"),
    "Compile": ("compile", "cache"),
    "Help": ("help", "info", "doctor", "completion"),
}
COMMANDS = tuple(name for names in GROUPS.values() for name in names)
EXAMPLES = (
    "gpushmem run -n 4 program.py            # on 4 PEs of this machine",
    "gpushmem run -n 4 --check program.py    # and find its races",
    "gpushmem run -n 4 --trace out program.py && gpushmem trace open out",
    "gpushmem compile --arch sm_90 program.py",
)


class _Lazy(Group):
    """A group that imports its commands on use, so that a command starts fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"gpushmem.cli.{cmd_name}").command
        return command


@click.group(
    cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]}, groups=GROUPS,
    examples=EXAMPLES,
)  # fmt: skip
@click.version_option(__version__, prog_name="gpushmem")
def group() -> None:
    """Run and inspect programs whose GPU kernels communicate."""
