"""`%load_ext gpushmem` in a notebook, or in IPython: `%%gpushmem -n 4` runs a cell in 4 PEs."""

from __future__ import annotations

import ast
import itertools
import linecache
import re
import secrets
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display

from gpushmem import settings
from gpushmem.backends import registry, selection
from gpushmem.errors import ArgumentError, Deadlock, PeerFailed, ShmemError, WaitTimeout
from gpushmem.job.board import DEADLOCK, TIMEOUT
from gpushmem.start.launch.local import Outcome
from gpushmem.start.launch.output import Pipes
from gpushmem.start.launch.spawn import check_arguments, collect

__all__ = ["register"]


def register(shell: Any) -> None:
    """Give an IPython shell the magic `%%gpushmem`."""

    @magic_arguments("gpushmem")
    @argument("-n", type=int, default=1, metavar="PES", help="Number of PEs.  [default: 1]")
    @argument("--check", action="store_true", help="Find races and missing synchronisation.")
    @argument("--memory", choices=("native", "weak"), help="weak: operations are late.")
    @argument(
        "--seed", type=int, help="What is late, with --memory weak; with --check, who is first."
    )
    @argument(
        "--trace", nargs="?", const="page", choices=("page", "summary"),
        help="Show what the PEs did: a page with the timeline, or a summary as text.",
    )  # fmt: skip
    @argument("--timeout", type=float, help="Seconds that a PE's host may wait in one call.")
    def gpushmem(line: str, cell: str) -> None:
        """Run the cell in PEs, which see all that the notebook has defined.

        The PEs are forks of the notebook's process: what the cell defines or changes stays in them,
        and ends with them. Each line that they print begins with the number of its PE.
        """
        names = _Names(shell)
        try:
            failed = _run(_Cell(shell, cell), parse_argstring(gpushmem, line), names)
        except SyntaxError as error:
            text = "".join(traceback.format_exception_only(error)).rstrip()
            raise _shown(ArgumentError(str(error)), text, names) from None  # IPython shows its own
        except ShmemError as error:
            raise UsageError(str(error).replace("spawn:", "%%gpushmem:")) from None
        if failed is not None:
            raise failed

    shell.register_magic_function(gpushmem, "cell", "gpushmem")


class _Cell:
    """A cell that is run in PEs; the value of an expression at its end is printed."""

    def __init__(self, shell: Any, text: str) -> None:
        """Raises `SyntaxError`."""
        source = "\n" + shell.transform_cell(text)  # the first line is that of the magic
        # Not `execution_count`: from IPython 9 on, that is the next cell's while one runs.
        number = len(shell.history_manager.input_hist_raw) - 1
        name = shell.compile.cache(source, number, raw_code=text)
        tree = ast.parse(source, name)
        last = [tree.body.pop()] if tree.body and isinstance(tree.body[-1], ast.Expr) else []
        self._parts: list[CodeType] = [
            compile(tree, name, "exec"),
            compile(ast.Interactive(last), name, "single"),  # type: ignore[arg-type]
        ]
        self._names = shell.user_ns

    def __call__(self) -> None:
        sys.displayhook = sys.__displayhook__  # the notebook's would answer for its own process
        for part in self._parts:
            exec(part, self._names)  # noqa: S102


class _Names:
    """What cells are called: "In[3]" for the files that IPython makes of them."""

    def __init__(self, shell: Any) -> None:
        self._name_of = shell.compile.format_code_name

    def told(self, text: str) -> str:
        """A text in which cells have these names."""
        names: dict[str, str] = {}
        for file in list(linecache.cache):
            if (found := self._name_of(file)) is not None:
                names[file] = names[Path(file).name] = str(found[1])
        either = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
        return re.sub(either, lambda match: names[match[0]], text) if names else text


class _Labels(Pipes):
    """Output of PEs with their numbers, to where the cell's output goes."""

    def __init__(self, names: _Names) -> None:
        super().__init__()
        self._told = names.told

    def line(self, pe: int, line: bytes) -> bytes:
        return b"PE %d: %s\n" % (pe, line)

    def write(self, fd: int, data: bytes) -> None:
        super().write(fd, self._told(data.decode(errors="replace")).encode())


def _run(cell: _Cell, asked: Any, names: _Names) -> Exception | None:
    """Run a cell in PEs as its line says; returns the error that the notebook is to show."""
    check_arguments(cell, asked.n, timeout=asked.timeout, seed=asked.seed)
    chosen = _backend(asked)
    how = {"timeout": asked.timeout, "memory": asked.memory, "seed": asked.seed}
    if asked.memory == "weak" and asked.seed is None:
        how["seed"] = secrets.randbelow(settings.MOST)

    def job(folder: str | None) -> Outcome:
        return collect(
            asked.n,
            cell,
            pipes=_Labels(names),
            say_verdict=False,
            backend=chosen,
            trace=folder,
            **how,
        )[0]

    problems = ""
    with _traced(asked.trace, names) as folder:
        if asked.check:
            outcome, problems = _checked(lambda: job(folder))
        else:
            outcome = job(folder)
    if outcome.stopped_by is not None:
        raise KeyboardInterrupt
    told = [problems.rstrip()] if problems else []
    if outcome.code:
        told += [*_verdict(outcome), f"gpushmem: {outcome.summary()}"]
        if asked.memory == "weak":
            again = f"--memory weak --seed {how['seed']}"
            told.append(f"gpushmem: to repeat this order of operations: {again}")
    return _shown(_error_of(outcome), "\n".join(told), names) if told else None


def _backend(asked: Any) -> str:
    """The backend; raises `UsageError` if options exclude each other, or PEs cannot be forked."""
    if asked.check and (asked.memory or settings.get("GPUSHMEM_MEMORY")) == "weak":
        raise UsageError("%%gpushmem: --check sees every order: leave --memory weak out")
    name, _ = selection.choose()
    if name not in (able := registry.that_record()):
        raise UsageError(
            f"%%gpushmem: PEs of the {name} backend know nothing of the notebook: set "
            f"GPUSHMEM_BACKEND={' or '.join(able)}, or use gpushmem.spawn"
        )
    return name


def _checked(job: Callable[[], Outcome]) -> tuple[Outcome, str]:
    """Run a job under the checker; returns its report, too."""
    from gpushmem.check import command  # noqa: PLC0415  (for those who check)

    found = command.Findings(command.Known(None))
    with command.recorded() as folder:
        outcome = job()
        found.add(folder)
    for line in found.unchecked:
        print(f"gpushmem check: {line}", file=sys.stderr)
    return outcome, found.text()


@contextmanager
def _traced(form: str | None, names: _Names) -> Iterator[str | None]:
    """A folder for a trace, which is shown at the end, also of a job that failed."""
    if form is None:
        yield None
        return
    from gpushmem.cli.trace import text_of  # noqa: PLC0415  (for those who trace)
    from gpushmem.trace import load, show  # noqa: PLC0415
    from gpushmem.trace.summary import summary  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="gpushmem-trace-") as folder:
        yield folder
        trace = load(folder)
    for fact in itertools.chain.from_iterable(trace.facts.values()):
        if "text" in fact:
            fact["text"] = names.told(fact["text"])
    if form == "summary":
        print(text_of(summary(trace)))
    else:
        display(show(trace))


def _verdict(outcome: Outcome) -> list[str]:
    """The report of a job that hung; that of a PE that failed has been printed by it."""
    if outcome.verdict not in (DEADLOCK, TIMEOUT):
        return []
    return [f"gpushmem: {outcome.reason}\n\n{outcome.report.rstrip()}"]


def _error_of(outcome: Outcome) -> ShmemError:
    if outcome.verdict in (DEADLOCK, TIMEOUT):
        return (Deadlock if outcome.verdict == DEADLOCK else WaitTimeout)(outcome.reason)
    if outcome.first is not None:
        return PeerFailed(outcome.first, outcome.failure, outcome.report)
    return ShmemError("the checker found problems")


def _shown(error: Exception, text: str, names: _Names) -> Exception:
    """The error, of which a notebook shows this text, and nothing of the frames it passes."""
    error._render_traceback_ = lambda: [names.told(text)]  # type: ignore[attr-defined]
    return error
