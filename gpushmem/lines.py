"""The lines of the user's program, for reports and errors."""

from __future__ import annotations

import ast
import itertools
import linecache
import sys
from functools import cache, lru_cache
from pathlib import Path
from types import FrameType

__all__ = ["Line", "assigned_name", "line_of", "user_frame", "user_line"]

OURS = ("gpushmem", "threading", "concurrent")  # the latter two: where our waits wait


class Line(str):
    """A line of a source file, as "file.py:12"."""

    __slots__ = ("column", "file", "number")

    file: str  # the whole path
    number: int
    column: int  # where on the line the call begins; -1: not known


def user_line() -> Line:
    """The line being executed outside the library; ready kernels are outside."""
    return line_of(user_frame(sys._getframe(1)))


def user_frame(frame: FrameType) -> FrameType:
    """The innermost frame, from `frame` on, that is outside the library."""
    while frame.f_back is not None and _ours(frame.f_globals.get("__name__") or ""):
        frame = frame.f_back
    return frame


def line_of(frame: FrameType) -> Line:
    """The line that a frame executes."""
    file, number = frame.f_code.co_filename, frame.f_lineno
    line = Line(f"{Path(file).name}:{number}")
    line.file, line.number, line.column = file, number, _column(frame)
    return line


def _column(frame: FrameType) -> int:
    code = frame.f_code
    if not hasattr(code, "co_positions"):  # Python 3.10
        return -1
    column = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None))[2]
    return -1 if column is None else column


def assigned_name(line: Line) -> str | None:
    """What the statement of a line assigns to, None if its source is not there or assigns not."""
    return _assigned_name(line.file, line.number, line.column)


@cache
def _assigned_name(file: str, number: int, column: int) -> str | None:
    tree = _parsed(file)
    found = None
    for node in ast.walk(tree) if tree else ():  # the innermost comes last
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if node.lineno <= number <= (node.end_lineno or 0):
                name = _target_of((number, column), target, node.value)
                found = ast.unparse(name).strip("()")
    return found


@lru_cache(maxsize=4)
def _parsed(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


def _target_of(call_at: tuple[int, int], target: ast.expr, value: ast.expr | None) -> ast.expr:
    """Of `a, b = f(), g()` the one that the call at a line and column is for."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for name, call in zip(target.elts, value.elts, strict=False):
            start, end = (call.lineno, call.col_offset), (call.end_lineno, call.end_col_offset)
            if start <= call_at < end:  # type: ignore[operator]
                return name
    return target


def _ours(module: str) -> bool:
    package, _, rest = module.partition(".")
    return package in OURS and rest.partition(".")[0] != "kernels"
