"""The programs of the corpus: a file is one, or each of its functions is.

A program has a bug that its argument `fixed` mends. The lines that make the bug end in `# <- 1` and
`# <- 2`; a further report may have `# <- 3`.
"""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

CORPUS = Path(__file__).parent / "corpus"
FUNCTION = re.compile(r"^def (\w+)\(pes=(\d)\):\n(?:(?: .*)?\n)*", re.MULTILINE)


class Program(NamedTuple):
    """What `gpushmem run -n pes *words` runs, and the lines of the file that it is."""

    name: str
    pes: str
    words: tuple
    lines: range

    def marked(self, *marks):
        """The two lines that make the bug; or one twice."""
        path = self.words[0]
        text = path.read_text().splitlines()
        return tuple(
            f"{path.name}:{number}"
            for mark in marks or ("<- 1", "<- 2")
            for number in self.lines
            if mark in text[number - 1]
        )


def program(path):
    """A file that is one."""
    text = path.read_text()
    pes = re.search(r"^PES = (\d)$", text, re.MULTILINE)[1]
    return Program(path.stem, pes, (path,), range(1, text.count("\n") + 1))


def programs(path):
    """Those of a file."""
    text = path.read_text()
    ends = [text.count("\n", 0, at) + 1 for one in FUNCTION.finditer(text) for at in one.span()]
    functions = zip(FUNCTION.findall(text), ends[::2], ends[1::2], strict=True)
    return [
        Program(name, pes, (path, name), range(first, end)) for (name, pes), first, end in functions
    ] or [program(path)]


PROGRAMS = {one.name: one for path in CORPUS.glob("*.py") for one in programs(path)}


def cases(sample, tested=lambda name: True):
    """Parameters of a test: the programs by name, all but `sample` in the tier `sweep`."""
    return [
        pytest.param(one, marks=[] if name in sample else [pytest.mark.sweep], id=name)
        for name, one in sorted(PROGRAMS.items())
        if tested(name)
    ]
