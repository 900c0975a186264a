"""Errors of kernels that do not compile because of one call.

Numba adds everything it tried to an error. The message of a `Refused` is shown alone, with the
line of the call. Numba makes new errors from an error's text, so the message is found again between
two MARKs.
"""

from __future__ import annotations

import re

from numba.core.errors import TypingError as CoreTypingError
from numba.cuda.core import errors

__all__ = ["KernelTypingError", "Refused", "as_kernel_error"]

MARK = "\u2060"  # has no width, should it be shown
SOURCE = re.compile(r'\nFile "[^\n]*", line \d+:\n(?:.*?\n *\^|<source missing[^\n]*)', re.DOTALL)


class Refused(errors.TypingError):
    """An error in a kernel whose message is shown to the user unchanged."""

    def __init__(self, text: str) -> None:
        super().__init__(f"{MARK}{text}{MARK}", highlighting=False)


class KernelTypingError(errors.TypingError, CoreTypingError):
    """A kernel that cannot be typed; caught as Numba's error and as numba-cuda's."""


def as_kernel_error(error: errors.TypingError) -> KernelTypingError:
    """The error as shown to the user: the `Refused` message, and the innermost known line."""
    text = str(error)
    _, marked, rest = text.partition(MARK)
    if marked:
        refused, _, rest = rest.partition(MARK)
        source = SOURCE.search(rest)
        text = refused + ("\n" + source[0] if source else "")
    return KernelTypingError(text, highlighting=False)
