"""Source lines of the user's program, for reports and errors."""

from __future__ import annotations

import ast
import itertools
import linecache
import sys
from functools import cache, lru_cache
from pathlib import Path
from types import CodeType, FrameType

# Packages, and whether their code counts as the user's; the innermost enclosing package decides.
USER_CODE = {
    "gpushmem": False, "gpushmem.kernels": True, "gpushmem.kernels.plan": False, "numba": False,
    "numba_cuda_mlir": False, "numpy": False, "torch": False,
}  # fmt: skip

# CPython before 3.12 counts the depth of a tree for all threads together (python/cpython#106905):
# if another thread parses meanwhile, as Numba does when it compiles, there is a SystemError.
TRIES = 100

Place = tuple[CodeType, int]  # code, and the instruction in it


class Line(str):
    """A line of a source file, as "file.py:12"."""

    __slots__ = ("at", "code", "number")

    code: CodeType
    at: int  # the instruction
    number: int

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Pickle as plain text: code objects cannot be pickled."""
        return str, (str(self),)

    @property
    def file(self) -> str:
        """The full path of the source file."""
        return self.code.co_filename

    @property
    def column(self) -> int:
        """Column at which the call begins; -1 if unknown. Walks the code object from its start."""
        if not hasattr(self.code, "co_positions"):  # Python 3.10
            return -1
        column = next(itertools.islice(self.code.co_positions(), self.at // 2, None))[2]
        return -1 if column is None else column


def user_line() -> Line:
    """Return the source line being executed outside the library; ready kernels count as outside."""
    return line_of(user_frame(sys._getframe(1)))


def user_place() -> Place:
    """Return the code being executed outside the library, and the instruction, for `line_at`.

    Cheaper than `user_line`: finding the line of an instruction in a long function takes a while.
    """
    frame = user_frame(sys._getframe(1))
    return frame.f_code, frame.f_lasti


def line_at(code: CodeType, at: int) -> str:
    """Return the source line of an instruction, as "file.py:12"."""
    return f"{Path(code.co_filename).name}:{number_at(code, at)}"


def number_at(code: CodeType, at: int) -> int:
    """Return the number of the source line of an instruction."""
    numbers = (number for start, end, number in code.co_lines() if start <= at < end)
    return next(numbers, None) or code.co_firstlineno


def user_frame(frame: FrameType) -> FrameType:
    """Return the innermost frame, from `frame` outwards, that is outside the library."""
    while frame.f_back is not None and _passed_over(frame.f_globals.get("__name__") or ""):
        frame = frame.f_back
    return frame


def line_of(frame: FrameType) -> Line:
    """Return the line that a frame is executing."""
    line = Line(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
    line.code, line.at, line.number = frame.f_code, frame.f_lasti, frame.f_lineno
    return line


def assigned_name(line: Line) -> str | None:
    """Return the name that the statement on a line assigns to; None if none is known."""
    return _assigned_name(line.file, line.number, line.column)


@cache
def _assigned_name(file: str, number: int, column: int) -> str | None:
    tree = _parsed(file)
    names: list[str | None] = []
    for node in ast.walk(tree) if tree else ():  # the innermost comes last
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if _is_at(node, number, column):
                name = _target_of((number, column), target, node.value)
                names.append(None if name is None else ast.unparse(name).strip("()"))
    if not names or (column < 0 and len(names) > 1):
        return None
    return names[-1]


@lru_cache(maxsize=4)
def _parsed(file: str) -> ast.Module | None:
    source = "".join(linecache.getlines(file))
    for _ in range(TRIES):
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError):
            return None
        except SystemError:
            continue
    return None


def _target_of(
    call_at: tuple[int, int], target: ast.expr, value: ast.expr | None
) -> ast.expr | None:
    """For `a, b = f(), g()`: the target assigned from the call at a given line and column.

    None if that may be one of several, as the column is unknown.
    """
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = zip(target.elts, value.elts, strict=False)
        names = [name for name, call in pairs if _is_at(call, *call_at)]
        if names:
            return names[0] if len(names) == 1 else None
    return target


def _is_at(node: ast.stmt | ast.expr, number: int, column: int) -> bool:
    """Whether a line and a column are in a piece of source; of column -1, whether the line is."""
    start, end = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
    return start[0] <= number <= end[0] if column < 0 else start <= (number, column) < end


def is_users(module: str) -> bool:
    """Whether a module is the user's own code, whose lines reports name."""
    while module not in USER_CODE:
        module, inside, _ = module.rpartition(".")
        if not inside:
            return True
    return USER_CODE[module]


_files: dict[str, str] = {}  # where the user's modules are, of those that have been looked at
_looked_at: list[str] = []  # modules


def users_files() -> dict[str, str]:
    """Where the user's modules are, by the names of their files.

    Modules that have been looked at are passed over: a process that has been forked would copy the
    memory of each.
    """
    since = max(len(sys.modules) - len(_looked_at) + 1, 0)
    new = [*itertools.islice(reversed(sys.modules), since)][::-1]
    if not new or new[:1] != _looked_at[-1:]:  # some have been removed, or this is the first look
        new, _looked_at[:] = list(sys.modules), []
    for name in ["__main__", *new]:
        if is_users(name) and name.partition(".")[0] not in sys.stdlib_module_names:
            path = getattr(sys.modules.get(name), "__file__", None) or ""
            _files[path.rpartition("/")[2]] = path
    _looked_at.extend(new[len(_looked_at) > 0 :])
    return _files


@lru_cache(maxsize=1024)  # called for each frame of every host operation
def _passed_over(module: str) -> bool:
    """Whether a frame belongs to the library, or to standard library code called from it."""
    return not is_users(module) or module.partition(".")[0] in sys.stdlib_module_names
