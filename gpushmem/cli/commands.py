"""The subcommands of `gpushmem`, each in a file of its name."""

from __future__ import annotations

import importlib

import click

from gpushmem import __version__

__all__ = ["group"]

COMMANDS = (
    "cache", "compile", "doctor", "explain", "help", "info", "inspect", "ps", "run", "sim", "trace",
)  # fmt: skip


class _Lazy(click.Group):
    """A group that imports its commands on use, so that `--help` is fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"gpushmem.cli.{cmd_name}").command
        return command


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpushmem")
def group() -> None:
    """Run and inspect programs whose GPU kernels communicate."""
