"""Fixtures: machines made of files, and one check of them."""

import pytest

from gpushmem.doctor.checks import CHECKS
from tests.doctor.machines import Machines


@pytest.fixture
def machines(tmp_path):
    """A `Machines` in a folder of its own."""
    return Machines(tmp_path)


@pytest.fixture
def look():
    """`look(name, system, n_pes=2)`: what the check finds, as (verdict, found, fix)."""
    by_name = {check.name: check for check in CHECKS}

    def one(name, system, n_pes=2):
        finding = by_name[name].look(system, n_pes)
        return finding.verdict, finding.found, finding.fix

    return one
