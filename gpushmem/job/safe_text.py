"""Makes text from other processes safe to print: control characters become escapes."""

from __future__ import annotations

from typing import Any

__all__ = ["plain", "plain_data", "plain_lines"]

LONGEST = 10_000  # limit on the characters of a text in an account


def plain(text: str) -> str:
    """Replace characters that are not printable by escapes: an ESC is shown, and has no effect."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def plain_lines(text: str) -> str:
    """As `plain`, for a text of several lines."""
    return "\n".join(plain(line) for line in text.expandtabs().split("\n"))


def plain_data(data: Any) -> Any:
    """As `plain`, for all texts in JSON data; `stacks` may have several lines."""
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
