"""Errors of kernels that do not compile because of one call.

Numba adds everything it tried to an error. The message of a `Refused` is shown alone, with the
line of the call. Numba makes new errors from an error's text, so the message is found again between
two MARKs.
"""

from __future__ import annotations

import dis
import linecache
import re
from collections.abc import Callable
from typing import Any

from numba.core.errors import TypingError as CoreTypingError
from numba.cuda.core import errors

import gpushmem.errors as public
from gpushmem.source_lines import number_at

__all__ = ["KernelTypingError", "Refused", "as_kernel_error"]

MARK = "\u2060"  # has no width, should it be shown
SOURCE = re.compile(r'\nFile "[^\n]*", line \d+:\n(?:.*?\n *\^|<source missing[^\n]*)', re.DOTALL)
CALL = re.compile(r"No implementation of function Function\(.*\) found for signature:\s+>>> (.+)")
LONG = 30  # lines, from which on Numba's message is shortened
UNKNOWN = re.compile(r"NameError: name '(\w+)' is not defined")


class Refused(errors.TypingError):
    """An error in a kernel whose message is shown to the user unchanged."""

    def __init__(self, text: str) -> None:
        super().__init__(f"{MARK}{text}{MARK}", highlighting=False)


class KernelTypingError(errors.TypingError, CoreTypingError, public.KernelTypingError):
    """A kernel that cannot be typed; caught as Numba's error, as numba-cuda's, and as ours."""

    def __init__(self, text: str, whole: str) -> None:
        errors.TypingError.__init__(self, text, highlighting=False)
        self.whole = whole  #: what Numba says, with all that it has tried

    def __reduce__(self) -> tuple[Any, ...]:
        return public.KernelTypingError, (str(self),)


KernelTypingError.__module__ = public.__name__  # as users know it


def as_kernel_error(error: errors.TypingError, py_func: Callable[..., Any]) -> KernelTypingError:
    """The error as shown to the user: the `Refused` message, and the innermost known line.

    Numba tells no line of a name that is not defined: it is looked for in the kernel. Of a call for
    which it has tried many implementations, the call is shown, and its line.
    """
    whole = text = str(error)
    _, marked, rest = text.partition(MARK)
    if marked:
        refused, _, rest = rest.partition(MARK)
        source = SOURCE.search(rest)
        text = refused + ("\n" + source[0] if source else "")
    elif (unknown := UNKNOWN.search(text)) and (line := _line_of(unknown[1], py_func)):
        path = py_func.__code__.co_filename
        text = f'{unknown[0]}\n\nFile "{path}", line {line}:\n{linecache.getline(path, line)}'
    elif text.count("\n") > LONG and (call := CALL.search(text)):
        source = SOURCE.search(text)
        text = (
            f"kernels cannot call {call[1]}: Numba has no such function for GPUs, or not for these "
            "types (its reasons are in this error's `whole`)"
        ) + ("\n" + source[0] if source else "")
    return KernelTypingError(text, whole)


def _line_of(name: str, py_func: Callable[..., Any]) -> int | None:
    """The line where a function first uses a global name."""
    for step in dis.get_instructions(py_func):
        if step.opname == "LOAD_GLOBAL" and step.argval == name:
            return number_at(py_func.__code__, step.offset)
    return None
