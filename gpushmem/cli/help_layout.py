"""Help texts: commands and options in groups, examples at the end, colour where a terminal is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

__all__ = ["Command", "Group"]


class _Text(click.Command):
    """A command with `examples`, lines for the shell, and `groups`: headings and names."""

    def __init__(
        self, *args: Any, examples: Sequence[str] = (),
        groups: Mapping[str, Sequence[str]] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(*args, **options)
        self.examples, self.groups = examples, groups or {}

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        if self.examples:
            with formatter.section(click.style("Examples", bold=True)):
                for line in self.examples:
                    formatter.write(f"{' ' * formatter.current_indent}{line}\n")


class Command(_Text):
    """A command; its groups are of options, and those that are in none are under "Options"."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, group by group."""
        rest = {param.name: param.get_help_record(ctx) for param in self.get_params(ctx)}
        for heading, names in self.groups.items():
            _write(formatter, heading, [rest.pop(name) for name in names])
        _write(formatter, "Options", list(rest.values()))


class Group(_Text, click.Group):
    """A command with commands, of which its groups are."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the commands that a mistyped one may be."""
        if args[0] not in (names := self.list_commands(ctx)):
            from difflib import get_close_matches  # noqa: PLC0415  (for those who mistype)

            if near := get_close_matches(args[0], names, 3, 0.5):
                ctx.fail(f"No such command {args[0]!r}: did you mean {' or '.join(near)}?")
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, then the commands, group by group."""
        _write(formatter, "Options", [param.get_help_record(ctx) for param in self.get_params(ctx)])
        for heading, names in (self.groups or {"Commands": self.list_commands(ctx)}).items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            rows = [(name, each.get_short_help_str(200)) for name, each in commands if each]
            _write(formatter, heading, rows)


def _write(
    formatter: click.HelpFormatter, heading: str, rows: Sequence[tuple[str, str] | None]
) -> None:
    shown = [(click.style(row[0], fg="cyan"), row[1]) for row in rows if row is not None]
    if shown:
        with formatter.section(click.style(heading, bold=True)):
            formatter.write_dl(shown)
