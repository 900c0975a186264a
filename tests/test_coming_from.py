"""The pages for those who come from elsewhere: their programs run, their names are ours."""

import re
import runpy
from pathlib import Path

import pytest

import gpushmem as shmem

PAGES = sorted((Path(__file__).parent.parent / "docs").glob("coming-from-*.md"))
PAGES = [page for page in PAGES if page.stem != "coming-from-nvshmem4py"]  # see tests/compat


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_program_of_a_page_runs(run_pes, tmp_path, page):
    (program,) = re.findall(r"<!-- program -->\n```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert "assert" in program
    path = tmp_path / "program.py"
    path.write_text(program)
    run_pes(lambda: bool(runpy.run_path(str(path))), 3)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_right_column_names_what_there_is(page):
    table = page.read_text().split("\n## ")[0]
    cells = [line.split(" | ")[-1] for line in table.splitlines() if line.startswith("| `")]
    called = re.findall(r"`([a-z_]+)(?=[(`])", " ".join(cells))
    assert len(called) > 15
    assert {name for name in called if name.startswith("_")} <= {"_warp", "_block"}
    missing = {name for name in called if name[0] != "_"} - set(shmem.__all__)
    assert missing == set()
