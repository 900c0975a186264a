"""The environment variables that gpushmem reads: one table for code, commands and docs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gpushmem.errors import ArgumentError
from gpushmem.size import parse_size

MOST = 1 << 16  # limit on PEs, teams of a PE, cores of a PE
MOST_SECONDS = 1e9


def _count(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        digits = text.isdecimal() and text.isascii() and len(text) < 19
        if not digits or not least <= int(text) <= MOST:
            raise ArgumentError(f"{text!r} is not a whole number from {least} to {MOST}")
        return int(text)

    return read


def _power_of_two(text: str) -> int:
    number = int(text) if text.isdecimal() and text.isascii() and len(text) < 15 else 0
    if number < 64 or number & (number - 1):
        raise ArgumentError(f"{text!r} is not a power of two from 64 on")
    return number


def _seconds(text: str) -> float:
    try:
        number = float(text) if text.isascii() else -1.0
    except ValueError:
        number = -1.0
    if not 0 < number < MOST_SECONDS:
        raise ArgumentError(
            f"{text!r} is not a number of seconds above 0 and below {MOST_SECONDS:g}"
        )
    return number


def _one_of(*known: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in known:
            raise ArgumentError(f"{text!r} is not one of {', '.join(known)}")
        return text.lower()

    return read


def _list_of(entry: str, example: str) -> Callable[[str], str]:
    """Parse a comma-separated list whose entries match the regular expression `entry`."""

    def read(text: str) -> str:
        if not all(re.fullmatch(entry, part, re.ASCII) for part in text.split(",")):
            raise ArgumentError(f"{text!r} is not a list such as {example}")
        return text

    return read


def _switch(text: str) -> bool:
    known = {"1": True, "on": True, "true": True, "yes": True}
    known |= {"0": False, "off": False, "false": False, "no": False}
    if text.lower() not in known:
        raise ArgumentError(f"{text!r} is neither 1 nor 0")
    return known[text.lower()]


@dataclass(frozen=True)
class Setting:
    """One environment variable. `default` is the text used when it is not set.

    The value of a `secret` setting is never printed.
    """

    name: str
    default: str | None
    read: Callable[[str], Any]
    meaning: str
    secret: bool = False


GPUS = "t4", "a100", "h100", "b200"
TRANSPORTS = ("auto", "p2p", "ibrc", "ibgda", "ibdevx", "gpunetio", "ucx", "libfabric")
SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(
            "GPUSHMEM_BACKEND", None, str,
            "backend that `init` uses; default: nvshmem where it can be used, else cpu; "
            "`gpushmem run --backend`: cpu, nvshmem, nvshmem-cpu, null",
        ),
        Setting(
            "GPUSHMEM_SIM", "0", _switch,
            "1: programs of `numba.cuda` run on the CPU engine, also those that do not import "
            "gpushmem; `gpushmem sim`",
        ),
        Setting(
            "GPUSHMEM_SIM_GPU", "h100", _one_of(*GPUS),
            "the GPU whose limits the CPU engine has, and tells `numba.cuda` of; "
            f"`gpushmem sim --gpu`: {', '.join(GPUS)}",
        ),
        Setting(
            "GPUSHMEM_SIM_DEVICES", "1", _count(1),
            "number of GPUs that the CPU engine shows to `numba.cuda`; `gpushmem sim --devices`",
        ),
        Setting(
            "GPUSHMEM_AS_NVSHMEM", "0", _one_of("0", "1", "strict"),
            "1: programs of nvshmem4py run on the CPU (docs/coming-from-nvshmem4py.md), also those "
            "that do not import gpushmem; strict: a target that is too small is an error; "
            "`gpushmem run --as-nvshmem`, `--strict`",
        ),
        Setting(
            "GPUSHMEM_HEAP_SIZE", "1G", parse_size,
            "size of the symmetric heap of each PE, such as 256M; `gpushmem run --heap-size`",
        ),
        Setting(
            "GPUSHMEM_THREADS", None, _count(1),
            "number of cores that the kernels of a PE use; default: all, divided among the PEs of "
            "the job; `gpushmem run --threads-per-pe`",
        ),
        Setting(
            "GPUSHMEM_CPU", None, _one_of("x86-64-v2", "x86-64-v3"),
            "cpu: processor that the engine's own functions, not kernels, are compiled for, "
            "x86-64-v2 or x86-64-v3; default: the best that this machine is",
        ),
        Setting(
            "GPUSHMEM_TIER", "auto", _one_of("auto", "fast", "full"),
            "cpu: how a kernel is compiled: auto, quickly, and optimised in the background if it "
            "is launched a second later (docs/launching.md); fast: quickly; full: optimised",
        ),
        Setting(
            "GPUSHMEM_VERIFY", "0", _switch,
            "cpu: run each launch twice, its blocks as usual and each thread by itself, and "
            "compare what is in memory; for kernels without operations of PEs",
        ),
        Setting(
            "GPUSHMEM_NODES", "1", _count(1),
            "cpu: number of nodes that the PEs behave as if they were on, in equal groups; "
            "`gpushmem run --nodes`",
        ),
        Setting(
            "GPUSHMEM_TORCH_FUSE", "auto", _one_of("auto", "0", "1"),
            "whether `torch.compile` puts products and collectives of process groups of gpushmem's "
            "together: auto, on GPUs, and on CPUs if they are large, and PyTorch has one thread",
        ),
        Setting("GPUSHMEM_MAX_TEAMS", "256", _count(1), "limit on the teams a PE is in at once"),
        Setting(
            "GPUSHMEM_BOOTSTRAP", "auto", str,
            "how PEs find each other when `gpushmem run` did not start them: auto, mpi, torch, "
            "slurm, local, or tcp://host:port",
        ),
        Setting(
            "GPUSHMEM_BOOTSTRAP_TIMEOUT", "60", _seconds,
            "seconds that `init` waits for the other PEs of the job to start",
        ),
        Setting(
            "GPUSHMEM_PE", None, _count(0),
            "with tcp://: number of this PE; default: the rank set by mpirun, srun or torchrun",
        ),
        Setting("GPUSHMEM_N_PES", None, _count(1), "with tcp://: number of PEs"),
        Setting(
            "GPUSHMEM_JOB_KEY", None, str, "with tcp://: a secret shared by the PEs of the job",
            secret=True,
        ),
        Setting(
            "GPUSHMEM_PROGRESS", "1", _switch,
            "0: no progress bars, and no lines about compilations that take more than a second "
            "(5 where standard error is no terminal)",
        ),
        Setting(
            "GPUSHMEM_VERBOSE", "0", _switch,
            "1: `init` prints how the PEs found each other; `gpushmem run --verbose`",
        ),
        Setting(
            "GPUSHMEM_CACHE_DIR", None, str,
            "folder of the store of compiled code; default: the user's cache folder",
        ),
        Setting(
            "GPUSHMEM_CACHE_SIZE", "1G", parse_size,
            "size of the store; the least recently used code is deleted first; `gpushmem cache`",
        ),
        Setting(
            "GPUSHMEM_CACHE", "1", _switch,
            "0: neither store compiled code nor load it: every PE compiles for itself",
        ),
        Setting(
            "GPUSHMEM_COMPILER", None, _one_of("numba-cuda", "numba-cuda-mlir"),
            "nvshmem: compiler of kernels for GPUs: numba-cuda or numba-cuda-mlir; default: the "
            "one whose names the kernel mentions; `gpushmem compile --compiler`",
        ),
        Setting(
            "GPUSHMEM_CUBLASDX", "1", _switch,
            "0: compile `gemm_block` for GPUs without cuBLASDx, whose compilation takes half a "
            "minute, once for each dtype and architecture",
        ),
        Setting(
            "GPUSHMEM_TIMEOUT", None, _seconds,
            "seconds a host may wait in one call before the job is ended with a report; "
            "`gpushmem run --timeout`, `gpushmem.set_timeout`",
        ),
        Setting(
            "GPUSHMEM_CHECK", None, str,
            "folder in which the PEs record what they do, for `gpushmem run --check`",
        ),
        Setting(
            "GPUSHMEM_TRACE", None, str,
            "folder in which the PEs record what they do, and when; `gpushmem run --trace`",
        ),
        Setting(
            "GPUSHMEM_TRACE_EVENTS", "1048576", _power_of_two,
            "number of events of 64 bytes, a power of two, that a trace keeps of a PE: the newest",
        ),
        Setting(
            "GPUSHMEM_STATS", None, str,
            "folder in which the PEs count what they do, for `gpushmem.stats()` and "
            "`gpushmem run --stats`",
        ),
        Setting(
            "GPUSHMEM_MEMORY", "native", _one_of("native", "weak"),
            "cpu: weak: operations are performed as late, and in any order, as a GPU may; "
            "`gpushmem run --memory`",
        ),
        Setting(
            "GPUSHMEM_SEED", "0", _count(0),
            "with weak memory: number that decides what is late; `gpushmem run --seed`",
        ),
        Setting(
            "GPUSHMEM_SIM_INTERPRET", "0", _switch,
            "1: programs of numba.cuda on the CPU run their kernels as plain Python, thread by "
            "thread, for debuggers and coverage",
        ),
        Setting(
            "GPUSHMEM_DEADLOCK", "1", _switch,
            "0: turn deadlock detection off",
        ),
        Setting(
            "GPUSHMEM_NOTICE", "10", _seconds,
            "seconds without progress of any PE after which a report is printed, once, while the "
            "job continues",
        ),
        Setting(
            "GPUSHMEM_TRANSPORT", "auto", _one_of(*TRANSPORTS),
            "nvshmem: transport between GPUs; auto leaves the choice to NVSHMEM; "
            f"`gpushmem run --transport`: {', '.join(TRANSPORTS)}",
        ),
        Setting(
            "GPUSHMEM_HCA", None, _list_of(r"\^?[\w.-]+(:[0-9]+)?", "mlx5_0:1,mlx5_1:1"),
            "nvshmem: network adapters to use, as name:port, such as mlx5_0:1,mlx5_1:1, assigned "
            "round robin; a leading ^ excludes them; `gpushmem run --hca`",
        ),
        Setting(
            "GPUSHMEM_NIC_MAP", None, _list_of(r"[\w.-]+:[0-9]+:[0-9]+", "mlx5_0:1:2,mlx5_1:1:2"),
            "nvshmem: number of consecutive PEs of a machine that use each adapter, as "
            "name:port:count, such as mlx5_0:1:2,mlx5_1:1:2; `gpushmem run --nic-map`",
        ),
    )
}  # fmt: skip


def is_set(name: str) -> bool:
    """Whether the variable is set in the environment, and not empty."""
    return bool(os.environ.get(SETTINGS[name].name))


def get(name: str, environ: Mapping[str, str] | None = None) -> Any:
    """Return the parsed value of the variable; None if it is not set (or empty) and has no default.

    Reads this process's environment unless `environ` is given. Raises `ArgumentError` naming the
    variable if its value is invalid.
    """
    setting = SETTINGS[name]
    text = (os.environ if environ is None else environ).get(name) or setting.default
    if text is None:
        return None
    try:
        return setting.read(text.strip())
    except ArgumentError as error:
        raise ArgumentError(f"environment variable {name}: {error}") from None


def reason(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    """Return why the variable's value is invalid; None if it is valid."""
    try:
        get(name, environ)
    except ArgumentError as error:
        return str(error)
    return None


def check() -> None:
    """Parse all variables; raises `ArgumentError` naming the first one that is invalid."""
    for name in SETTINGS:
        get(name)


def put(name: str, value: object) -> None:
    """Set a variable for this process and the processes it starts."""
    os.environ[SETTINGS[name].name] = str(value)


def memory_is_weak() -> bool:
    """Whether operations are to be performed late: `--memory weak`."""
    return bool(get("GPUSHMEM_MEMORY") == "weak")


@contextmanager
def putting(**values: object) -> Iterator[None]:
    """Set variables, and give them back the values that they had."""
    before = {name: os.environ.get(SETTINGS[name].name) for name in values}
    try:
        for name, value in values.items():
            put(name, value)
        yield
    finally:
        for name, text in before.items():
            os.environ.pop(name, None)
            if text is not None:
                os.environ[name] = text
