"""Short commands: `nox -l` lists them, `nox -s docs` runs one.

What follows `--` goes to the tool: `nox -s tests -- tests/torch`. Linters get environments of their
own, in .nox/, which are kept. What runs gpushmem runs in the environment that nox is installed in.
"""

import re
import sys
from pathlib import Path

import nox

nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "types"]

DEV = nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"]["dev"]
README = Path("README.md").read_text()
TESTS = re.search(r"<!-- test command -->\n```sh\n.*/pytest (.*)\n```", README)[1].split()


def pinned(tool):
    """The version that pyproject.toml wants."""
    return next(each for each in DEV if each.startswith(f"{tool}=="))


here = nox.session(venv_backend="none")


def python(session, *command):
    """Run a command of Python in this environment, with what follows `--`."""
    session.run(sys.executable, *command, *session.posargs)


@nox.session
def lint(session):
    """Style and spelling."""
    session.install("-q", pinned("ruff"), pinned("codespell"), "tomli")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("codespell")


@nox.session
def types(session):
    """Types: mypy, strict."""
    session.install("-q", pinned("mypy"), "numpy", "click", "platformdirs", "pytest", "rich")
    session.run("mypy", *session.posargs)


@here
def tests(session):
    """The tests, as the README runs them."""
    python(session, "-m", "pytest", *TESTS)


@here
def affected(session):
    """The tests of what has changed since main, and of the rooms above; `-- BASE`: since that."""
    files = session.run(
        sys.executable, "-m", "tests.affected", *session.posargs, silent=True, log=False
    )
    session.run(sys.executable, "-m", "pytest", *TESTS, *files.split())


@here
def slow(session):
    """The slow tier."""
    python(session, "-m", "pytest", *TESTS, "-m", "slow")


@here
def sweep(session):
    """The sweep: hours."""
    python(session, "-m", "pytest", "-m", "sweep")


@here
def docs(session):
    """The documentation, as static files in `site`."""
    python(session, "-m", "sphinx", "-W", "docs", "site")


@here
def bench(session):
    """Quick benchmarks, a row in bench/results/history.csv; `-- --compare` judges the last one."""
    python(session, "bench/history.py")


@here
def package(session):
    """Build what is published, and run it in new environments of Python 3.10 to 3.13."""
    session.run(".ci/package", *session.posargs, external=True)
