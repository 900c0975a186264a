"""What the pages about the checker show, and verdicts that are the same in every run."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.check.programs import CORPUS, PROGRAMS
from tests.check.test_corpus import check, without_numbers
from tests.test_project import ROOT

QUOTED = re.compile(
    r"<!-- (part|report) of tests/check/corpus/(\w+).py -->\n```\w*\n(.*?)```", re.DOTALL
)
PAGES = {name: (ROOT / "docs" / name).read_text() for name in ("check.md", "mistakes.md")}
QUOTES = [(page, *quote.groups()) for page in PAGES for quote in QUOTED.finditer(PAGES[page])]
LAST = "gpushmem check: causes and cures: gpushmem help check"
# In CI; all: pytest -m sweep tests/check
SAMPLE = {"threads_write_then_block_sends", "halo_one_too_far"}
REPORTS = [
    pytest.param(
        name, text, marks=[] if name in SAMPLE else [pytest.mark.sweep], id=f"{page}-{name}"
    )
    for page, kind, name, text in QUOTES
    if kind == "report"
]


@pytest.mark.parametrize(("name", "text"), REPORTS)
def test_the_reports_shown_are_those_that_are_printed(run_cli, name, text):
    """But for the last line, which names the page about them all."""
    run = ("run", "--backend", "cpu", "--check", "-n", PROGRAMS[name].pes, *PROGRAMS[name].words)
    printed = run_cli(*run, code=66).stderr
    shown, printed = (without_numbers(t).strip().removesuffix(LAST) for t in (text, printed))
    assert shown.strip() == printed.strip()


def test_the_programs_shown_are_parts_of_the_corpus():
    parts = {name: text for _, kind, name, text in QUOTES if kind == "part"}
    assert [name for name in parts if parts[name] not in (CORPUS / f"{name}.py").read_text()] == []
    reports = [name for page, kind, name, _ in QUOTES if (page, kind) == ("mistakes.md", "report")]
    assert [*parts] == reports


def test_there_are_twelve_and_the_contents_names_them():
    titles = re.findall(r"^## \d+\. (.*)", PAGES["mistakes.md"], re.MULTILINE)
    assert len(titles) == 12
    assert re.findall(r"^\d+\. \[(.*)\]\(#", PAGES["mistakes.md"], re.MULTILINE) == titles


RUNS = 20
# Of the first one the lines race in several ways, and the same is to be shown in every run.
AGAIN = (
    "own_arrival_counted", "box_written_again", "two_streams", "lock_on_a_pe",
    "the_last_block_adds",
)  # fmt: skip


@pytest.fixture
def load():
    """Other processes want all cores, so that PEs are interrupted anywhere."""
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())
    ]
    yield
    for process in busy:
        process.kill()
        process.wait()


@pytest.mark.sweep
@pytest.mark.parametrize("name", AGAIN)
@pytest.mark.parametrize("args", [(), ("fixed",)])
def test_the_verdict_is_the_same_in_every_run(run_cli, load, name, args):
    """The PEs, threads and elements that a report takes for examples may be others."""
    found = {verdict(check(run_cli, PROGRAMS[name], *args)[1]) for _ in range(RUNS)}
    assert len(found) == 1
    assert ("[]" in found) == bool(args)


def verdict(found):
    """What is found, without what may differ from run to run."""
    bare = [{**problem, "count": None} for problem in found]
    return without_numbers(json.dumps(sorted(bare, key=str)))
