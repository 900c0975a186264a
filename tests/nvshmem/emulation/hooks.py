"""Change a module when it is imported: to import it now would cost every process its time."""

import importlib.abc
import importlib.machinery
import sys


def after_import(changes) -> None:
    """Call `changes[name](module)` after each module is imported; at once if it has been."""
    for name, change in changes.items():
        if name in sys.modules:
            change(sys.modules[name])
    sys.meta_path.insert(0, _Finder(changes))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, changes):
        self.changes = changes

    def find_spec(self, name, path, target=None):
        change = self.changes.get(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if change else None
        if spec is not None:
            _run_after(spec.loader, change)
        return spec


def _run_after(loader, change):
    """Make `loader.exec_module` call `change`; on the instance, so that the loader stays itself."""
    execute = loader.exec_module

    def exec_module(module):
        execute(module)
        change(module)

    loader.exec_module = exec_module
