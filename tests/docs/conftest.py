"""The site, built once for all tests."""

import fcntl
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """Where the site is, built with warnings as errors."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # then the folder above is shared by all workers
        folder = folder.parent
    there, being_built = folder / "site", folder / "site-being-built"
    with open(folder / "site-lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not there.exists():
            command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "docs"]
            made = subprocess.run(
                [*command, being_built], cwd=ROOT, capture_output=True, text=True, timeout=170,
                check=False,
            )  # fmt: skip
            assert made.returncode == 0, made.stdout + made.stderr
            being_built.rename(there)
    return there
