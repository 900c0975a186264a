"""The NVSHMEM environment variables that `gpushmem doctor` checks: one table.

Names and defaults are those of NVSHMEM 3.4 to 3.8 (docs.nvidia.com/nvshmem/api/gen/env.html and
env_defs.h in its sources). NVSHMEM reads them. Variables that gpushmem derives from its transport
settings count as set (`backends/nvshmem/transport`).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpushmem.backends.nvshmem import transport
from gpushmem.doctor.system import System
from gpushmem.errors import ArgumentError
from gpushmem.size import parse_size

__all__ = ["VARIABLES", "Variable", "is_on", "symmetric_size", "value"]


@dataclass(frozen=True)
class Variable:
    """One variable: name, NVSHMEM's default, meaning, and the allowed values, if few."""

    name: str
    default: str
    meaning: str
    choices: tuple[str, ...] = ()


VARIABLES = {
    variable.name: variable
    for variable in (
        Variable("NVSHMEM_SYMMETRIC_SIZE", "1G", "symmetric heap of each PE"),
        Variable(
            "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "",
            "interfaces for the UID bootstrap: prefixes; a leading ^ excludes, = matches exactly",
        ),
        Variable(
            "NVSHMEM_REMOTE_TRANSPORT", "ibrc", "transport to GPUs on other nodes",
            ("ibrc", "ucx", "libfabric", "ibdevx", "gpunetio", "none"),
        ),
        Variable("NVSHMEM_IB_ENABLE_IBGDA", "0", "1: kernels drive the network adapter themselves"),
        Variable("NVSHMEM_DISABLE_P2P", "0", "1: do not use NVLink and PCIe between GPUs"),
        Variable("NVSHMEM_HCA_PREFIX", "mlx5", "prefix of the RDMA devices' names"),
        Variable("NVSHMEM_HCA_LIST", "", "RDMA ports to use, as mlx5_0:1; a leading ^ excludes"),
    )
}  # fmt: skip


def value(system: System, name: str) -> str:
    """Return the value in force: the variable, else gpushmem's setting, else NVSHMEM's default."""
    return system.variable(name) or _told(system).get(name) or VARIABLES[name].default


def _told(system: System) -> dict[str, str]:
    try:
        return transport.variables(system.environ)
    except ArgumentError:  # reported by the check `settings`
        return {}


def is_on(system: System, name: str) -> bool:
    """Whether a switch is on; for NVSHMEM, 0, n, f and words starting with them mean off."""
    return not value(system, name).lower().startswith(("0", "n", "f"))


def symmetric_size(system: System) -> int:
    """Return NVSHMEM_SYMMETRIC_SIZE in bytes; raises `ArgumentError` if it is invalid."""
    text = value(system, "NVSHMEM_SYMMETRIC_SIZE")
    try:
        return parse_size(text)
    except ArgumentError as error:
        raise ArgumentError(f"environment variable NVSHMEM_SYMMETRIC_SIZE: {error}") from None
