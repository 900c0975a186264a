"""`gpushmem new NAME`: make a project with a kernel, its test and a workflow."""

from __future__ import annotations

import importlib.util
import keyword
import re
from pathlib import Path

import click

from gpushmem.cli.help_layout import Command

__all__ = ["command"]

PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "NAME"
version = "0.1.0"
requires-python = ">=3.10"
dependencies = ["gpushmem"]

[project.optional-dependencies]
test = ["pytest"]

[tool.setuptools]
packages = ["PACKAGE"]

[tool.pytest.ini_options]
pythonpath = ["."]
"""
README = """\
# NAME

In an environment where gpushmem is installed:

    pip install -e '.[test]'
    gpushmem run -n 4 -m PACKAGE.ring                # on 4 PEs of this machine
    python -m pytest --gpushmem-check                # the tests, with the checker for races
    gpushmem run -n 4 --trace out -m PACKAGE.ring && gpushmem trace open out

For GPUs, on any machine, with `gpushmem[nvshmem]` installed:

    gpushmem compile --arch sm_90 PACKAGE/ring.py
"""
IGNORED = """\
__pycache__/
*.egg-info/
.venv/
out/
"""
RING = '''\
"""Each PE sends an array to its right neighbour."""

from numba import cuda

import gpushmem as shmem


@shmem.jit
def shift(dst, src, signal):
    right = (shmem.my_pe() + 1) % shmem.n_pes()
    shmem.put_signal_block(dst, src, signal, 1, shmem.SIGNAL_SET, right)
    if cuda.threadIdx.x == 0:
        shmem.signal_wait_until(signal, shmem.CMP_EQ, 1)
    cuda.syncthreads()


def main() -> int:
    """One step of the ring; returns the number that this PE gets."""
    with shmem.session() as world:
        src = shmem.full(1024, world.my_pe, dtype="int32")
        dst = shmem.empty(1024, dtype="int32")
        signal = shmem.zeros(1, dtype="uint64")
        shift[1, 128](dst, src, signal)
        shmem.barrier_all()
        print(f"PE {world.my_pe} got {dst.numpy()[0]}")
        return int(dst.numpy()[0])


if __name__ == "__main__":
    main()
'''
TEST = """\
import pytest

from PACKAGE.ring import main


@pytest.mark.gpushmem_pes(1, 2, 5)
def test_each_pe_gets_its_left_neighbours_number(run_pes, n_pes):
    assert run_pes(main) == [(pe - 1) % n_pes for pe in range(n_pes)]
"""
WORKFLOW = """\
name: tests
on: [push, pull_request]
jobs:
  tests:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      # If gpushmem is not on your package index, install it first, from where you have it.
      - run: pip install -e '.[test]'
      - run: pytest --gpushmem-check
      - run: pytest --gpushmem-memory weak
"""
FILES = {
    "pyproject.toml": PROJECT,
    "README.md": README,
    ".gitignore": IGNORED,
    "PACKAGE/__init__.py": "",
    "PACKAGE/ring.py": RING,
    "tests/test_ring.py": TEST,
    ".github/workflows/tests.yml": WORKFLOW,
}


@click.command(
    "new", cls=Command, short_help="Make a project with a kernel, its test and a workflow.",
    examples=["gpushmem new halo", "gpushmem new work/my-kernels"],
)  # fmt: skip
@click.argument("path", metavar="NAME", type=click.Path(path_type=Path))
def command(path: Path) -> None:
    """Make the folder NAME, with a package that has a kernel, a test of it, and a workflow.

    The last part of NAME is that of the project, letters, digits, - and _. What exists is never
    changed.
    """
    package = path.name.replace("-", "_")
    if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", package) or keyword.iskeyword(package):
        raise click.UsageError(
            f"{path.name} is no name for a package: use letters, digits, - and _, a letter first"
        )
    try:
        if path.exists():
            raise click.UsageError(f"{path} exists: choose another name")
        installed = importlib.util.find_spec(package)
        if installed is not None and installed.origin is not None:
            raise click.UsageError(
                f"{package} is the name of a package that is installed: choose another name"
            )
        for name, text in FILES.items():
            file = path / name.replace("PACKAGE", package)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace("PACKAGE", package).replace("NAME", path.name))
    except OSError as error:
        raise click.ClickException(
            f"cannot make {error.filename or path}: {error.strerror}"
        ) from error
    click.echo(f"{path}/README.md has the commands; the kernel is in {path}/{package}/ring.py")
