"""Kernels, their launches, and the streams and graphs that these are queued on."""

from gpushmem.simt.compiler.groups import APART, LEFT, UNLIKE
from gpushmem.simt.grid.entry import VECTOR, Entry
from gpushmem.simt.run.cores import usable_cores
from gpushmem.simt.run.graph import Graph, captured
from gpushmem.simt.run.kernel import (
    Form,
    Kernel,
    KernelFailure,
    Running,
    Source,
    form_hooks,
    run_hooks,
)
from gpushmem.simt.run.queue import of_process
from gpushmem.simt.run.scheduler import CANCELLED, OWED
from gpushmem.simt.run.stream import Device, Stream

__all__ = [
    "APART", "CANCELLED", "LEFT", "OWED", "UNLIKE", "VECTOR", "Device", "Entry", "Form", "Graph",
    "Kernel", "KernelFailure", "Running", "Source", "Stream", "captured", "form_hooks",
    "of_process", "run_hooks", "usable_cores",
]  # fmt: skip
