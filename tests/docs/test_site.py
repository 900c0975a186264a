"""The documentation: it becomes a site without a warning, and its code is code."""

import ast
import re
import shlex
import subprocess
import sys
import textwrap
from xml.etree import ElementTree as ET

import click
import pytest

from gpushmem.cli.commands import group
from tests.conftest import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("examples/*.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|[ /])gpushmem ([a-z]+(?: [^|&;#>]*)?)")
FRAGMENTS = "CONTRIBUTING.md"  # which tests/test_project.py finds in the code


def named(path):
    return str(path.relative_to(ROOT))


def test_every_page_is_on_the_site_and_leads_to_others(site):
    listed = re.findall(r"\]\((.*?)\)", (site / "llms.txt").read_text())
    assert {named(page)[5:] for page in PAGES if page.is_relative_to(ROOT / "docs")} == {*listed}
    home = (site / "index.html").read_text()
    for page in listed:
        title = re.search(r"^# (.*)", (site / page).read_text(), re.MULTILINE)[1]
        assert len(re.findall("<h1>", (site / page).with_suffix(".html").read_text())) == 1
        assert title.replace("`", "")[:20] in (site / "llms.txt").read_text()
        assert f'href="{page[:-3]}.html' in home or page == "index.md", f"{page} is in no list"


def test_a_link_that_leads_nowhere_is_an_error(tmp_path):
    (tmp_path / "conf.py").write_text((ROOT / "docs/conf.py").read_text().replace(
        "HERE = Path(__file__).parent", f"HERE = Path({str(tmp_path)!r})"
    ).replace('ELSEWHERE = {', 'ELSEWHERE = {} and {'))  # fmt: skip
    (tmp_path / "index.md").write_text("# Home\n\n[there](nowhere.md), [here](#no-such-part)\n")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", tmp_path, tmp_path / "o"]
    made = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert made.returncode == 1
    assert "'nowhere.md'" in made.stderr
    assert "no-such-part" in made.stderr


PICTURED = sorted((ROOT / "docs/pictures").glob("*.py"))


@pytest.mark.parametrize("program", PICTURED, ids=lambda path: path.stem)
def test_the_gallery_shows_each_traced_program_in_both_modes(program):
    page = (ROOT / "docs/gallery.md").read_text()
    assert (
        f"\ngpushmem run --trace out/ -n 2 {named(program)} && gpushmem trace open out/\n" in page
    )
    for theme in ("light", "dark"):
        picture = program.with_name(f"{program.stem}-{theme}.svg")
        assert f"](pictures/{picture.name}#gh-{theme}-mode-only)" in page
        assert picture.stat().st_size < 100_000
        assert ET.parse(picture).getroot().tag.endswith("svg")


@pytest.mark.sweep
@pytest.mark.parametrize("program", PICTURED, ids=lambda path: path.stem)
def test_traced_programs_run(run_cli, program):
    assert run_cli("run", "-n", 2, program, timeout=150, code=0).stderr == ""


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def blocks(page, *languages):
    found = BLOCK.findall(page.read_text())
    return [textwrap.dedent(code) for _, language, code in found if language in languages]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_code_is_python(page):
    if page.name != FRAGMENTS:
        for code in blocks(page, "python", "py"):
            ast.parse(re.sub(r"^%.*", "", code, flags=re.MULTILINE))  # magics of notebooks


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_exist(page):
    shell = "\n".join(blocks(page, "sh", "bash")).replace("\\\n", "").splitlines()
    typed = [
        line[2:] for code in blocks(page, "") for line in code.splitlines() if line[:2] == "$ "
    ]
    for line in [*shell, *typed]:
        for command in COMMAND.findall(line.split(" #")[0]):
            check(command)
    for command in re.findall(
        r"`(?:\S*/)?gpushmem ([a-z]+(?: [^`]*)?)`", BLOCK.sub("", page.read_text())
    ):
        check(command)


def check(command):
    """Raise unless the command and its options exist."""
    name, *args = shlex.split(command.split("...")[0])
    found = group.get_command(click.Context(group), name)
    assert found is not None, f"gpushmem {command}: there is no command {name}"
    context = click.Context(found, info_name=name)
    try:
        found.make_parser(context).parse_args(args)
    except click.NoSuchOption as error:
        raise AssertionError(f"gpushmem {command}: {error.message}") from None
    except click.BadOptionUsage:
        pass  # an option by itself, in prose
