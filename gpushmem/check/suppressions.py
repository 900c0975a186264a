"""Problems that are known and not to be reported: named in a file, or by comments at their lines.

A line of the file is a kind and a pattern for the place of either access, such as
`race solver.py:* in smooth`; `*` stands for anything, also for every kind. A comment
`# gpushmem: ignore`, or `# gpushmem: ignore race`, is for the line that it is at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from gpushmem.check.history import History
from gpushmem.check.report import KINDS, Problem
from gpushmem.errors import ArgumentError

__all__ = ["Known"]

COMMENT = re.compile(r"#\s*gpushmem:\s*ignore\b[ \t]*(\w*)")


class _Rule(NamedTuple):
    """One line of the file, or one comment."""

    where: str  # it is, for people
    kind: str
    pattern: str  # of places

    def matches(self, problem: Problem) -> bool:
        """Whether it is for a problem."""
        places = [access.site for access, _ in problem.accesses]
        return self.kind in ("*", problem.kind()) and any(
            fnmatchcase(place, self.pattern) for place in places
        )


class Known:
    """What is not to be reported."""

    def __init__(self, path: Path | None) -> None:
        self._rules = dict.fromkeys([] if path is None else _of_file(path), False)  # are they used
        self._ignored: set[Any] = set()

    def without(self, history: History, found: list[Problem]) -> Iterator[Problem]:
        """Those problems that are not known."""
        for rule in [rule for path in history.files.values() for rule in _comments(path)]:
            self._rules.setdefault(rule, False)
        for problem in found:
            matching = [rule for rule in self._rules if rule.matches(problem)]
            self._rules |= dict.fromkeys(matching, True)
            if matching:
                self._ignored.add(problem.key())
            else:
                yield problem

    def join(self, other: Known) -> None:
        """What has been found of another run is of this one, too."""
        for rule, used in other._rules.items():
            self._rules[rule] = self._rules.get(rule, False) or used
        self._ignored |= other._ignored

    def remarks(self) -> list[str]:
        """What is to be said of the rules."""
        unused = [rule for rule, used in self._rules.items() if not used]
        said = [f"nothing is ignored by {rule.where}" for rule in unused]
        n = len(self._ignored)
        return said + [f"{n} problem{'s' * (n != 1)} ignored"] * bool(n)


def _of_file(path: Path) -> list[_Rule]:
    rules = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        kind, _, pattern = text.partition("#")[0].strip().partition(" ")
        if not kind:
            continue
        if kind not in ("*", *KINDS) or not pattern.strip():
            raise ArgumentError(
                f"{path}:{number}: `{text.strip()}` is not a kind ({', '.join(KINDS)}, *) and a "
                "place, such as `race solver.py:* in smooth`"
            )
        rules.append(_Rule(f"line {number} of {path}", kind, pattern.strip()))
    return rules


def _comments(path: str) -> list[_Rule]:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    name = Path(path).name
    return [
        _Rule(f"the comment at {name}:{number}", comment[1] or "*", f"{name}:{number}*")
        for number, text in enumerate(lines, 1)
        if (comment := COMMENT.search(text))
    ]
