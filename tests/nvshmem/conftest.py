"""The folder of compiled code that the tests of a session share."""

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def compiled_code(tmp_path_factory):
    """GPUSHMEM_CACHE_DIR for all processes: a folder of this session, unless it is set already."""
    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get("GPUSHMEM_CACHE_DIR"):
            patch.setenv("GPUSHMEM_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield
