"""RDMA ports and network interfaces, as /sys shows them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpushmem.doctor.system import System

__all__ = [
    "ROCE_HEADERS",
    "ROCE_MTUS",
    "Interface",
    "Port",
    "bootstrap_interface",
    "interfaces",
    "ports",
]

INFINIBAND = "/sys/class/infiniband"
NET = "/sys/class/net"
# Linux's iboe_get_mtu (include/rdma/ib_addr.h).
ROCE_MTUS, ROCE_HEADERS = (256, 512, 1024, 2048, 4096), 96
# Bridges and tunnels of containers and virtual machines: they do not reach another machine.
VIRTUAL = re.compile(
    r"docker|virbr|veth|br-|cni|flannel|cali|podman|lxc|lxd|tun|tap|kube|ifb|dummy"
)


@dataclass(frozen=True)
class Port:
    """A port of an RDMA device; usable if `state` is ACTIVE."""

    device: str
    number: int
    state: str
    link_layer: str  # InfiniBand, or Ethernet: RoCE
    rate: str
    gids: int = 0  # how many addresses it has
    mtu: int | None = None  # bytes; of the Ethernet interface that a RoCE port belongs to

    @property
    def packet(self) -> int | None:
        """The largest payload of a RoCE packet in bytes: a power of two that fits, with headers."""
        if self.mtu is None:
            return None
        return max((size for size in ROCE_MTUS if size + ROCE_HEADERS <= self.mtu), default=0)

    @property
    def name(self) -> str:
        """The name used in NVSHMEM_HCA_LIST: mlx5_0:1."""
        return f"{self.device}:{self.number}"


def ports(system: System) -> list[Port]:
    """Return all ports of all RDMA devices."""
    return [
        _port(system, device, int(number))
        for device in system.names(INFINIBAND)
        for number in system.names(f"{INFINIBAND}/{device}/ports")
        if number.isdecimal()
    ]


def _port(system: System, device: str, number: int) -> Port:
    folder = f"{INFINIBAND}/{device}/ports/{number}"
    state = system.read(f"{folder}/state") or "unknown"  # "4: ACTIVE"
    return Port(
        device,
        number,
        state.rpartition(":")[2].strip(),
        system.read(f"{folder}/link_layer") or "unknown",
        system.read(f"{folder}/rate") or "unknown",
        _gids(system, folder),
        _mtu(system, folder),
    )


def _mtu(system: System, folder: str) -> int | None:
    """The smallest MTU of the interfaces that a port's addresses belong to."""
    devices = f"{folder}/gid_attrs/ndevs"
    names = {system.read(f"{devices}/{index}") for index in system.names(devices)}
    sizes = [system.number(f"{NET}/{name}/mtu") for name in names if name]
    return min((size for size in sizes if size), default=None)


def _gids(system: System, folder: str) -> int:
    addresses = (system.read(f"{folder}/gids/{index}") for index in system.names(f"{folder}/gids"))
    return sum(bool((address or "").strip("0:")) for address in addresses)  # empty: all zeros


@dataclass(frozen=True)
class Interface:
    """A network interface; `speed` in Mbit/s if the device reports it."""

    name: str
    up: bool
    speed: int | None

    @property
    def virtual(self) -> bool:
        """Whether the name is that of a bridge or tunnel inside this machine."""
        return bool(VIRTUAL.match(self.name))


def interfaces(system: System) -> list[Interface]:
    """Return the network interfaces, in the order of their indices, like getifaddrs."""
    names = system.names(NET)
    order = {name: system.number(f"{NET}/{name}/ifindex") or 0 for name in names}
    return [_interface(system, name) for name in sorted(names, key=order.__getitem__)]


def _interface(system: System, name: str) -> Interface:
    state = system.read(f"{NET}/{name}/operstate")
    flags = system.number(f"{NET}/{name}/flags") or 0
    # Loopback and some tunnels report no state: use IFF_UP.
    up = state == "up" or (state == "unknown" and bool(flags & 1))
    speed = system.number(f"{NET}/{name}/speed")
    return Interface(name, up, speed if speed and speed > 0 else None)


def bootstrap_interface(system: System) -> tuple[str | None, list[str]]:
    """Return the interface NVSHMEM's UID bootstrap uses, and the other candidates.

    Its order: NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME (prefixes; ^ excludes, = is exact), else names
    starting with ib, else names other than docker and lo, else docker, else lo (NVSHMEM's
    ncclsocket_socket.cpp). NVSHMEM also requires an address, which /sys does not show, and skips
    interfaces without one.
    """
    names = [interface.name for interface in interfaces(system) if interface.up]
    asked = system.variable("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME")
    for wanted in [asked] if asked else ["ib", "^docker,lo", "docker", "lo"]:
        chosen = [name for name in names if _matches(name, wanted)]
        if chosen:
            return chosen[0], chosen[1:]
    return None, []


def _matches(name: str, wanted: str) -> bool:
    exclude, wanted = wanted.startswith("^"), wanted.removeprefix("^")
    exact, wanted = wanted.startswith("="), wanted.removeprefix("=")
    entries = [entry.split(":")[0].strip() for entry in wanted.split(",") if entry.strip()]
    found = name in entries if exact else name.startswith(tuple(entries))
    return found != exclude
