"""What needs no stream: numbers of PEs, the state of the runtime, enumerations."""

from __future__ import annotations

from gpushmem.compat.nvshmem import bindings
from gpushmem.compat.nvshmem.core import init_fini, session
from gpushmem.ops import OPS, SMEM_BYTES, SMEM_RECOMMENDED

__all__ = [
    "ComparisonType", "InitStatus", "SignalOp", "SmemAmount", "ThreadSupport", "ask_smem",
    "init_status", "my_pe", "n_pes", "query_thread", "team_my_pe", "team_n_pes",
]  # fmt: skip

ComparisonType, SignalOp = bindings.Cmp_type, bindings.Signal_op
InitStatus, ThreadSupport = bindings.Init_status, bindings.Thread_support
SmemAmount = bindings.Smem_amount


def ask_smem(amount: int = SmemAmount.SMEM_RECOMMENDED) -> int:
    """How many bytes of shared memory a block gives; of an unknown amount, the recommended one."""
    known = 0 <= int(amount) < len(SMEM_BYTES)
    return SMEM_BYTES[amount if known else SMEM_RECOMMENDED]


def query_thread() -> bindings.Thread_support:
    """Which threads of the host may call."""
    return ThreadSupport.THREAD_SERIALIZED


def init_status() -> bindings.Init_status:
    """How far the runtime is initialised."""
    return init_fini.status()


def my_pe() -> int:
    """The number of the calling PE."""
    return _answer("my_pe")


def n_pes() -> int:
    """How many PEs there are."""
    return _answer("n_pes")


def team_my_pe(team: int) -> int:
    """The number of the calling PE in a team; -1 if it is not in it."""
    return _answer("team_my_pe", int(team))


def team_n_pes(team: int) -> int:
    """How many PEs a team has."""
    return _answer("team_n_pes", int(team))


def _answer(name: str, *args: int) -> int:
    session.backend(name)
    return int(OPS[name].function(*args))
