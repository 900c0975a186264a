"""PyTorch with one thread in each PE; its compiler wants modules where tests have them later."""

import importlib

import pytest

from tests.later import later


@pytest.fixture(autouse=True, scope="module")
def loaded(request):
    for name, value in [*vars(request.module).items()]:
        if isinstance(value, later):
            setattr(request.module, name, importlib.import_module(value._name))
    importlib.import_module("torch").set_num_threads(1)
