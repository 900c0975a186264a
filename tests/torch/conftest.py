"""PyTorch with one thread in each PE."""

import pytest

from tests.later import later


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    later("torch").set_num_threads(1)


@pytest.fixture(scope="session")
def compiler():
    """PyTorch's compiler is imported before PEs are forked: each of them would take seconds."""
    torch = later("torch").load()
    torch.compile(torch.neg, backend="aot_eager")(torch.zeros(1))
    torch.compiler.reset()
