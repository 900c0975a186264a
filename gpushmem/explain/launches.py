"""Run a program, and note which kernels it launches, and how they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpushmem import runtime, simulator
from gpushmem.kernel import Kernel, launch_hooks
from gpushmem.simt.launch import Entry, Running, Source, run_hooks

__all__ = ["Launched", "Shape", "launched_by"]


class Shape(NamedTuple):
    """The shape of a launch, with the bytes of dynamic shared memory."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    dynamic_shared: int


@dataclass
class Launched:
    """A kernel for argument types, and its launches."""

    name: str
    entry: Entry
    source: Source | None  # None: Numba's cache had the code
    options: dict[str, Any]  # of `jit`
    times: dict[Shape, int] = field(default_factory=dict)
    cores: dict[Shape, int] = field(default_factory=dict)  # the most that a launch has run on

    def note(self, launch: Running, cores: int) -> None:
        """Note a launch, and on how many cores it ran."""
        shape = Shape(launch.shape.grid, launch.shape.block, launch.shape.dynamic_shared)
        self.times[shape] = self.times.get(shape, 0) + 1
        self.cores[shape] = max(self.cores.get(shape, 0), cores)


def launched_by(run: Callable[[], object]) -> list[Launched]:
    """Run a program to its end; return the kernels it launched, in the order of first launches.

    Host operations that run as kernels are not among them.
    """
    of_jit: dict[Any, dict[str, Any]] = {}  # functions of kernels, and their options
    found: dict[str, Launched] = {}  # by the name of their code

    def about_to_launch(kernel: Kernel, args: tuple[Any, ...]) -> None:
        of_jit[kernel.py_func] = kernel.options

    def has_run(launch: Running, cores: int) -> None:
        function = launch.source.py_func if launch.source else None
        if function in of_jit or not getattr(function, "__module__", "").startswith("gpushmem."):
            entry, source = launch.entry, launch.source
            options = of_jit.get(function, source.options if source else {})
            kernel = Launched(launch.name, entry, source, options)
            found.setdefault(entry.name, kernel).note(launch, cores)

    launch_hooks.append(about_to_launch)
    run_hooks.append(has_run)
    try:
        with simulator.enabled():  # for kernels of numba.cuda
            _run(run)
    finally:
        launch_hooks.remove(about_to_launch)
        run_hooks.remove(has_run)
    return list(found.values())


def _run(run: Callable[[], object]) -> None:
    """Run a program, and wait for what it has launched."""
    try:
        run()
    except SystemExit as left:
        if left.code:
            raise
    if runtime.is_initialized():
        runtime.finalize()
