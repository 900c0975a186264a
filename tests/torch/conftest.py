"""PyTorch with one thread in each PE."""

import pytest

from tests.later import later


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    later("torch").set_num_threads(1)
