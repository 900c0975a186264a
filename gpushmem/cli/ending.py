"""How a command ends that has run a program."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from typing import NoReturn

__all__ = ["leave"]


def leave(code: int) -> NoReturn:
    """End the process without the interpreter's teardown, which would take a second."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # broken pipe; closed
            if stream is not None:
                stream.flush()
    os._exit(code)
