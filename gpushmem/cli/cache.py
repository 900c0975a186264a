"""`gpushmem cache`: the store of compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from gpushmem.cli.text import columns
from gpushmem.errors import ShmemError
from gpushmem.size import format_size

__all__ = ["command"]

T = TypeVar("T")


@click.group("cache", invoke_without_command=True, short_help="Show or clear the compiled code.")
@click.pass_context
def command(context: click.Context) -> None:
    """Show where compiled code is kept, and how much of it.

    GPUSHMEM_CACHE_DIR sets the folder, GPUSHMEM_CACHE_SIZE the limit. GPUSHMEM_CACHE=0 keeps
    nothing.
    """
    from gpushmem import code_store, settings  # noqa: PLC0415  (not for --help)

    if context.invoked_subcommand is None:
        entries, nbytes = _tried(code_store.contents)
        limit = _tried(lambda: settings.get("GPUSHMEM_CACHE_SIZE"))
        rows = [
            ("folder", str(code_store.folder())),
            ("entries", str(entries)),
            ("bytes", f"{nbytes} ({format_size(nbytes)})"),
            ("limit", f"{limit} ({format_size(limit)})"),
        ]
        click.echo("\n".join(columns(rows)))


@command.command("clear", short_help="Delete all compiled code.")
def clear() -> None:
    """Delete all compiled code. Programs that run keep what they have loaded."""
    from gpushmem import code_store  # noqa: PLC0415

    entries, nbytes = _tried(code_store.clear)
    click.echo(f"deleted {entries} entries, {format_size(nbytes)}, from {code_store.folder()}")


def _tried(call: Callable[[], T]) -> T:
    try:
        return call()
    except (OSError, ShmemError) as error:
        raise click.ClickException(str(error)) from None
