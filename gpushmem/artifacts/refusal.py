"""What a kernel that does not compile is told, where one call in it is to blame.

Numba adds to an error all that it tried, and the way to it. `Refused` says enough by itself: who
raises one has it shown with the line in question, and nothing else. On its way up Numba makes new
errors of the old one's text, so that is where it is found again: between two MARKs.
"""

from __future__ import annotations

import re

from numba.core.errors import TypingError as CoreTypingError
from numba.cuda.core import errors

__all__ = ["KernelTypingError", "Refused", "as_kernel_error"]

MARK = "\u2060"  # has no width, should it be seen after all
SOURCE = re.compile(r'\nFile "[^\n]*", line \d+:\n(?:.*?\n *\^|<source missing[^\n]*)', re.DOTALL)


class Refused(errors.TypingError):
    """Something in a kernel that is wrong in itself; the message is for the user as it is."""

    def __init__(self, text: str) -> None:
        super().__init__(f"{MARK}{text}{MARK}", highlighting=False)


class KernelTypingError(errors.TypingError, CoreTypingError):
    """A kernel that cannot be typed; to be caught as Numba's error or as numba-cuda's."""


def as_kernel_error(error: errors.TypingError) -> KernelTypingError:
    """The error as the user gets it: what was refused, and the innermost line known of it."""
    text = str(error)
    _, marked, rest = text.partition(MARK)
    if marked:
        refused, _, rest = rest.partition(MARK)
        source = SOURCE.search(rest)
        text = refused + ("\n" + source[0] if source else "")
    return KernelTypingError(text, highlighting=False)
