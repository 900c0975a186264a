"""What every process needs of the engine: made before it is needed, or once for all machines."""

from __future__ import annotations

from gpushmem.artifacts import numba_extensions
from gpushmem.simt.base import printing
from gpushmem.simt.compiler.target import simt_target
from gpushmem.simt.grid import entry, kernel_cache
from gpushmem.simt.run import cores, helper_threads, queue, scheduler

__all__ = ["build", "warm_up"]


def warm_up(n_processes: int | None) -> None:
    """Prepare the engine, in the process that so many will be forked from; None: not known."""
    scheduler.addresses()
    queue.native()
    entry.warm_up()
    kernel_cache.warm_up()
    if n_processes is None or n_processes > cores.available():
        # What compiling needs. Where each process has a core, those that compile make it as fast.
        simt_target.typing_context.refresh()
        simt_target.target_context.refresh()
        numba_extensions.extensions()


def build() -> None:
    """Compile the engine's own functions into the store; what is needed last comes first."""
    for part in (helper_threads.native, queue.native, printing.install, scheduler.addresses):
        part()
