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
            "NVSHMEM_BOOTSTRAP", "PMI",
            "how PEs find each other if the program does not choose; only programs can choose UID",
            ("pmi", "mpi", "shmem", "plugin", "uid"),
        ),
        Variable(
            "NVSHMEM_BOOTSTRAP_PMI", "PMI", "which PMI", ("pmi", "pmi-2", "pmi2", "pmix"),
        ),
        Variable("NVSHMEM_BOOTSTRAP_PLUGIN", "", "the file to load with NVSHMEM_BOOTSTRAP=plugin"),
        Variable(
            "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "",
            "interfaces for the UID bootstrap: prefixes; a leading ^ excludes, = matches exactly",
        ),
        Variable(
            "NVSHMEM_BOOTSTRAP_UID_SOCK_FAMILY", "AF_INET", "address family of the UID bootstrap",
            ("af_inet", "af_inet6"),
        ),
        Variable(
            "NVSHMEM_REMOTE_TRANSPORT", "ibrc", "transport to GPUs on other nodes",
            ("ibrc", "ucx", "libfabric", "ibdevx", "gpunetio", "none"),
        ),
        Variable("NVSHMEM_IB_ENABLE_IBGDA", "0", "1: kernels drive the network adapter themselves"),
        Variable(
            "NVSHMEM_GPUNETIO_ENABLE_GDAKI", "0",
            "1: kernels drive the network adapter themselves, through GPUNetIO",
        ),
        Variable(
            "NVSHMEM_IBGDA_NIC_HANDLER", "auto", "processor that rings the doorbell for IBGDA",
            ("auto", "gpu", "cpu", "cpu_host_memory"),
        ),
        Variable("NVSHMEM_DISABLE_P2P", "0", "1: do not use NVLink and PCIe between GPUs"),
        Variable("NVSHMEM_DISABLE_MNNVL", "0", "1: do not use NVLink between nodes"),
        Variable("NVSHMEM_IB_DISABLE_DMABUF", "0", "1: register GPU memory by nvidia-peermem only"),
        Variable("NVSHMEM_DISABLE_GDRCOPY", "0", "1: do not use GDRCopy"),
        Variable("NVSHMEM_IB_GID_INDEX", "-1", "RoCE: GID index; -1: found by NVSHMEM"),
        Variable("NVSHMEM_HCA_PREFIX", "mlx5", "prefix of the RDMA devices' names"),
        Variable("NVSHMEM_HCA_LIST", "", "RDMA ports to use, as mlx5_0:1; a leading ^ excludes"),
        Variable(
            "NVSHMEM_HCA_PE_MAPPING", "",
            "number of consecutive PEs of a node per port, as mlx5_0:1:2",
        ),
        Variable(
            "NVSHMEM_ENABLE_NIC_PE_MAPPING", "0",
            "1: adapters by NVSHMEM_HCA_LIST, NVSHMEM_HCA_PE_MAPPING or in turn, not distance",
        ),
        Variable(
            "NVSHMEM_IGNORE_CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "0",
            "1: full support for several PEs on a GPU regardless of the MPS percentages",
        ),
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
