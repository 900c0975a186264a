"""`gpushmem compile`: compile a script's kernels to machine code for GPUs, on any machine."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpushmem import settings
from gpushmem.cli.help_layout import Command
from gpushmem.errors import ArgumentError, ShmemError
from gpushmem.progress import progress

if TYPE_CHECKING:
    from gpushmem.backends.nvshmem.compile.aot import Built
    from gpushmem.kernel import Kernel

__all__ = ["command"]

KINDS = ("cubin", "ptx", "ltoir")
COMPILERS = ("numba-cuda", "numba-cuda-mlir")
COLUMNS = ("kernel", "arch", "registers", "stack", "spills", "shared", "code")
Wanted = tuple[Any, tuple[Any, ...]]  # a kernel, and the types of its arguments


@click.command(
    "compile", cls=Command,
    examples=[
        "gpushmem compile --arch sm_90,sm_100 program.py",
        "gpushmem compile --arch sm_90 --output out program.py",
    ],
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True},
    short_help="Compile a script's kernels for GPUs, on any machine.",
)  # fmt: skip
@click.option(
    "--arch",
    "archs",
    default="sm_90",
    show_default=True,
    help="Target architectures, such as sm_80,sm_90,sm_100.",
)
@click.option(
    "-s",
    "--signature",
    "signatures",
    multiple=True,
    metavar="KERNEL(TYPES)",
    help="Kernel to compile, as 'shift(float32[::1], uint64[::1], int64)'. May be repeated.",
)
@click.option(
    "-n",
    "n_pes",
    type=click.IntRange(1, settings.MOST),
    default=2,
    show_default=True,
    help="Number of PEs that run the script.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the code to this folder, one file per kernel and architecture.",
)
@click.option(
    "--emit",
    default="cubin",
    show_default=True,
    help=f"Formats to write: any of {','.join(KINDS)}.",
)
@click.option(
    "--compiler",
    type=click.Choice(COMPILERS),
    help="Compiler; default: the one that the kernel was written for, see GPUSHMEM_COMPILER.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per kernel.")
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def command(
    archs: str,
    signatures: tuple[str, ...],
    n_pes: int,
    output: Path | None,
    emit: str,
    compiler: str | None,
    as_json: bool,
    args: tuple[str, ...],
) -> None:
    """Compile and link the kernels of SCRIPT for GPUs; needs neither a GPU nor its driver.

    SCRIPT runs on the cpu backend, and each kernel is compiled for the argument types it is
    launched with. With --signature no launch is needed: SCRIPT is imported, and code below `if
    __name__ == "__main__"` does not run; kernels of numba.cuda and numba-cuda-mlir are compiled,
    too.

    Prints the resources of each kernel: registers, and bytes of stack, of spilled registers (+
    those in the NVSHMEM functions it calls), of shared memory and of code.
    """
    kinds = tuple(emit.split(","))
    if not set(kinds) <= set(KINDS):
        raise click.UsageError(f"--emit {emit}: supported formats are {', '.join(KINDS)}")
    from gpushmem.start.launch.program import Program  # noqa: PLC0415  (heavy: not for --help)
    from gpushmem.start.launch.spawn import collect  # noqa: PLC0415

    if compiler is not None:
        settings.put("GPUSHMEM_COMPILER", compiler)  # for the PEs, too
    try:
        _check_installed()
        run = None if signatures else Program("script", args).target()
        work = partial(_in_a_pe, run, args, signatures, _archs(archs), kinds)
        outcome, found = collect(1 if signatures else n_pes, work, backend="cpu")
    except ShmemError as error:
        raise click.UsageError(str(error)) from None
    if outcome.code:
        sys.exit(outcome.code)
    built = {(b.kernel, b.types, b.arch): b for of_pe in found for b in of_pe}
    if not built:
        raise click.ClickException(f"{args[0]} launches no kernel; give kernels with --signature")
    _print(list(built.values()), as_json)
    if output is not None:
        _write(output, built.values())


def _check_installed() -> None:
    from gpushmem.backends.nvshmem import versions  # noqa: PLC0415

    lacking = versions.lacking(versions.installed)
    if lacking:
        raise ArgumentError(f"cannot compile for GPUs: {', '.join(lacking)}: {versions.INSTALL}")


def _archs(text: str) -> tuple[str, ...]:
    from gpushmem.backends.nvshmem.compile.compiler import Arch  # noqa: PLC0415

    return tuple(str(Arch.of(arch)) for arch in text.split(","))


# --- in a PE


def _in_a_pe(
    run: Any, args: tuple[str, ...], signatures: tuple[str, ...], archs: tuple[str, ...],
    kinds: tuple[str, ...],
) -> list[Built]:  # fmt: skip
    """Compile the kernels; PEs with equal lists start at different places in them."""
    from gpushmem.backends.nvshmem.compile import aot, options  # noqa: PLC0415
    from gpushmem.job.job import current  # noqa: PLC0415

    wanted = _launched_by(run) if run is not None else _named(args, signatures)
    work = [(kernel, types, arch) for kernel, types in wanted for arch in archs]
    job = current()
    me, n_pes = (0, 1) if job is None else (job.my_pe, job.n_pes)
    first = me * len(work) // n_pes
    with progress("compiling", len(work), shown=me == 0) as bar:
        return [
            aot.build(kernel.py_func, types, options.code_options(kernel.options), arch, kinds)
            for kernel, types, arch in bar.each(work[first:] + work[:first], _called)
        ]


def _called(work: tuple[Any, Any, str]) -> str:
    kernel, _, arch = work
    return f"{kernel.py_func.__name__}, {arch}"


def _launched_by(run: Any) -> list[Wanted]:
    """Run a script; return the kernels it launched, with their argument types."""
    from numba.cuda.typing.typeof import Purpose, typeof  # noqa: PLC0415

    from gpushmem.kernel import launch_hooks  # noqa: PLC0415

    wanted: dict[Wanted, None] = {}

    def note(kernel: Kernel, args: tuple[Any, ...]) -> None:
        wanted[kernel, tuple(typeof(a, Purpose.argument) for a in args)] = None

    launch_hooks.append(note)
    run()
    return list(wanted)


def _named(args: tuple[str, ...], signatures: tuple[str, ...]) -> list[Wanted]:
    """Import a script; return the kernels given by signatures."""
    import runpy  # noqa: PLC0415

    from numba.cuda.core import sigutils  # noqa: PLC0415

    if not args:
        raise ArgumentError("give a script to compile the kernels of")
    scope = runpy.run_path(args[0], run_name="gpushmem_compile")
    kernels = {name: found for name, value in scope.items() if (found := _kernel_in(value))}
    wanted = []
    for signature in signatures:
        match = re.fullmatch(r"\s*(\w+)\s*(\(.*\))\s*", signature)
        if match is None or match[1] not in kernels:
            raise ArgumentError(
                f"--signature {signature!r}: write it as KERNEL(TYPES); the kernels of {args[0]} "
                f"are {', '.join(sorted(kernels)) or 'none'}"
            )
        types, _ = sigutils.normalize_signature(f"void{match[2]}")
        wanted.append((kernels[match[1]], types))
    return wanted


# Options of `cuda.jit` that `gpushmem.jit` has, too.
OPTIONS = "debug", "fastmath", "launch_bounds", "lineinfo", "max_registers"


def _kernel_in(value: Any) -> Any:
    """A kernel of `gpushmem.jit`, or of `cuda.jit` of either package; None for anything else."""
    from gpushmem.kernel import Kernel  # noqa: PLC0415

    if isinstance(value, Kernel):
        return value
    given = getattr(value, "targetoptions", None)
    if not isinstance(given, dict) or given.get("device", True):  # Numba's for CPUs have none
        return None
    return Kernel(value.py_func, {name: given[name] for name in OPTIONS if given.get(name)})


# --- output


def _print(built: list[Built], as_json: bool) -> None:
    if as_json:
        for b in built:
            about = {
                "kernel": b.kernel, "types": b.types, "arch": b.arch, "compiler": b.compiler,
                "entry": b.entry,
            }  # fmt: skip
            sizes = {f"{kind}_bytes": len(code) for kind, code in b.code.items()}
            click.echo(json.dumps({**about, **asdict(b.needs), **sizes}))
        return
    rows: list[tuple[str, ...]] = [COLUMNS, *map(_row, built)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(COLUMNS))]
    previous = ""
    for row in rows:
        name = "" if row[0] == previous else row[0]
        previous = row[0]
        cells = [f"{name:<{widths[0]}}", f"{row[1]:<{widths[1]}}"]
        cells += [f"{cell:>{width}}" for cell, width in zip(row[2:], widths[2:], strict=True)]
        click.echo("  ".join(cells).rstrip())


def _row(b: Built) -> tuple[str, ...]:
    needs = b.needs
    spills = str(needs.spill_stores + needs.spill_loads)
    spills += f" + {needs.in_calls}" if needs.in_calls else ""
    code = max(b.code.values(), key=len)
    return (
        f"{b.kernel}({b.types})", b.arch, str(needs.registers), str(needs.stack), spills,
        str(needs.shared), str(len(code)),
    )  # fmt: skip


def _write(folder: Path, built: Iterable[Built]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names: dict[str, int] = {}
    for b in built:
        nth = names[f"{b.kernel}.{b.arch}"] = names.get(f"{b.kernel}.{b.arch}", 0) + 1
        stem = f"{b.kernel}.{b.arch}" if nth == 1 else f"{b.kernel}-{nth}.{b.arch}"
        for kind, code in b.code.items():
            (folder / f"{stem}.{kind}").write_bytes(code.rstrip(b"\0") if kind == "ptx" else code)
