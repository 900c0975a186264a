"""What other processes say of themselves, fit to be printed: nothing in it moves a terminal."""

from __future__ import annotations

from typing import Any

__all__ = ["plain", "plain_data", "plain_lines"]

LONGEST = 10_000  # characters of a text in an account


def plain(text: str) -> str:
    """The text, with what cannot be printed as escapes: an ESC is seen, and does nothing."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def plain_lines(text: str) -> str:
    """The same of a text of several lines."""
    return "\n".join(plain(line) for line in text.expandtabs().split("\n"))


def plain_data(data: Any) -> Any:
    """The same of all texts in what JSON can say; `stacks` have lines."""
    if isinstance(data, dict):
        return {
            plain(key): [plain_lines(str(stack)) for stack in value]
            if key == "stacks"
            else plain_data(value)
            for key, value in data.items()
        }
    if isinstance(data, list):
        return [plain_data(value) for value in data]
    return plain(data[:LONGEST]) if isinstance(data, str) else data
