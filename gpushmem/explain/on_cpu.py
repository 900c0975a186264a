"""How a kernel runs on the cpu backend.

Whether loops are vectorised is said by LLVM's own remarks: the kernel is compiled once more, with
LLVM told to write them (`-pass-remarks`, as of `opt`; it writes to descriptor 2). There are no
source lines in them, because kernels are compiled without debug information.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

from gpushmem.explain.launches import Launched
from gpushmem.simt.launch import VECTOR, usable_cores

__all__ = ["OnCpu", "Vectorised", "on_cpu"]

REMARK = "remark: "
DONE = re.compile(
    r"vectorized (?:outer )?loop \(vectorization width: (\d+), interleaved count: (\d+)"
)
NOT_DONE = re.compile(
    r"loop not vectorized: (.*)|(the cost-model indicates that vectorization is not .*)"
)


@dataclass(frozen=True)
class Vectorised:
    """A loop that is vectorised: how many iterations at a time, and how often that is unrolled."""

    width: int
    interleaved: int


@dataclass(frozen=True)
class OnCpu:
    """How a kernel runs on the cpu backend."""

    kind: str  # "loops", "lockstep" or "fibers": see `Entry`
    reason: str  # why, with the source line; empty if that is not known
    cores: int  # that its launches may use
    vectorised: tuple[Vectorised, ...] | None  # None: not known
    not_vectorised: tuple[str, ...]  # LLVM's reasons for other loops; none are told of fibers


def on_cpu(kernel: Launched) -> OnCpu:
    """Explain how a kernel runs; compiles it once more."""
    entry = kernel.entry
    done: tuple[Vectorised, ...] | None = None
    reasons: tuple[str, ...] = ()
    if kernel.source is not None:
        done, reasons = _vectorised(kernel.source.compile_again)
        done = (Vectorised(VECTOR, 1),) * entry.vectors + done
        if entry.vectors:  # LLVM's remarks would be on these, and on what is left of rows
            reasons = ()
    return OnCpu(
        entry.kind, entry.reason, usable_cores(), done, () if entry.kind == "fibers" else reasons
    )


def _vectorised(compile_: Callable[[], object]) -> tuple[tuple[Vectorised, ...], tuple[str, ...]]:
    with _remarks() as remarks:
        compile_()
    done = tuple(Vectorised(int(m[1]), int(m[2])) for m in map(DONE.match, remarks) if m)
    reasons = (m[1] or m[2] for m in map(NOT_DONE.match, remarks) if m)
    return done, tuple(dict.fromkeys(reasons))


@contextmanager
def _remarks() -> Iterator[list[str]]:
    """LLVM's remarks on loops, complete at the end of the block; other errors are passed on."""
    _ask_for_remarks()
    found: list[str] = []
    with tempfile.TemporaryFile() as file:
        errors = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield found
        finally:
            os.dup2(errors, 2)
            os.close(errors)
            file.seek(0)
            for line in file.read().splitlines(keepends=True):
                text = line.decode(errors="replace").strip()
                if text.startswith(REMARK):
                    found.append(text.removeprefix(REMARK).split(": ", 1)[-1])
                else:
                    os.write(2, line)


@cache  # LLVM takes an option once
def _ask_for_remarks() -> None:
    for option in ("pass-remarks", "pass-remarks-missed", "pass-remarks-analysis"):
        llvm.set_option("gpushmem", f"--{option}=^loop-vectorize$")
