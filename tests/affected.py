"""The tests that a change needs: those of the rooms that changed, and of the rooms above them.

`nox -s affected` runs them; `python -m tests.affected [BASE]` prints them. Read from the files as
they are: which room imports which, and which rooms a file of tests names, in programs that it has
as strings, too. What a file's folder is called says whose tests these are.
"""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.test_project import PACKAGE, ROOMS, ROOT, files_of, imports_of, room_of

__all__ = ["affected", "changed"]

PUBLIC = "gpushmem"  # what users import: the room of `gpushmem/__init__.py`
# Folders and files of tests that are not called like a room: what they test.
TESTED = {
    "conformance": [PUBLIC], "weak": [PUBLIC], "gpu": [PUBLIC, "backends/nvshmem"],
    "oracle": ["simulator"], "test_examples.py": [PUBLIC, "cli", "kernels"],
    "test_tutorial.py": [PUBLIC, "cli"], "test_notebooks.py": ["notebook"],
    "test_coming_from.py": [PUBLIC],
}  # fmt: skip
# What is no room, and tests that read it; for anything else all tests are run.
READ = ("bench", "docs", "examples", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
NEVER = (".ci", ".gitignore", "LICENSE", "noxfile.py")
IMPORT = re.compile(r"\b(?:from|import) (gpushmem[\w.]*)(?: import (\w+))?")


@cache
def rooms():
    """Each room, and those that it imports; a backend is found by its name, in `backends`."""
    found = {}
    for room in ROOMS:
        for path in files_of(room):
            package = ".".join(path.relative_to(ROOT).parent.parts)
            named = set(imports_of(path.read_text(), package))
            found.setdefault(room.removesuffix(".py"), set()).update(named)
    found[PUBLIC] = set(imports_of((PACKAGE / "__init__.pyi").read_text(), "gpushmem"))
    return {room: {_known(name, found) for name in named} for room, named in found.items()}


def _known(room, graph):
    return room if room in graph else PUBLIC


def below(names):
    """These rooms, and all that they import."""
    found, todo = set(), list(names)
    while todo:
        room = todo.pop()
        if room not in found:
            found.add(room)
            todo += rooms().get(room, ())
    return found


def _mentioned(text):
    """The rooms whose names are imported in a text, and the folders that it reads."""
    for module, name in IMPORT.findall(text):
        yield _known(room_of(f"{module}.{name}" if name else module), rooms())
    yield from (each for each in READ if re.search(rf'["/ ]{re.escape(each)}["/]', text))


def _called(name):
    """The rooms of tests in a folder, or file, of this name."""
    if name in TESTED:
        return TESTED[name]
    stem = name.removeprefix("test_").removesuffix(".py")
    return [room for room in rooms() if stem in room.split("/")]


@cache
def _helpers(folder):
    """What the files of a folder mention that are no tests, programs and fixtures among them."""
    if folder == ROOT / "tests":
        return frozenset()
    files = [path for path in folder.rglob("*.py") if not path.name.startswith("test_")]
    return frozenset(each for path in files for each in _mentioned(path.read_text()))


def needs(path):
    """All that a file of tests depends on."""
    first = path.relative_to(ROOT / "tests").parts[0]
    return below({*_called(first), *_helpers(path.parent), *_mentioned(path.read_text())})


def _of_file(name):
    """The room of a changed file; None if it is in none, and not among those that tests read."""
    parts = Path(name).parts
    if parts[0] == "gpushmem":
        return _known(room_of(name.removesuffix(Path(name).suffix).removesuffix("/__init__")
                              .replace("/", ".")), rooms())  # fmt: skip
    return parts[0] if parts[0] in (*READ, *NEVER, "kernels") else None


def affected(names):
    """The files of tests to run for changed files, by their names."""
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    own = [name for name in names if name.startswith("tests/")]
    touched = {_of_file(name) for name in names if name not in own}
    folders = {ROOT / name for name in own if not Path(name).name.startswith("test_")}
    depth = len(ROOT.parts) + 2  # of what is in a folder of tests
    if None in touched or any(path.parent == ROOT / "tests" for path in folders):
        return tests  # helpers of all
    return [
        path
        for path in tests
        if path.name == "test_project.py"
        or str(path.relative_to(ROOT)) in own
        or any(helper.parts[:depth] == path.parts[:depth] for helper in folders)
        or touched & needs(path)
    ]


def changed(base=None):
    """The files that differ from where this branch left the base, uncommitted ones, too."""
    bases = [base] if base else ["main", "origin/main"]
    there = (git("merge-base", "HEAD", each) for each in bases)
    since = next((found[0] for found in there if found), None)
    if since is None:
        raise SystemExit(f"git knows no {' or '.join(bases)}: name what to compare with")
    others = git("ls-files", "--others", "--exclude-standard")
    return sorted({*git("diff", "--name-only", "--no-renames", since), *others})


def git(*command):
    """The lines that git prints."""
    run = subprocess.run(["git", *command], capture_output=True, text=True, cwd=ROOT, check=False)
    return run.stdout.split("\n")[:-1]


if __name__ == "__main__":
    print(*(path.relative_to(ROOT) for path in affected(changed(*sys.argv[1:]))), sep="\n")
