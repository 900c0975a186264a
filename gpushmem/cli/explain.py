"""`gpushmem explain`: how a script's kernels run on CPUs, and what they need on GPUs."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpushmem import settings
from gpushmem.cli.help_layout import Command
from gpushmem.cli.text import columns, wrapped
from gpushmem.errors import ShmemError
from gpushmem.start.launch.program import Program

if TYPE_CHECKING:
    from gpushmem.explain.on_cpu import OnCpu
    from gpushmem.explain.on_gpu import OfBlocks, OnGpu
    from gpushmem.explain.report import Launches, Report

__all__ = ["command"]

KINDS = {
    "loops": "loops over blocks and threads",
    "lockstep": "loops over threads, from wait to wait",
    "fibers": "a fiber per thread",
}
MOST_SHAPES = 4  # of a kernel's launches that are printed
MOST_BLOCKS = 8  # sizes of blocks
MOST_LINES = 6  # of an error


@click.command(
    "explain", cls=Command, examples=["gpushmem explain -n 2 program.py"],
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="Tell how a script's kernels run on CPUs, and what they need on GPUs.",
)  # fmt: skip
@click.option(
    "-n", "n_pes", type=click.IntRange(1, settings.MOST), default=1, show_default=True,
    help="Number of PEs that run the script.",
)  # fmt: skip
@click.option(
    "--arch",
    "archs",
    default="sm_90",
    show_default=True,
    help="Architectures of GPUs, such as sm_80,sm_90,sm_100.",
)
@click.option("--no-gpu", is_flag=True, help="Do not compile the kernels for GPUs.")
@click.option(
    "-k", "--kernel", "names", multiple=True, metavar="NAME",
    help="Report on this kernel only. May be repeated.",
)  # fmt: skip
@click.option(
    "--block", "threads", multiple=True, type=click.IntRange(1, 1024), metavar="THREADS",
    help="Tell the occupancy of such blocks, too. May be repeated.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-m", "module", help="Run a module, as python -m does, instead of a script.")
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def command(
    n_pes: int,
    archs: str,
    no_gpu: bool,
    names: tuple[str, ...],
    threads: tuple[int, ...],
    as_json: bool,
    module: str | None,
    args: tuple[str, ...],
) -> None:
    """Run SCRIPT on the cpu backend, and explain the kernels that PE 0 launches; no GPU is needed.

    For each kernel and combination of argument types: how its threads run on a CPU and why, whether
    loops are vectorised, on how many cores; and for each architecture the registers, spills and
    shared memory it needs, how many of its blocks a multiprocessor holds, and what limits them.

    With --json the output of SCRIPT goes to standard error. docs/explain.md describes the report.
    """
    from gpushmem.start.launch.spawn import collect  # noqa: PLC0415  (heavy: not for --help)

    program = Program("module", (module, *args)) if module else Program("script", args)
    try:
        lacking = "" if no_gpu else _lacking()
        wanted = () if no_gpu or lacking else _archs(archs)
        work = partial(_in_a_pe, program.target(), wanted, names, threads, as_json)
        with settings.putting(GPUSHMEM_TIER="full"):  # of code that is optimised
            outcome, found = collect(n_pes, work, backend="cpu")
    except ShmemError as error:
        raise click.UsageError(str(error)) from None
    script = module or args[0]
    if outcome.code:
        click.echo(f"gpushmem: no report, because {script} failed", err=True)
        sys.exit(outcome.code)
    if found[0] is None:
        raise click.ClickException(f"no report, because PE 0 left {script} before its end")
    others = _of_others(found)
    if as_json:
        about = {"script": script, "n_pes": n_pes, "lacking": lacking}
        kernels = [report.as_json() for report in found[0]]
        rest = [{"kernel": r.kernel, "types": r.types, "pes": pes} for r, pes in others]
        click.echo(json.dumps({**about, "kernels": kernels, "of_other_pes": rest}, indent=2))
    else:
        click.echo("\n".join(_text(script, found[0], others, names, lacking)))


def _in_a_pe(
    run: Any, archs: tuple[str, ...], names: tuple[str, ...], threads: tuple[int, ...],
    as_json: bool,
) -> Any:  # fmt: skip
    from gpushmem.explain.report import explain  # noqa: PLC0415

    if as_json:
        os.dup2(2, 1)
    return explain(run, archs, names, threads)


def _lacking() -> str:
    """What is missing for compiling for GPUs; empty if nothing is."""
    from gpushmem.backends.nvshmem import versions  # noqa: PLC0415

    lacking = versions.lacking(versions.installed)
    return f"{', '.join(lacking)}: {versions.INSTALL}" if lacking else ""


def _archs(text: str) -> tuple[str, ...]:
    from gpushmem.backends.nvshmem.compile.compiler import Arch  # noqa: PLC0415

    return tuple(str(Arch.of(arch)) for arch in text.split(","))


def _of_others(found: list[Any]) -> list[tuple[Report, list[int]]]:
    """The kernels that only PEs other than 0 launch, and these PEs."""
    known = {report.signature for report in found[0]}
    others: dict[str, tuple[Report, list[int]]] = {}
    for pe, reports in enumerate(found[1:], 1):
        for report in {r.signature: r for r in reports or ()}.values():
            if report.signature not in known:
                others.setdefault(report.signature, (report, []))[1].append(pe)
    return list(others.values())


# --- text


def _text(
    script: str, reports: list[Report], others: list[tuple[Report, list[int]]],
    names: tuple[str, ...], lacking: str,
) -> Iterator[str]:  # fmt: skip
    if not reports:
        which = f" called {' or '.join(names)}" if names else ""
        yield f"{script}: PE 0 launches no kernel{which}"
    for k, report in enumerate(reports):
        if k:
            yield ""
        yield from wrapped(f"{report.signature}{_where(report)}", 4)
        yield from _indented(_rows(report))
    for report, pes in others:
        yield ""
        which = ", ".join(map(str, pes))
        yield f"{report.signature}{_where(report)}"
        yield (
            f"  launched by PE {which} only" if len(pes) == 1 else f"  launched by PEs {which} only"
        )
    if lacking:
        yield ""
        yield from wrapped(f"Not compiled for GPUs: {lacking}", 0)


def _where(report: Report) -> str:
    return f"  {Path(report.file).name}:{report.line}" if report.file else ""


def _indented(rows: Iterator[tuple[str, str]]) -> Iterator[str]:
    """Rows of a name and a text, wrapped, in two columns."""
    all_rows = list(rows)
    for (_, text), line in zip(all_rows, columns(all_rows), strict=True):
        yield from wrapped(f"  {line}", len(line) - len(text) + 4)


def _rows(report: Report) -> Iterator[tuple[str, str]]:
    shown = report.launches[:MOST_SHAPES]
    for k, launches in enumerate(shown):
        yield ("launched" if k == 0 else ""), _launched(launches)
    if len(report.launches) > len(shown):
        yield "", f"and in {_count(len(report.launches) - len(shown), 'other shape')}"
    if report.cpu is not None:
        yield from _cpu_rows(report.cpu, report.launches)
    for on_gpu in report.gpu:
        yield from _gpu_rows(on_gpu)


def _launched(launches: Launches) -> str:
    shape = ", ".join(map(_extent, (launches.grid, launches.block)))
    times = "once" if launches.times == 1 else f"{launches.times} times"
    dynamic = launches.dynamic_shared
    return f"[{shape}] {times}" + (f", {dynamic} bytes of dynamic shared memory" if dynamic else "")


def _extent(extents: tuple[int, ...]) -> str:
    """An extent as it is written in a launch."""
    while len(extents) > 1 and extents[-1] == 1:
        extents = extents[:-1]
    return str(extents[0]) if len(extents) == 1 else f"({', '.join(map(str, extents))})"


def _cpu_rows(cpu: OnCpu, launches: tuple[Launches, ...]) -> Iterator[tuple[str, str]]:
    yield "cpu", KINDS.get(cpu.kind, cpu.kind) + (f": {cpu.reason}" if cpu.reason else "")
    if cpu.vectorised or cpu.kind != "fibers":
        yield "", _vectorised(cpu)
    used = max(launch.cores for launch in launches)
    blocks = max(max(launch.grid) for launch in launches)
    why = ": there is one block" if blocks == 1 else ": too little work to share"
    yield "", f"on {used} of {_count(cpu.cores, 'core')}{why if used == 1 < cpu.cores else ''}"


def _vectorised(cpu: OnCpu) -> str:
    if cpu.vectorised is None:
        return "vectorised: not known, its code is of Numba's cache"
    if cpu.vectorised:
        widths = " and ".join(map(str, sorted({v.width for v in cpu.vectorised})))
        loops = _count(len(cpu.vectorised), "loop")
        return f"vectorised: {loops}, {widths} iterations at a time"
    reasons = f" (LLVM: {'; '.join(cpu.not_vectorised[:3])})" if cpu.not_vectorised else ""
    return f"not vectorised{reasons}"


def _gpu_rows(gpu: OnGpu) -> Iterator[tuple[str, str]]:
    if gpu.needs is None:
        yield gpu.arch, f"cannot be compiled: {_in_short(gpu.error)}"
        return
    needs = gpu.needs
    spilled = f"spills {needs.spill_stores} bytes, loads {needs.spill_loads}"
    spills = spilled if needs.spill_stores or needs.spill_loads else "no spills"
    spills += f" ({needs.in_calls} bytes in functions it calls)" if needs.in_calls else ""
    stack = f", {needs.stack} bytes of stack" if needs.stack else ""
    yield (
        gpu.arch,
        f"{needs.registers} registers, {spills}{stack}, {needs.shared} bytes of shared memory",
    )
    shown = gpu.blocks[:MOST_BLOCKS]
    for blocks in shown:
        yield "", _fits(blocks, needs.shared)
    if len(gpu.blocks) > len(shown):
        yield "", f"and blocks of {_count(len(gpu.blocks) - len(shown), 'other size')}"


def _in_short(error: str) -> str:
    """An error's first lines, with the source line that Numba's errors name below them."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    named = [re.fullmatch(r'File "(.*)", line (\d+):', line) for line in lines]
    end = next((k for k, found in enumerate(named) if found), len(lines))
    where = next((f" ({Path(m[1]).name}:{m[2]})" for m in named if m), "")
    return " ".join(lines[: min(end, MOST_LINES)]) + where


def _fits(blocks: OfBlocks, shared: int) -> str:
    which = f"blocks of {_count(blocks.threads, 'thread')}"
    if blocks.dynamic_shared:
        which += f" and {shared + blocks.dynamic_shared} bytes of shared memory"
    found = blocks.occupancy
    if found is None:
        return f"{which}: the limits of this architecture are not known here"
    limits = " and ".join(found.limited_by)
    if not found.blocks_per_multiprocessor:
        return f"{which} cannot be launched: not enough {limits}"
    percent = round(100 * found.warps / found.most_warps)
    return (
        f"{which}: {found.blocks_per_multiprocessor} per multiprocessor, {found.warps} of "
        f"{found.most_warps} warps ({percent} %), limited by {limits}"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
