"""Plain text in 100 columns."""

from __future__ import annotations

import textwrap

__all__ = ["WIDTH", "columns", "wrapped"]

WIDTH = 100


def wrapped(text: str, indent: int) -> list[str]:
    """Wrap the text to lines of at most WIDTH; continuation lines are indented."""
    lead = len(text) - len(text.lstrip())
    return textwrap.wrap(
        text.lstrip(), WIDTH, initial_indent=" " * lead, subsequent_indent=" " * indent,
        break_on_hyphens=False,
    ) or [""]  # fmt: skip


def columns(rows: list[tuple[str, str]]) -> list[str]:
    """Format names and values as two columns."""
    width = max((len(name) for name, _ in rows), default=0)
    return [f"{name:<{width}}  {value}" for name, value in rows]
