"""Compiling and linking for GPUs in processes of their own."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest


@pytest.fixture(scope="session")
def elsewhere():
    """Processes for what takes much memory: PEs of later tests are forked from this one.

    They are not forked: NVRTC and the linker start the driver, which a fork does not survive.
    """
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        yield pool
