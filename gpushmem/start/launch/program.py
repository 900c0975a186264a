"""The program that PEs run: a script, module or code, as `__main__`, or a pickled function.

A program is described by strings, so that a process that is not a fork of the launcher can run it.
"""

from __future__ import annotations

import importlib.util
import io
import os
import pickle
import runpy
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushmem.errors import ArgumentError

__all__ = ["PLAIN_RESULTS", "Program", "calling"]

Target = Callable[[], object]


@dataclass(frozen=True)
class Program:
    """A kind, one of KINDS, and its words: for `script`, `module` and `code`, the command line.

    The words of a `call` are descriptors: of the pickled function, and of each PE's result.
    """

    kind: str
    words: tuple[str, ...]

    def target(self) -> Target:
        """Return the function that runs it in a PE; raises `ArgumentError` if it cannot be run."""
        return KINDS[self.kind](self.words)


def _script(args: Sequence[str]) -> Target:
    if not args:
        raise ArgumentError("no script given: give a script to run, or -m and a module")
    path = Path(args[0])
    if path.is_dir():
        if not (path / "__main__.py").exists():
            raise ArgumentError(f"{args[0]} is a directory without a __main__.py")
        return _as_python(args, lambda: runpy.run_path(args[0], run_name="__main__"))
    if not path.exists():
        raise ArgumentError(f"script {args[0]} does not exist (current directory: {Path.cwd()})")
    if not os.access(path, os.R_OK):
        raise ArgumentError(f"script {args[0]} cannot be read")
    with io.open_code(str(path)) as file:
        source = file.read()

    def run() -> None:
        sys.path.insert(0, str(path.resolve().parent))
        main = types.ModuleType("__main__")
        main.__dict__.update(__file__=args[0], __builtins__=__builtins__)
        sys.modules["__main__"] = main  # so that the script's classes can be pickled
        exec(_compiled(source, args[0]), main.__dict__)  # noqa: S102

    return _as_python(args, run)


def _compiled(source: str | bytes, name: str) -> types.CodeType:
    try:
        return compile(source, name, "exec")
    except ValueError as error:  # of a zero byte, in older Pythons
        raise SyntaxError(str(error), (name, None, None, None)) from None
    except SyntaxError as error:
        error.filename = error.filename or name
        raise


def _module(args: Sequence[str]) -> Target:
    name, *rest = args
    folder = str(Path.cwd())
    if folder not in sys.path[:1]:
        sys.path.insert(0, folder)
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise ArgumentError(f"there is no module {name}")
    run = lambda: runpy.run_module(name, run_name="__main__", alter_sys=True)  # noqa: E731
    return _as_python((found.origin or name, *rest), run)


def _code(args: Sequence[str]) -> Target:
    text, *rest = args

    def run() -> None:
        sys.path.insert(0, "")
        main = types.ModuleType("__main__")
        main.__dict__.update(__builtins__=__builtins__)
        sys.modules["__main__"] = main
        exec(_compiled(text, "<string>"), main.__dict__)  # noqa: S102

    return _as_python(("-c", *rest), run)


def _as_python(argv: Sequence[str], run: Target) -> Target:
    def target() -> None:
        sys.argv[:] = argv
        run()

    return target


def _call(words: Sequence[str]) -> Target:
    from gpushmem.start.launch.pickling import dumps  # noqa: PLC0415  (heavy, and for functions only)

    pickled, *results = map(int, words)

    def get() -> Callable[[], Any]:
        data = os.pread(pickled, os.fstat(pickled).st_size, 0)  # all PEs share its position
        return pickle.loads(data)  # noqa: S301  (from the process that started this one)

    return calling(get, results, dumps)


PLAIN_RESULTS = "return NumPy arrays, numbers, texts, and lists, tuples and dictionaries of these"


def calling(
    get: Callable[[], Callable[[], Any]], results: Sequence[int], dumps: Callable[[object], bytes]
) -> Target:
    """Return a target that calls `get()()`, and pickles the result to the PE's descriptor."""

    def target() -> None:
        from gpushmem.job.job import current  # noqa: PLC0415  (heavy: not for usage errors)

        job = current()
        assert job is not None
        value = get()()
        try:
            data = dumps(value)
        except Exception as error:  # pickling may raise anything
            raise ArgumentError(
                f"spawn: the result of PE {job.my_pe}, of type {type(value).__name__}, cannot be "
                f"sent back ({error}): {PLAIN_RESULTS}"
            ) from error
        with open(results[job.my_pe], "wb", closefd=False) as file:
            file.write(data)

    return target


KINDS: dict[str, Callable[[Sequence[str]], Target]] = {
    "script": _script,
    "module": _module,
    "code": _code,
    "call": _call,
}
