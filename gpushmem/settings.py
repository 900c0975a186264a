"""The environment variables that gpushmem reads: one table, for code, command and docs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpushmem.errors import ArgumentError
from gpushmem.size import parse_size

__all__ = [
    "MOST",
    "MOST_SECONDS",
    "SETTINGS",
    "TRANSPORTS",
    "Setting",
    "check",
    "get",
    "is_set",
    "put",
    "reason",
]


MOST = 1 << 16  # PEs, teams of a PE, cores of a PE
MOST_SECONDS = 1e9


def _count(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        digits = text.isdecimal() and text.isascii() and len(text) < 19
        if not digits or not least <= int(text) <= MOST:
            raise ArgumentError(f"{text!r} is not a whole number from {least} to {MOST}")
        return int(text)

    return read


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
            raise ArgumentError(f"{text!r} is none of {', '.join(known)}")
        return text.lower()

    return read


def _list_of(entry: str, example: str) -> Callable[[str], str]:
    """A list with commas between entries that fit the expression."""

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
    """One variable. `default` is what is used when it is not set, as one would write it.

    A `secret` is not for printing.
    """

    name: str
    default: str | None
    read: Callable[[str], Any]
    meaning: str
    secret: bool = False


TRANSPORTS = ("auto", "p2p", "ibrc", "ibgda", "ibdevx", "gpunetio", "ucx", "libfabric")
SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(
            "GPUSHMEM_BACKEND", None, str,
            "the backend that `init` uses, by default nvshmem where it can be used, else cpu; "
            "`gpushmem run --backend`: cpu, nvshmem, null",
        ),
        Setting(
            "GPUSHMEM_HEAP_SIZE", "1G", parse_size,
            "symmetric heap of each PE, such as 256M; `gpushmem run --heap-size`",
        ),
        Setting(
            "GPUSHMEM_THREADS", None, _count(1),
            "cores that a PE's kernels use; by default all, divided among a job's PEs; "
            "`gpushmem run --threads-per-pe`",
        ),
        Setting("GPUSHMEM_MAX_TEAMS", "256", _count(1), "teams that a PE can be in at once"),
        Setting(
            "GPUSHMEM_BOOTSTRAP", "auto", str,
            "how PEs that `gpushmem run` did not start find each other: auto, mpi, torch, slurm, "
            "local, or tcp://host:port",
        ),
        Setting(
            "GPUSHMEM_BOOTSTRAP_TIMEOUT", "60", _seconds,
            "seconds that `init` waits for the other PEs of the job to start",
        ),
        Setting(
            "GPUSHMEM_PE", None, _count(0),
            "with tcp://: the number of this PE, by default what mpirun, srun or torchrun says",
        ),
        Setting("GPUSHMEM_N_PES", None, _count(1), "with tcp://: how many PEs there are"),
        Setting(
            "GPUSHMEM_JOB_KEY", None, str, "with tcp://: a secret that the job's PEs share",
            secret=True,
        ),
        Setting(
            "GPUSHMEM_VERBOSE", "0", _switch,
            "1: `init` says how the PEs found each other; `gpushmem run --verbose`",
        ),
        Setting(
            "GPUSHMEM_CACHE_DIR", None, str,
            "where compiled kernels are kept for later runs; by default in the user's cache folder",
        ),
        Setting(
            "GPUSHMEM_CACHE", "1", _switch,
            "0: keep no compiled kernels on disk, and take none from there",
        ),
        Setting(
            "GPUSHMEM_CUBLASDX", "1", _switch,
            "0: compile `gemm_block` for GPUs without cuBLASDx, which takes half a minute, once, "
            "for each dtype and architecture",
        ),
        Setting(
            "GPUSHMEM_TIMEOUT", None, _seconds,
            "seconds that a host may wait in one call before the job is ended with a report; "
            "`gpushmem run --timeout`, `gpushmem.set_timeout`",
        ),
        Setting(
            "GPUSHMEM_DEADLOCK", "1", _switch,
            "0: do not end a job in which no PE can go on any more",
        ),
        Setting(
            "GPUSHMEM_NOTICE", "10", _seconds,
            "seconds without progress of any PE after which a report is printed, once, and the "
            "job goes on",
        ),
        Setting(
            "GPUSHMEM_TRANSPORT", "auto", _one_of(*TRANSPORTS),
            "nvshmem: what moves data between GPUs, auto being NVSHMEM's own choice; "
            f"`gpushmem run --transport`: {', '.join(TRANSPORTS)}",
        ),
        Setting(
            "GPUSHMEM_HCA", None, _list_of(r"\^?[\w.-]+(:[0-9]+)?", "mlx5_0:1,mlx5_1:1"),
            "nvshmem: network adapters to use, as name:port, such as mlx5_0:1,mlx5_1:1, in turn; ^ "
            "before them excludes; `gpushmem run --hca`",
        ),
        Setting(
            "GPUSHMEM_NIC_MAP", None, _list_of(r"[\w.-]+:[0-9]+:[0-9]+", "mlx5_0:1:2,mlx5_1:1:2"),
            "nvshmem: how many PEs of a machine, one after the other, use an adapter, as "
            "name:port:count, such as mlx5_0:1:2,mlx5_1:1:2; `gpushmem run --nic-map`",
        ),
    )
}  # fmt: skip


def is_set(name: str) -> bool:
    """Whether the variable is in the environment, and not empty."""
    return bool(os.environ.get(SETTINGS[name].name))


def get(name: str, environ: Mapping[str, str] | None = None) -> Any:
    """The variable's value, read; None if it is not set (or empty) and has no default.

    Looks into this process's environment unless given another. Raises `ArgumentError` naming the
    variable when it makes no sense.
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
    """Why the variable's value makes no sense; None if it does."""
    try:
        get(name, environ)
    except ArgumentError as error:
        return str(error)
    return None


def check() -> None:
    """Read all variables; raises `ArgumentError` naming the first that makes no sense."""
    for name in SETTINGS:
        get(name)


def put(name: str, value: object) -> None:
    """Set a variable for this process and those it starts."""
    os.environ[SETTINGS[name].name] = str(value)
