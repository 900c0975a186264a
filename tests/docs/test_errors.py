"""The pages about errors: one for each, what their programs print, and `gpushmem help`."""

import inspect
import re
import subprocess
import sys

import pytest

from gpushmem import errors
from tests.check.test_corpus import without_numbers
from tests.conftest import PATHS, PLAIN, ROOT
from tests.terminal import on_a_terminal

FOLDER = ROOT / "docs" / "errors"
CLASSES = [
    name for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, errors.ShmemError)
]  # fmt: skip
PAGES = {path.stem: path.read_text() for path in FOLDER.glob("*.md")}
INDEX = PAGES.pop("index")
CHECK = (ROOT / "docs" / "check.md").read_text().split("## Kinds of problems")[1].split("\n## ")[0]
OURS = re.compile(r'  File ".*/gpushmem/.*\n(    .*\n)*')  # frames of a traceback


def block(page, begin):
    """The block of a page that begins so."""
    return re.search(rf"^```{begin}(.*?)^```$", page, re.DOTALL | re.MULTILINE)[1]


def plain(text):
    """What is printed without what differs from run to run, and the frames of the package."""
    text = re.sub(r"^ *[~^]+ *\n", "", OURS.sub("", text), flags=re.MULTILINE)
    return without_numbers(re.sub(r"for \d+\.\d s", "for some time", text)).strip()


def cured(page):
    """The program of a page, changed as its cure says."""
    lines = block(page, "diff\n").splitlines(keepends=True)
    old, new = ("".join(line[1:] for line in lines if line[0] in kept) for kept in (" -", " +"))
    program = block(page, "python\n")
    assert program.count(old) == 1
    return program.replace(old, new)


@pytest.fixture
def run(run_cli, tmp_path):
    """`run(command, program)`: its exit code, and what it prints."""

    def run(command, program):
        (tmp_path / "program.py").write_text(program)
        name, *words = command.split()
        if name == "gpushmem":
            done = run_cli(*words, cwd=tmp_path)
        else:
            done = subprocess.run(
                [sys.executable, *words], cwd=tmp_path, env={**PLAIN, "PYTHONPATH": PATHS},
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
        return done.returncode, (done.stdout + done.stderr).replace(f"{tmp_path}/", "")

    return run


def test_every_error_has_a_page_and_a_line_in_the_list():
    assert sorted(PAGES) == sorted([*CLASSES, "check"])
    rows = re.findall(r"^\| \[(\w+)\]\((\w+)\.md\) \| .+ \|$", INDEX, re.MULTILINE)
    assert rows == [(name, name) for name in [*CLASSES, "check"]]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_short_and_its_program_does_what_it_says(run, name):
    page = PAGES[name]
    assert page.startswith(f"# {'Findings' if name == 'check' else name}")
    assert len(page.splitlines()) <= 60
    program, (command, told) = block(page, "python\n"), block(page, r"\n\$ ").split("\n", 1)
    assert len(program.splitlines()) <= 15
    code, printed = run(command, program)
    assert plain(printed) == plain(told)
    assert code != 0
    code, printed = run(command, cured(page))
    assert code == 0, printed


# Parts of messages that are Python's, NumPy's or Numba's, or no text of one piece.
OF_OTHERS = {
    "missing a required argument", "got an unexpected keyword argument", "is out of bounds",
    "too many indices", "IndexError(", "AssertionError(", "barrier_all waits for", "== ",
    *(f"{kind}:" for kind in re.findall(r"^- \*\*(\w+)\*\*", CHECK, re.MULTILINE)),
}  # fmt: skip


def test_help_prints_a_page_or_the_list(run_cli):
    page = run_cli("help", "DeadLock", code=0).stdout
    assert page.startswith("# Deadlock\n")
    assert block(page, "python\n") == block(PAGES["Deadlock"], "python\n")
    assert "[Hangs and failures](docs/failures.md#deadlocks)" in page
    assert run_cli("help", "race", code=0).stdout == run_cli("help", "check", code=0).stdout
    listed = run_cli("help", code=0).stdout
    assert "| Deadlock | no PE can go on |" in listed


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        ("timeout", "no page about timeout: try gpushmem help WaitTimeout, or gpushmem help for"),
        ("Deadlok", "no page about Deadlok: try gpushmem help Deadlock, or gpushmem help for"),
        ("doctor", "no page about doctor: try gpushmem doctor --help, or gpushmem help for"),
        ("xyz", "no page about xyz: try gpushmem help for a list"),
    ],
)
def test_help_names_what_is_near(run_cli, topic, said):
    assert said in run_cli("help", topic, code=2).stderr


def test_help_is_drawn_on_a_terminal():
    with on_a_terminal("-m", "gpushmem", "help", "TeamError") as (process, printed):
        process.wait(60)
        page = printed()
    assert "# TeamError" not in page
    assert "```" not in page
    assert max(map(len, page.splitlines())) <= 101  # with the terminal's carriage return
    assert "if team != shmem.TEAM_INVALID:" in page


def test_help_without_its_pages(tmp_path):
    """As in a folder on PYTHONPATH that is not installed."""
    (tmp_path / "gpushmem").symlink_to(ROOT / "gpushmem")
    code = (
        "import sys; sys.meta_path = [f for f in sys.meta_path if 'Editable' not in repr(f)]; "
        "from gpushmem.cli import main; main('help')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**PLAIN, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("Error: the pages are not in this installation: pip install")
    assert "Traceback" not in done.stderr


ENDS = {
    "of an operation before init": ("shmem.zeros(4)", "NotInitializedError"),
    "of an operation": ("shmem.init(); shmem.put(3, 4, 5)", "ArgumentError"),
    "a deadlock of spawned PEs": ("shmem.spawn(stuck, 2)", "Deadlock"),
}
PROGRAM = """
import gpushmem as shmem
def stuck():
    shmem.init()
    shmem.signal_wait_until(shmem.zeros(1, "uint64"), shmem.CMP_EQ, 1)
"""


@pytest.mark.parametrize("end", ENDS)
def test_an_error_that_ends_a_program_names_its_page_once(run, end):
    line, page = ENDS[end]
    _, printed = run("python program.py", PROGRAM + line)
    *before, last = printed.splitlines()
    assert last == f"gpushmem: causes and cures: gpushmem help {page}"
    assert "causes and cures" not in "".join(before)
    assert any(line.startswith("gpushmem.errors.") for line in before)


def test_which_page_is_about_an_error():
    class Own(errors.TeamError):
        pass

    assert errors.where_to_read_on(Own()).endswith(" gpushmem help TeamError\n")
    assert errors.where_to_read_on(ValueError()) == errors.where_to_read_on(None) == ""
