"""`gpushmem completion SHELL`: what a shell reads to complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from gpushmem.cli.help_layout import Command

__all__ = ["command"]

SHELLS = "bash", "zsh", "fish"


@click.command(
    "completion", cls=Command,
    short_help="Print what a shell needs to complete commands and options.",
    examples=[
        'eval "$(gpushmem completion bash)"  # in ~/.bashrc',
        'eval "$(gpushmem completion zsh)"   # in ~/.zshrc',
        "gpushmem completion fish > ~/.config/fish/completions/gpushmem.fish",
    ],
)  # fmt: skip
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print a script with which SHELL completes the commands and options of gpushmem."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "gpushmem", "_GPUSHMEM_COMPLETE").source())
