"""How a command ends that has run a program."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

import click

if TYPE_CHECKING:
    from gpushmem.check.command import Findings

__all__ = ["leave", "show"]


def show(found: Findings, form: str) -> None:
    """Print what the checker has found: text on standard error, data on standard output."""
    if text := found.text():
        click.echo(text.rstrip(), err=form == "text")
    for line in found.remarks():
        click.echo(f"gpushmem check: {line}", err=True)


def leave(code: int) -> NoReturn:
    """End the process without the interpreter's teardown, which would take a second."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # broken pipe; closed
            if stream is not None:
                stream.flush()
    os._exit(code)
