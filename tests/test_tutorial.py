"""The tutorial: pages quote programs, which print what the pages show; figures can be read."""

import re
from pathlib import Path

import pytest

from tests import pes
from tests.test_project import ROOT

PAGES = sorted((ROOT / "docs/tutorial").glob("[1-9]-*.md"))
PROGRAMS = ROOT / "examples/tutorial"
QUOTED = re.compile(
    r"<!-- (part of )?(examples/tutorial/\w+\.py) -->\n```python\n(.*?)```", re.DOTALL
)
RUNS = [
    pytest.param(
        command.split(),
        shown,
        id=Path(command.split()[-1]).stem,
        marks=[pytest.mark.sweep] * ("torch" in command),  # four processes import PyTorch
    )
    for page in PAGES
    for command, shown in re.findall(
        r"```console\n\$ gpushmem (run [^\n]*)\n(.*?)```", page.read_text(), re.DOTALL
    )
]
FIGURES = sorted((ROOT / "docs/figures").glob("*.svg"))
PAPER = {"light": "#ffffff", "dark": "#131416"}


def lasting(text):
    """Words of what is printed, without what differs from run to run."""
    text = re.sub(r" +\(seen \d+ times at these lines\)\n", "", text)
    text = re.sub(r"for \d+\.\d s", "for N s", re.sub(r"0x\w+", "0xN", text))
    text = re.sub(r"(PE )\d+|`seen(\[\d+:\])?`|`boxes\[\d+\]`", r"\1N", text)
    return " ".join(text.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_quote_their_programs(page):
    quoted = QUOTED.findall(page.read_text())
    assert len(quoted) >= 3  # a program, a mistake, a solution
    for part, name, text in quoted:
        code = (ROOT / name).read_text()
        assert text in code if part else text == code.split('"""', 2)[2].lstrip()


def test_all_programs_are_quoted_and_all_pages_listed():
    pages = "".join(page.read_text() for page in PAGES)
    named = {name for _, name, _ in QUOTED.findall(pages)}
    assert named == {str(path.relative_to(ROOT)) for path in PROGRAMS.glob("*.py")}
    index = (ROOT / "docs/tutorial/index.md").read_text()
    assert re.findall(r"^\d\. \[.*?\]\((.*?)\)", index, re.MULTILINE) == [
        page.name for page in PAGES
    ]


@pytest.mark.parametrize(("command", "shown"), RUNS)
@pytest.mark.cpu_backend
def test_programs_print_what_the_pages_show(run_cli, command, shown):
    if "import torch\n" in (ROOT / command[-1]).read_text():
        pytest.importorskip("torch")
    for _ in range(5 if "weak" in command else 1):  # there, PEs may be interrupted in between
        done = run_cli("run", "--backend", "cpu", *command[1:], timeout=150)
        if sorted(done.stdout.splitlines()) == sorted(shown.splitlines()):
            break
    if "mistake" not in command[-1] or "weak" in command:
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == sorted(shown.splitlines())
        return
    assert done.returncode in (1, 66)
    for piece in shown.split("...\n"):
        assert lasting(piece) in lasting(done.stderr)


@pytest.mark.parametrize("name", ["1_solution", "3_solution", "4_solution"])
def test_solutions_run_whose_output_is_not_shown(run_cli, name):
    done = run_cli("run", *pes.options(3), "-n", 3, PROGRAMS / f"{name}.py", timeout=150, code=0)
    assert done.stderr == ""


@pytest.mark.sweep
def test_a_program_compiles_for_gpus_as_the_page_shows(run_cli):
    pytest.importorskip("nvshmem")
    page = (ROOT / "docs/tutorial/7-on-gpus.md").read_text()
    command, shown = re.search(r"\$ gpushmem (compile [^\n]*)\n(.*?)```", page, re.DOTALL).groups()
    done = run_cli(*command.split(), timeout=150, code=0)

    def without_numbers(text):  # compilers have other ones
        return sorted(re.sub(r" \d+", " N", re.sub(r" +", " ", text)).splitlines())

    assert without_numbers(done.stdout) == without_numbers(shown)


def luminance(colour):
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_figures_are_small_and_can_be_read_in_their_mode(path):
    """A colour has a contrast of at least 4.5 (WCAG 2) to the page behind it."""
    svg = path.read_text()
    assert len(svg) < 30_000
    assert "<text" in svg
    assert "<dc:date>" not in svg
    paper = luminance(PAPER[path.stem.rpartition("-")[2]])
    for colour in {*re.findall(r"#[0-9a-f]{6}", svg)}:
        light, dark = sorted((luminance(colour), paper), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, colour


def test_each_figure_is_there_in_both_modes_and_made_by_a_script():
    scripts = "".join(path.read_text() for path in (ROOT / "docs/figures").glob("*.py"))
    names = set(re.findall(r'"([\w-]+)": \(\d+, \w+\)', scripts))
    assert {path.stem for path in FIGURES} == {f"{n}-{m}" for n in names for m in PAPER}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_show_a_figure_for_each_mode(page):
    shown = re.findall(
        r"!\[(.*?)\]\(\.\./figures/(.*?)-(\w+)\.svg#gh-(\w+)-mode-only\)", page.read_text()
    )
    assert [(mode, for_) for _, _, mode, for_ in shown] == [("light",) * 2, ("dark",) * 2]
    assert len({(text, name) for text, name, _, _ in shown}) == 1
    assert f"{shown[0][1]}-light" in {path.stem for path in FIGURES}
