"""Problems that are known and not to be reported: named in a file, or by comments at their lines.

A line of the file is a kind and a pattern for the place of either access, such as
`race solver.py:* in smooth`; `*` stands for anything, also for every kind. A comment
`# gpushmem: ignore`, or `# gpushmem: ignore race`, is for the line that it is at.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

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
        self._rules = [] if path is None else list(_of_file(path))

    def split(self, history: History, found: list[Problem]) -> tuple[list[Problem], list[str]]:
        """Those that are not known, and what is to be said of the rules."""
        rules = self._rules + [rule for path in history.files.values() for rule in _comments(path)]
        matching = [[rule for rule in rules if rule.matches(problem)] for problem in found]
        left = [problem for problem, its in zip(found, matching, strict=True) if not its]
        used = {rule for its in matching for rule in its}
        said = [f"nothing is ignored by {rule.where}" for rule in rules if rule not in used]
        if len(left) < len(found):
            n = len(found) - len(left)
            said.append(f"{n} problem{'s' * (n != 1)} ignored")
        return left, said


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
