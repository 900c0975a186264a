"""Checks of the network between nodes: RDMA adapters, and NVSHMEM's transports."""

from __future__ import annotations

from gpushmem.doctor import nvshmem
from gpushmem.doctor.check import ENV, INSTALL, NO_GPU, Finding, check, na, ok, problem, warning
from gpushmem.doctor.gpu_inventory import driver_version
from gpushmem.doctor.network import ROCE_HEADERS, ROCE_MTUS, Port, ports
from gpushmem.doctor.software import library
from gpushmem.doctor.system import System

MTU_SOURCE = "https://github.com/torvalds/linux/blob/master/include/rdma/ib_addr.h"


def _usable(system: System) -> list[Port]:
    """Return the ports NVSHMEM would use: active, with a name that fits NVSHMEM_HCA_PREFIX."""
    prefix = nvshmem.value(system, "NVSHMEM_HCA_PREFIX")
    return [port for port in ports(system) if port.state == "ACTIVE" and prefix in port.device]


@check("rdma", "RDMA devices", "nvshmem", INSTALL)
def rdma(system: System, n_pes: int) -> Finding:
    """InfiniBand or RoCE adapters (ConnectX-4 or later) with an ACTIVE port, and with names that
    NVSHMEM accepts: they must contain NVSHMEM_HCA_PREFIX, mlx5. Only needed between nodes, or
    between GPUs without peer access.
    """
    found = ports(system)
    if driver_version(system) is None:
        return na(NO_GPU if not found else f"{NO_GPU}; {_described(found)}")
    if not found:
        return na("none: one node only")
    named = {f"{port.device}:{port.number}" for port in found} | {port.device for port in found}
    listed = nvshmem.value(system, "NVSHMEM_HCA_LIST").removeprefix("^")
    for entry in filter(None, listed.split(",")):
        if entry.strip() not in named:
            return problem(
                f"NVSHMEM_HCA_LIST names {entry.strip()}; found: {', '.join(sorted(named))}",
                "Correct it; entries are device:port.",
            )
    if not any(port.state == "ACTIVE" for port in found):
        return problem(
            _described(found),
            "Bring a port up: check cable and switch; InfiniBand needs a subnet manager, RoCE `ip "
            "link set ... up`. `ibstat` shows the state.",
        )
    if not _usable(system):
        return problem(
            f"{_described(found)}; no name matches NVSHMEM_HCA_PREFIX",
            "Set NVSHMEM_HCA_PREFIX to the prefix of the names (NVSHMEM 3.4.5 or newer).",
        )
    return ok(_described(found))


def _described(found: list[Port]) -> str:
    told = [f"{port.name} {port.state} {port.link_layer}" for port in found[:4]]
    more = f", {len(found) - 4} more" if len(found) > 4 else ""
    return ", ".join(told) + more


@check("mtu", "MTU of RoCE ports", "nvshmem", MTU_SOURCE)
def mtu(system: System, n_pes: int) -> Finding:
    """The payload of a RoCE packet is 256, 512, 1024, 2048 or 4096 bytes: the largest that fits the
    interface's MTU with 96 bytes of headers, so 1024 with Ethernet's usual 1500. Large messages are
    fastest with 4096, and both ends of a connection use the smaller of theirs.
    """
    if driver_version(system) is None:
        return na(NO_GPU)
    found = [(port, port.packet) for port in _usable(system) if port.link_layer == "Ethernet"]
    known = [(port, size) for port, size in found if size is not None]
    if not known:
        return na("no RoCE port" if not found else "unknown")
    told = ", ".join(f"{port.name}: MTU {port.mtu}, packets of {size}" for port, size in known[:4])
    best = max(ROCE_MTUS)
    if min(size for _, size in known) < best:
        return warning(
            told,
            f"Set an MTU of {best + ROCE_HEADERS} or more, usually 9000 (ip link set INTERFACE mtu "
            "9000), on all nodes and switch ports.",
        )
    return ok(told)


@check("transport", "Transport between nodes", "nvshmem", ENV)
def transport(system: System, n_pes: int) -> Finding:
    """The transport NVSHMEM uses between nodes: NVSHMEM_REMOTE_TRANSPORT (default ibrc), and IBGDA
    for kernels if NVSHMEM_IB_ENABLE_IBGDA is on; each is a plugin in the library's folder. Inside a
    node it uses peer access, unless NVSHMEM_DISABLE_P2P is set.
    """
    if driver_version(system) is None:
        return na(NO_GPU)
    name = nvshmem.value(system, "NVSHMEM_REMOTE_TRANSPORT").lower()
    choices = nvshmem.VARIABLES["NVSHMEM_REMOTE_TRANSPORT"].choices
    if name not in choices:
        return problem(
            f"NVSHMEM_REMOTE_TRANSPORT={name} is unknown: NVSHMEM uses no remote transport",
            f"Use one of {', '.join(choices)}.",
        )
    wanted = [] if name == "none" else [name]
    if nvshmem.is_on(system, "NVSHMEM_IB_ENABLE_IBGDA"):
        wanted.append("ibgda")
    found = library(system)
    missing = [plugin for plugin in wanted if found and not found.plugin("transport", plugin)]
    if found and missing:
        return problem(
            f"nvshmem_transport_{missing[0]}.so is not in {found.folder}",
            "Install an NVSHMEM that includes it, or choose another NVSHMEM_REMOTE_TRANSPORT.",
        )
    return _chosen(system, wanted)


def _chosen(system: System, wanted: list[str]) -> Finding:
    near = "no peer access" if nvshmem.is_on(system, "NVSHMEM_DISABLE_P2P") else "peer access"
    far = "not used" if not wanted else " and ".join(wanted)
    if {"ibrc", "ibdevx", "ibgda"} & set(wanted) and not _usable(system):
        far = "none: no RDMA port it could use"
        if near == "no peer access":
            return problem(
                f"inside the node {near}, between nodes {far}",
                "Unset NVSHMEM_DISABLE_P2P, or see rdma.",
            )
    return ok(f"inside the node {near}; between nodes {far}")
