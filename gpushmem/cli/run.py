"""`gpushmem run`: start PEs on this machine that each run a script or a module."""

from __future__ import annotations

import re
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import click

from gpushmem import code_store, settings
from gpushmem.backends import registry, selection
from gpushmem.cli.exit_codes import leave, show
from gpushmem.cli.help_layout import Command
from gpushmem.errors import ArgumentError, ShmemError
from gpushmem.progress import compiling
from gpushmem.start.launch import multi_host
from gpushmem.start.launch.program import Program

__all__ = ["command"]


class _As(click.ParamType):  # type: ignore[type-arg]
    """An option parsed like a setting."""

    def __init__(self, setting: str, name: str) -> None:
        self.name = name
        self._read = settings.SETTINGS[setting].read

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._read(value)
        except ArgumentError as error:
            self.fail(str(error), param, ctx)


class _Runs(click.IntRange):
    """How many runs, or all."""

    name = "N|all"

    def __init__(self) -> None:
        super().__init__(1)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "all":
            return value
        if not str(value).lstrip("-").isdecimal():
            self.fail(f"{value!r} is neither a number of runs nor `all`", param, ctx)
        return super().convert(value, param, ctx)


class _Time(click.ParamType):  # type: ignore[type-arg]
    """Seconds, as 90, 90s, 10m or 2h."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = re.fullmatch(r"([0-9]*\.?[0-9]+)([smh]?)", str(value))
        if not found or not float(found[1]):
            self.fail(f"{value!r} is no time, such as 90s, 10m or 2h", param, ctx)
        return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


GROUPS = {
    "The job": ["n_pes", "module", "hosts", "heap_size", "threads_per_pe", "timeout", "backend"],
    "Find what is wrong": [
        "check", "check_format", "check_ignore", "check_runs", "check_budget", "check_schedule",
        "memory", "nodes", "seed",
    ],
    "See what happens": ["trace", "stats", "tag_output", "verbose"],
    "Programs of nvshmem4py": ["as_nvshmem", "strict"],
    "On GPUs": ["transport", "hca", "nic_map", "nsys", "ncu", "profiler_options"],
}  # fmt: skip
BUDGET = 60  # seconds
EXAMPLES = [
    "gpushmem run -n 4 program.py",
    "gpushmem run -n 4 --check program.py",
    "gpushmem run -n 3 --check --check-runs all program.py",
    "gpushmem run -n 4 --memory weak --seed 7 program.py",
    "gpushmem run -n 2 --trace out program.py",
    "gpushmem run -n 8 -m package.module",
    "gpushmem run --backend nvshmem --hosts node1:4,node2:4 program.py",
]


@click.command(
    "run", cls=Command, groups=GROUPS, examples=EXAMPLES,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="Run a script in several PEs on this machine.",
)  # fmt: skip
@click.option(
    "-n", "n_pes", type=click.IntRange(1, settings.MOST), help="Number of PEs.  [default: 1]"
)
@click.option(
    "--hosts",
    help="Start PEs on these hosts with mpirun or srun, as HOST:PES, such as node1:4,node2:4.",
)
@click.option(
    "--heap-size",
    type=_As("GPUSHMEM_HEAP_SIZE", "size"),
    help="Size of each PE's symmetric heap, such as 256M.  [default: 1G]",
)
@click.option(
    "--threads-per-pe",
    type=_As("GPUSHMEM_THREADS", "integer"),
    help="Cores for each PE's kernels.  [default: GPUSHMEM_THREADS, or an equal share]",
)
@click.option(
    "--timeout",
    type=_As("GPUSHMEM_TIMEOUT", "seconds"),
    metavar="SECONDS",
    help="End the job, with a report, when a PE's host program waits this long in one call.",
)
@click.option(
    "--backend",
    type=click.Choice(list(registry.BACKENDS)),
    help="What runs the kernels.  [default: GPUSHMEM_BACKEND, or nvshmem where it can be used]",
)
@click.option(
    "--nodes",
    type=_As("GPUSHMEM_NODES", "integer"),
    help="cpu: let the PEs behave as if they were on so many nodes.  [default: 1]",
)
@click.option(
    "--transport",
    type=click.Choice(settings.TRANSPORTS),
    help="nvshmem: transport between GPUs.  [default: auto, chosen by NVSHMEM]",
)
@click.option(
    "--hca",
    type=_As("GPUSHMEM_HCA", "adapters"),
    help="nvshmem: network adapters to use, such as mlx5_0:1,mlx5_1:1.",
)
@click.option(
    "--nic-map",
    type=_As("GPUSHMEM_NIC_MAP", "adapters"),
    help="nvshmem: number of PEs per adapter, such as mlx5_0:1:2,mlx5_1:1:2.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Find races and missing synchronisation; exit with code 66 if there are any.",
)
@click.option(
    "--check-format",
    type=click.Choice(["text", "json", "sarif"]),
    default="text",
    help="How --check reports.  [default: text]",
)
@click.option(
    "--check-ignore",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File of known problems that --check is not to report.",
)
@click.option(
    "--check-runs",
    type=_Runs(),
    default=1,
    help="Run the job so often, each time with other PEs and blocks first; all: in every order of "
    "what signals and atomic operations leave open.  [default: 1]",
)
@click.option(
    "--check-budget",
    type=_Time(),
    metavar="TIME",
    help="How long --check-runs all goes on, such as 90s or 10m.  [default: 1m]",
)
@click.option(
    "--check-schedule", metavar="NAME", help="Run once, in an order that it has reported."
)
@click.option(
    "--trace",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Record in this folder what every PE does, for `gpushmem trace`.",
)
@click.option(
    "--stats",
    is_flag=True,
    help="Print at the end what every PE did: operations, bytes, time waiting.",
)
@click.option(
    "--nsys",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="nvshmem: run each PE under Nsight Systems; the reports go to this folder.",
)
@click.option(
    "--ncu",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="nvshmem: ... under Nsight Compute, which measures each kernel in one run of it.",
)
@click.option(
    "--profiler-options",
    metavar="OPTIONS",
    help="What nsys or ncu collects, as options of its own.",
)
@click.option(
    "--memory",
    type=click.Choice(["native", "weak"]),
    help="cpu: weak: perform operations as late, and in any order, as a GPU may.",
)
@click.option(
    "--seed",
    type=_As("GPUSHMEM_SEED", "integer"),
    help="What is late, and in which order, with --memory weak; who is first, with --check.",
)
@click.option(
    "--as-nvshmem", is_flag=True,
    help="Run a program of nvshmem4py. On the CPU, `import nvshmem` gives gpushmem's version of "
    "it.",
)  # fmt: skip
@click.option(
    "--strict", is_flag=True,
    help="With --as-nvshmem: a target that is too small is an error, not a warning.",
)  # fmt: skip
@click.option("--tag-output", is_flag=True, help="Prefix each line of output with its PE.")
@click.option("--verbose", is_flag=True, help="Print how the PEs found each other.")
@click.option("-m", "module", help="Run a module, as python -m does, instead of a script.")
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def command(
    n_pes: int | None,
    hosts: str | None,
    heap_size: int | None,
    threads_per_pe: int | None,
    timeout: float | None,
    backend: str | None,
    nodes: int | None,
    transport: str | None,
    hca: str | None,
    nic_map: str | None,
    check: bool,
    check_format: str,
    check_ignore: Path | None,
    check_runs: int | Literal["all"],
    check_budget: float | None,
    check_schedule: str | None,
    trace: Path | None,
    stats: bool,
    nsys: Path | None,
    ncu: Path | None,
    profiler_options: str | None,
    memory: str | None,
    seed: int | None,
    as_nvshmem: bool,
    strict: bool,
    tag_output: bool,
    verbose: bool,
    module: str | None,
    args: tuple[str, ...],
) -> None:
    """Start PEs on this machine and run SCRIPT in each; arguments after SCRIPT are passed to it.

    PEs of the cpu backend are forked from this process. PEs of other backends are started as new
    processes.

    The exit code is that of the first PE that fails. Standard input goes to PE 0, unless it is a
    terminal.
    """
    asked: dict[str, object] = {
        "GPUSHMEM_BACKEND": backend,
        "GPUSHMEM_NODES": nodes,
        "GPUSHMEM_TRANSPORT": transport,
        "GPUSHMEM_HCA": hca,
        "GPUSHMEM_NIC_MAP": nic_map,
        "GPUSHMEM_VERBOSE": "1" if verbose else None,
        "GPUSHMEM_MEMORY": memory,
        "GPUSHMEM_AS_NVSHMEM": _names_of_nvshmem(as_nvshmem, strict),
    }
    for name, value in asked.items():
        if value is not None:
            settings.put(name, value)
    _check_settings()
    _choose_seed(seed)
    program = _program(module, n_pes, args)
    target = _with_names(_usage(program.target))
    recording = _given({"--check": check, "--trace": trace, "--stats": stats})
    profiling = _given({"--nsys": nsys, "--ncu": ncu})
    _check_observers(recording, profiling, hosts)
    if hosts is not None:
        asked |= {
            "GPUSHMEM_HEAP_SIZE": heap_size,
            "GPUSHMEM_THREADS": threads_per_pe,
            "GPUSHMEM_TIMEOUT": timeout,
        }
        words = [sys.executable, *(("-m", module) if module else ()), *args]
        _usage(
            lambda: multi_host.hand_over(multi_host.parse(hosts, n_pes), words, asked, tag_output)
        )
    n_pes = n_pes or 1
    from gpushmem.start.launch import local  # noqa: PLC0415  (heavy, not for usage errors)

    chosen = _backend()
    _check_able(recording, chosen)
    _check_runs(check_runs, check_budget, check_schedule, recording, chosen)
    _check_nodes(nodes, chosen)
    _check_memory(check, chosen)
    profiler = _profiler(profiling, nsys or ncu, profiler_options, chosen)
    _prepare_trace(trace)
    if check or check_ignore is not None:
        from gpushmem.check import command as checker  # noqa: PLC0415  (for those who check)

        found = checker.Findings(_usage(lambda: checker.Known(check_ignore)), check_format)

    def run() -> int:
        try:
            local.check_room(n_pes, pipes=tag_output)
            what: Any = program
            if _preload(chosen, None if check_runs == "all" else n_pes):
                what = target
            outcome = local.launch(
                n_pes, what, heap_size=heap_size, tag_output=tag_output,
                threads_per_pe=threads_per_pe, timeout=timeout, profiler=profiler,
            )  # fmt: skip
        except ShmemError as error:
            raise click.ClickException(str(error)) from error
        summary = outcome.summary()
        # A timeout without a report has not been told yet.
        if summary and (
            n_pes > 1 or outcome.code > 128 or (not outcome.report and outcome.code == 124)
        ):
            click.echo(f"gpushmem: {summary}", err=True)
        _say_seed(outcome.code)
        _say_trace(trace)
        return outcome.code

    def checked() -> int:
        if check_runs == "all" or check_schedule is not None:
            return _scheduled(run, found, check_budget, check_schedule)
        return checker.run_often(run, check_runs, seed, found)

    with _counting(stats):
        code = checked() if check else run()
    if check:
        show(found, check_format)
        code = checker.EXIT_CODE if found.problems else code
    leave(code)


def _check_runs(
    runs: int | str, budget: float | None, schedule: str | None, recording: list[str], backend: str
) -> None:
    """Reject options for several runs, or for one in some order, that do not go with others."""
    if runs != 1 and recording[1:]:
        raise click.UsageError(f"{recording[1]} is of one run: leave --check-runs out")
    if schedule is not None and runs != 1:
        raise click.UsageError("--check-schedule is of one run: leave --check-runs out")
    if budget is not None and runs != "all":
        raise click.UsageError("--check-budget: add --check-runs all, which it is for")
    if (runs == "all" or schedule is not None) and recording[:1] != ["--check"]:
        raise click.UsageError("--check-runs and --check-schedule: add --check")
    able = registry.that_schedule()
    if (runs == "all" or schedule is not None) and backend not in able:
        raise click.UsageError(
            f"--check-runs all and --check-schedule: the {backend} backend cannot choose who goes "
            f"first; add --backend {' or '.join(able)}"
        )


def _scheduled(
    run: Callable[[], int], found: Any, budget: float | None, schedule: str | None
) -> int:
    """Run the job in every order, or in one."""
    from gpushmem.check import every_schedule  # noqa: PLC0415  (for those who want it)

    if schedule is None:
        return every_schedule.run_all(run, found, budget or BUDGET)
    return every_schedule.run_by(run, found, _usage(lambda: every_schedule.load(schedule)))


def _program(module: str | None, n_pes: int | None, args: tuple[str, ...]) -> Program:
    """What is run. Refuses an option that does not exist; says if the one for PEs is too late."""
    context = click.get_current_context()
    if not module and args and args[0].startswith("-") and args[0] != "-":
        from difflib import get_close_matches  # noqa: PLC0415  (for those who mistype)

        ours = [name for param in context.command.params for name in param.opts]
        near = get_close_matches(args[0].split("=")[0], ours)
        raise click.NoSuchOption(args[0], possibilities=near, ctx=context)
    if n_pes is None and re.search(r"(^| )-n ?[0-9]+( |$)", " ".join(args)):
        what = module or args[0]
        click.echo(
            f"gpushmem: 1 PE; -n after {what} is an argument of it: for more PEs, put -n before it",
            err=True,
        )
    return Program("module", (module, *args)) if module else Program("script", args)


def _names_of_nvshmem(asked: bool, strict: bool) -> str | None:
    """The value of GPUSHMEM_AS_NVSHMEM for two options; None to leave it as it is."""
    name = "GPUSHMEM_AS_NVSHMEM"
    given = "0" if settings.reason(name) else settings.get(name)  # an invalid one is told later
    if strict and not asked and given == "0":
        raise click.UsageError("--strict: add --as-nvshmem, whose sizes it is about")
    return "strict" if strict else "1" if asked and given == "0" else None


def _with_names(target: Callable[[], object]) -> Callable[[], object]:
    """What runs a program in a forked PE; of nvshmem4py with its names, if that was asked for."""
    if settings.get("GPUSHMEM_AS_NVSHMEM") == "0":
        return target
    from gpushmem.compat.activate import activate  # noqa: PLC0415  (for programs of nvshmem4py)

    def run() -> object:
        activate()
        return target()

    return run


def _preload(backend: str, n_pes: int | None) -> bool:
    """Prepare what the PEs are forked with, and show what is compiled for that, the first time."""
    from gpushmem.start.launch import local  # noqa: PLC0415  (see `command`)

    if registry.about(backend).warm_up is not None:
        from gpushmem import precompile  # noqa: PLC0415  (heavy)

        precompile.beside()
    with ExitStack() as told:
        told.enter_context(
            code_store.telling(lambda: told.enter_context(compiling("what kernels need")))
        )
        return local.preload(backend, n_pes)


def _given(options: dict[str, Any]) -> list[str]:
    return [name for name, value in options.items() if value]


def _check_observers(recording: list[str], profiling: list[str], hosts: str | None) -> None:
    """Reject options by which PEs are observed where they do nothing; --check goes with others."""
    options = [*recording, *profiling]
    apart = options if profiling else [option for option in options if option != "--check"]
    if len(apart) > 1:
        raise click.UsageError(f"{' and '.join(apart)}: choose one of them")
    if options and hosts is not None:
        raise click.UsageError(f"{options[0]} runs all PEs on this machine: leave --hosts out")


def _check_able(options: list[str], backend: str) -> None:
    """Reject options that record what PEs do for backends that cannot."""
    able = registry.that_trace() if "--trace" in options else registry.that_record()
    if options and backend not in able:
        raise click.UsageError(
            f"{options[0]}: the {backend} backend records nothing; add --backend "
            f"{' or '.join(able)}"
        )


def _profiler(asked: list[str], folder: Path | None, options: str | None, backend: str) -> Any:
    """The profiler that starts the PEs; None if there is to be none."""
    if folder is None:
        if options is not None:
            raise click.UsageError("--profiler-options: add --nsys DIR or --ncu DIR")
        return None
    from gpushmem.start.launch.profiler import find  # noqa: PLC0415  (for those who profile)

    (option,) = asked
    if backend not in (able := registry.that_use_gpus()):
        raise click.UsageError(
            f"{option}: the {backend} backend runs no kernel on a GPU, which is what NVIDIA's "
            f"profilers see; add --backend {' or '.join(able)}, or take --trace"
        )
    return _usage(lambda: find(option.removeprefix("--"), folder, options))


def _prepare_trace(folder: Path | None) -> None:
    """Let PEs write their trace to a folder, in the place of one that is there."""
    if folder is None:
        return
    from gpushmem.trace.ring import prepare  # noqa: PLC0415  (for those who trace)

    try:
        settings.put("GPUSHMEM_TRACE", prepare(folder))
    except ShmemError as error:
        raise click.UsageError(f"--trace: {error}") from None


def _choose_seed(given: int | None) -> None:
    """Set the seed of a run whose memory is weak: the option, the variable, or any."""
    if given is None and settings.is_set("GPUSHMEM_SEED"):
        return
    if settings.memory_is_weak():
        seed = secrets.randbelow(settings.MOST) if given is None else given
        settings.put("GPUSHMEM_SEED", str(seed))


def _check_memory(check: bool, chosen: str) -> None:
    """Reject weak memory where it would do nothing."""
    if not settings.memory_is_weak():
        return
    if check:
        raise click.UsageError("--check sees every order that is allowed: leave --memory weak out")
    if chosen not in (able := registry.that_are_late()):
        raise click.UsageError(
            f"--memory weak: the {chosen} backend performs no operation late; add --backend "
            f"{' or '.join(able)}"
        )


def _say_seed(code: int) -> None:
    """Say how to repeat a run that failed while memory was weak."""
    if code and settings.memory_is_weak():
        again = f"--memory weak --seed {settings.get('GPUSHMEM_SEED')}"
        click.echo(f"gpushmem: to repeat this order of operations: {again}", err=True)


def _say_trace(folder: Path | None) -> None:
    """Say what to do with the trace."""
    if folder is not None:
        click.echo(f"gpushmem: see what the PEs did: gpushmem trace open {folder}", err=True)


@contextmanager
def _counting(on: bool) -> Iterator[None]:
    """Let PEs count what they do, and print it at the end, that of PEs that were killed, too."""
    if not on:
        yield
        return
    from gpushmem.cli.stats import report  # noqa: PLC0415  (for those who count)
    from gpushmem.trace import counters  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="gpushmem-stats-") as folder:
        settings.put("GPUSHMEM_STATS", folder)
        yield
        for line in report(counters.read(Path(folder))):
            click.echo(line, err=True)


def _check_settings() -> None:
    """Reject invalid environment variables here, rather than in every PE with a traceback."""
    try:
        settings.check()
    except ArgumentError as error:
        raise click.ClickException(str(error)) from None


def _check_nodes(nodes: int | None, backend: str) -> None:
    """Reject --nodes where PEs are on real machines."""
    if nodes is not None and not registry.about(backend).shares_memory:
        raise click.UsageError(
            f"--nodes: PEs of the {backend} backend are on the machines where they are: start them "
            "there with --hosts, or add --backend cpu"
        )


def _backend() -> str:
    """The backend that PEs will use."""
    try:
        return selection.choose()[0]
    except ShmemError as error:
        raise click.ClickException(str(error)) from error


def _usage(call: Callable[[], Any]) -> Any:
    """Return the call's result; errors before any PE is started are usage errors."""
    try:
        return call()
    except ShmemError as error:
        raise click.UsageError(str(error)) from None
