"""Fixtures of the tests of launching."""

import os

import pytest

from gpushmem.job import job as jobs
from tests.bootstrap.processes import clean


@pytest.fixture
def environment(monkeypatch):
    """Put an environment in place of this process's, and forget its job."""

    def put(env):
        for name in set(os.environ) - set(clean()):
            monkeypatch.delenv(name)
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        before = jobs.current()
        jobs.adopt(None)
        undo.append(before)

    undo = []
    yield put
    for before in undo[:1]:
        jobs.adopt(before)
