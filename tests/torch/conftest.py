"""What tests of PyTorch share."""

import pytest

from tests.later import later


@pytest.fixture(scope="session")
def compiler():
    """PyTorch's compiler is imported before PEs are forked: each of them would take seconds."""
    torch = later("torch").load()
    torch.compile(torch.neg, backend="aot_eager")(torch.zeros(1))
    torch.compiler.reset()
