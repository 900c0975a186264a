"""The report on a program's kernels: made in its PEs, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from gpushmem.backends.nvshmem.compile import aot
from gpushmem.explain.launches import Launched, launched_by
from gpushmem.explain.on_cpu import OnCpu, on_cpu
from gpushmem.explain.on_gpu import OnGpu, forget_code_of_cpus, on_gpu
from gpushmem.job.job import current
from gpushmem.progress import progress

__all__ = ["Launches", "Report", "explain"]


@dataclass(frozen=True)
class Launches:
    """The launches of one shape."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    dynamic_shared: int  # bytes
    times: int
    cores: int  # the most that one has run on


@dataclass(frozen=True)
class Report:
    """What is to be said about a kernel; PEs but 0 say only that they launch it."""

    kernel: str
    types: str
    file: str
    line: int
    launches: tuple[Launches, ...]
    cpu: OnCpu | None = None
    gpu: tuple[OnGpu, ...] = ()

    @property
    def signature(self) -> str:
        """The kernel with the types of its arguments."""
        return f"{self.kernel}({self.types})"

    def as_json(self) -> dict[str, Any]:
        """The report as an object of JSON."""
        return asdict(self)


def explain(
    run: Callable[[], object],
    archs: tuple[str, ...],
    names: tuple[str, ...] = (),
    threads: tuple[int, ...] = (),
) -> list[Report]:
    """Run a program in a PE; report on the kernels that it launches, or on those of some names.

    The occupancy is told for the blocks that are launched, and for blocks of `threads` threads.
    """
    kernels = [k for k in launched_by(run) if not names or k.name in names]
    reports = list(map(_launches, kernels))
    job = current()
    if job is not None and job.my_pe:
        return reports
    with progress("compiling", len(kernels) * (1 + len(archs))) as bar:
        # All of them first: see `forget_code_of_cpus`.
        on_cpus = [on_cpu(k) for k in bar.each(kernels, lambda k: f"{k.name}, cpu")]
        forget_code_of_cpus()
        work = bar.each(product(kernels, archs), lambda pair: f"{pair[0].name}, {pair[1]}")
        on_gpus = [on_gpu(kernel, arch, threads) for kernel, arch in work]
    n = len(archs)
    return [
        replace(report, cpu=cpu, gpu=tuple(on_gpus[n * k : n * (k + 1)]))
        for k, (report, cpu) in enumerate(zip(reports, on_cpus, strict=True))
    ]


def _launches(kernel: Launched) -> Report:
    types, file, line = "", "", 0
    if kernel.source is not None:
        types = ", ".join(map(aot.text_of, kernel.source.argtypes))
        code = kernel.source.py_func.__code__
        file, line = code.co_filename, code.co_firstlineno
    launches = (Launches(*s, times, kernel.cores[s]) for s, times in kernel.times.items())
    return Report(kernel.name, types, file, line, tuple(launches))
