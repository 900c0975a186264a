"""`gpushmem new`: the project that it makes works, and nothing that exists is changed."""

import ast
import os
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT, cli


def test_the_project_works_as_it_is(tmp_path):
    said = cli("new", "my-rings", cwd=tmp_path, code=0).stdout
    assert said == (
        "my-rings/README.md has the commands; the kernel is in my-rings/my_rings/ring.py\n"
    )
    project = tmp_path / "my-rings"
    for file in project.rglob("*.*"):
        if file.is_file():
            text = file.read_text()
            assert "NAME" not in text.replace("__name__", "")
            assert "PACKAGE" not in text
            if file.suffix == ".py":
                ast.parse(text)
    readme = (project / "README.md").read_text()
    for command in re.findall(r"gpushmem (run .*?) *(?:#|&&|$)", readme, re.MULTILINE):
        out = cli(*command.split(), cwd=project, code=0).stdout
        assert sorted(out.splitlines()) == [f"PE {pe} got {(pe - 1) % 4}" for pe in range(4)]
    workflow = (project / ".github/workflows/tests.yml").read_text()
    for options in re.findall("run: pytest (.*)", workflow):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options.split()],
            cwd=project, capture_output=True, text=True, timeout=150, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        )  # fmt: skip
        assert "3 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("there", "there exists: choose another name"),
        ("3d", "3d is no name for a package"),
        ("class", "class is no name for a package"),
        ("there/file/new", "cannot make there/file/new"),
        ("n" * 300, "File name too long"),
        ("numpy", "numpy is the name of a package that is installed"),
        ("there/json", "json is the name of a package that is installed"),
    ],
)
def test_what_cannot_be_made_is_refused(tmp_path, name, said):
    (tmp_path / "there").mkdir()
    (tmp_path / "there/file").write_text("mine")
    assert said in cli("new", name, cwd=tmp_path).stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["there", "file"]
    assert (tmp_path / "there/file").read_text() == "mine"
