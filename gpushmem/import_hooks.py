"""What is to happen when a module is imported, whoever imports it."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["WhenImported"]


class WhenImported(MetaPathFinder):
    """Finds one module as others do; calls `before` its code runs, and `then` with it afterwards.

    From `wait` until the module has been imported, or until `give_up`.
    """

    def __init__(
        self,
        name: str,
        then: Callable[[ModuleType], Any] = lambda module: None,
        before: Callable[[], Any] = lambda: None,
    ) -> None:
        self._name, self.then, self.before = name, then, before
        self._looking = threading.local()  # others that find modules ask all again

    def wait(self) -> None:
        """Wait for the import."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def give_up(self) -> None:
        """Do not."""
        if self in (sys.meta_path or ()):  # None at the end of the process
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """The spec that the other finders give; of the module waited for, with the calls added."""
        if name != self._name or getattr(self._looking, "on", False):
            return None
        self._looking.on = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking.on = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader(Loader):
    """Loads as `real` does, with the calls of `waiting`."""

    def __init__(self, real: Any, waiting: WhenImported) -> None:
        self._real, self._waiting = real, waiting

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._real.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Import it, with the calls."""
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._real
        self._waiting.before()
        self._real.exec_module(module)
        self._waiting.give_up()
        self._waiting.then(module)
