"""Packages that take a quarter of a gigabyte: loaded by the tests that use them.

Every worker imports all test files, and PEs are forked from it: memory that it has costs each.
"""

import importlib
import sys
from contextlib import suppress
from importlib.util import find_spec

import pytest


class later:
    """A module that is imported when something of it is used; without its package, tests skip."""

    def __init__(self, name):
        if find_spec(name.partition(".")[0]) is None:
            pytest.skip(f"{name} is not installed", allow_module_level=True)
        self._name = name

    def __getattr__(self, name):
        if name.startswith("_"):  # pytest asks all that is in a test file what it is
            raise AttributeError(name)
        return getattr(self.load(), name)

    def load(self):
        """The module itself; PyTorch with one thread in each PE: more would wait for a core."""
        module = importlib.import_module(self._name)
        if self._name == "torch":
            module.set_num_threads(1)
        return module


def load_nvshmem4py():
    """Load it without PyTorch, which it imports if it can, and which we do not use through it."""
    if "torch" not in sys.modules:
        sys.modules["torch"] = None
        try:
            with suppress(ImportError):  # it is not installed
                importlib.import_module("nvshmem.core")
        finally:
            del sys.modules["torch"]
