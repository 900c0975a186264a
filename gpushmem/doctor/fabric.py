"""Checks of the network between nodes: RDMA adapters, and NVSHMEM's transports."""

from __future__ import annotations

from gpushmem.doctor import nvshmem
from gpushmem.doctor.check import ENV, INSTALL, NO_GPU, Finding, check, na, ok, problem, warning
from gpushmem.doctor.gpus import driver_version, open_module
from gpushmem.doctor.machine import kernel
from gpushmem.doctor.network import Port, ports
from gpushmem.doctor.software import library
from gpushmem.doctor.system import System

NO_RDMA = "no RDMA device"
PEER_MEMORY = (
    "/sys/module/nvidia_peermem/version",
    "/sys/kernel/mm/memory_peers/nvidia-peermem/version",
    "/sys/kernel/mm/memory_peers/nv_mem/version",
)


def _usable(system: System) -> list[Port]:
    """Return the ports NVSHMEM would use: active, with a name that fits NVSHMEM_HCA_PREFIX."""
    prefix = nvshmem.value(system, "NVSHMEM_HCA_PREFIX")
    return [port for port in ports(system) if port.state == "ACTIVE" and prefix in port.device]


def _without(system: System) -> str:
    """Return why checks of GPUs with RDMA do not apply here; empty if they do."""
    if driver_version(system) is None:
        return NO_GPU
    return "" if ports(system) else NO_RDMA


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


@check("roce_gids", "GIDs for RoCE", "nvshmem", ENV)
def roce(system: System, n_pes: int) -> Finding:
    """A RoCE port needs a GID of RoCE version 2 for an IP address of its network interface. NVSHMEM
    finds one itself unless NVSHMEM_IB_GID_INDEX selects one; a wrong index causes "ibv_modify_qp
    failed".
    """
    if _without(system):
        return na(_without(system))
    found = [port for port in _usable(system) if port.link_layer == "Ethernet"]
    if not found:
        return na("no RoCE port")
    asked = nvshmem.value(system, "NVSHMEM_IB_GID_INDEX")
    for port in found:
        good = {gid.index for gid in port.gids if gid.kind == "RoCE v2" and gid.ipv4}
        told = f"{port.name} has RoCE v2 GIDs of IPv4 addresses at {sorted(good) or 'no index'}"
        if asked != "-1" and asked not in map(str, good):
            return warning(
                f"NVSHMEM_IB_GID_INDEX={asked}; {told}",
                "Unset it, or use an index that `show_gids` lists as v2 with an IPv4 address.",
            )
        if not good:
            return warning(
                told,
                "Give its network interface an IPv4 address; with IPv6 only, set "
                "NVSHMEM_IB_ADDR_FAMILY=AF_INET6.",
            )
    return ok(told)


@check(
    "gpudirect", "GPUDirect RDMA", "nvshmem",
    "https://docs.nvidia.com/cuda/gpudirect-rdma/index.html",
)  # fmt: skip
def gpudirect(system: System, n_pes: int) -> Finding:
    """The adapter accesses GPU memory directly: through the module nvidia-peermem (or the older
    nv_peer_mem), or dma-buf (open kernel modules, Linux 5.12). Without either, NVSHMEM prints
    "neither nv_peer_mem, or nvidia_peermem detected. Skipping transport."
    """
    if _without(system):
        return na(_without(system))
    module = next((path for path in PEER_MEMORY if system.exists(path)), None)
    if module:
        return ok(f"peer memory module ({module.split('/')[-2]})")
    dmabuf = open_module(system) and kernel(system) >= (5, 12)
    if dmabuf and not nvshmem.is_on(system, "NVSHMEM_IB_DISABLE_DMABUF"):
        return ok("dma-buf: open kernel modules, Linux 5.12 or newer; nvidia-peermem not loaded")
    return problem(
        "neither nvidia-peermem nor dma-buf"
        + (", which NVSHMEM_IB_DISABLE_DMABUF turns off" if dmabuf else ""),
        "sudo modprobe nvidia-peermem (needs the RDMA drivers of DOCA-OFED to be loaded first), "
        "or install the driver's open kernel modules.",
    )


@check("gdrcopy", "GDRCopy", "nvshmem", INSTALL)
def gdrcopy(system: System, n_pes: int) -> Finding:
    """The IBRC transport handles atomics from other nodes through GDRCopy's /dev/gdrdrv."""
    if _without(system):
        return na(_without(system))
    if nvshmem.is_on(system, "NVSHMEM_DISABLE_GDRCOPY"):
        return ok("turned off by NVSHMEM_DISABLE_GDRCOPY")
    if system.exists("/dev/gdrdrv"):
        return ok("/dev/gdrdrv")
    return warning(
        "no /dev/gdrdrv: atomics between nodes may not work over IBRC",
        "Install GDRCopy and load gdrdrv; in a container, pass --device /dev/gdrdrv.",
    )


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


@check("ibgda", "IBGDA", "nvshmem", INSTALL)
def ibgda(system: System, n_pes: int) -> Finding:
    """With NVSHMEM_IB_ENABLE_IBGDA, kernels ring the adapter's doorbell themselves if the driver
    was loaded with PeerMappingOverride=1 (shown in /proc/driver/nvidia/params; the file in
    /sys/module is empty even then). Otherwise the CPU assists: slower, and before NVSHMEM 3.4.5
    only with GDRCopy.
    """
    if _without(system):
        return na(_without(system))
    if not nvshmem.is_on(system, "NVSHMEM_IB_ENABLE_IBGDA"):
        return na("NVSHMEM_IB_ENABLE_IBGDA is not set")
    words = system.table("/proc/driver/nvidia/params").get("RegistryDwords", "")
    if "PeerMappingOverride=1" in words:
        return ok("PeerMappingOverride=1")
    handler = nvshmem.value(system, "NVSHMEM_IBGDA_NIC_HANDLER").lower()
    if handler.startswith("cpu"):
        return ok(f"the CPU rings the doorbell (NVSHMEM_IBGDA_NIC_HANDLER={handler})")
    fix = (
        'Write options nvidia NVreg_RegistryDwords="PeerMappingOverride=1;" into '
        "/etc/modprobe.d/nvidia.conf, rebuild the initramfs, and reboot."
    )
    if handler == "gpu":
        return problem("NVSHMEM_IBGDA_NIC_HANDLER=gpu without PeerMappingOverride=1", fix)
    return warning("no PeerMappingOverride=1: the CPU has to assist", fix)
