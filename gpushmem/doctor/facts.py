"""The data of `gpushmem info`: one dictionary for text and JSON, with a section per key."""

from __future__ import annotations

import platform as python_platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gpushmem import settings
from gpushmem.backends import registry
from gpushmem.backends.properties import About
from gpushmem.doctor.check import NO_GPU
from gpushmem.doctor.gpu_inventory import driver_version, gpus
from gpushmem.doctor.limits import PLATFORM, SHM
from gpushmem.doctor.machine import cores, limit, memory
from gpushmem.doctor.network import interfaces, ports
from gpushmem.doctor.software import launchers, library, versions
from gpushmem.doctor.system import PROBES, System

__all__ = ["KEYS", "collect", "plain", "shown"]

KEYS = {
    "versions": "versions by package, null if not installed",
    "backends": "for each backend: `usable`, and the `reasons` if it is not",
    "backend": "`name` of the backend that `init` would choose here, or null, and `why`",
    "nvshmem": "settings of that backend: transport, heap in bytes, hca, nic_map; resulting "
    "NVSHMEM `variables`; `problem` with them, or null",
    "driver": "version of the NVIDIA driver in the kernel, or null",
    "gpus": "list: index, name, uuid, memory in bytes, compute (capability), mig; null: unknown",
    "rdma": "list of ports: device, number, state, link_layer, rate, number of gids",
    "interfaces": "list: name, up, speed in Mbit/s or null",
    "cores": "present, available to this process, quota of its cgroup (in cores) or null",
    "memory": "in bytes: total, available, the cgroup's limit and usage, or null",
    "limits": "shm_total, shm_free, locked_memory in bytes; open_files; max_map_count; or null",
    "launchers": "path and version, null if not found",
    "nvshmem_library": "folder of the library, or null",
    "environment": "GPUSHMEM_ and NVSHMEM_ variables that are set; secrets hidden",
}
SECRET = re.compile(r"KEY|SECRET|TOKEN|PASSWORD")


def collect(
    system: System, version: str, backends: Sequence[str],
    backend: Mapping[str, Any] | None = None, nvshmem: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Collect all sections; `backends` are the names of those to report.

    `backend` and `nvshmem`, the chosen backend and its settings, are passed in.
    """
    found = library(system)
    return {
        "versions": {
            "gpushmem": version, "python": python_platform.python_version(), **versions(system)
        },
        "backends": {
            name: {"usable": not reasons, "reasons": reasons}
            for name, reasons in _backends(system, backends).items()
        },
        "backend": _plain(backend or {}),
        "nvshmem": _plain(nvshmem or {}),
        "driver": driver_version(system),
        "gpus": [asdict(gpu) for gpu in gpus(system)],
        "rdma": [asdict(port) for port in ports(system)],
        "interfaces": [asdict(interface) for interface in interfaces(system)],
        "cores": asdict(cores(system)),
        "memory": asdict(memory(system)),
        "limits": _limits(system),
        "launchers": launchers(system),
        "nvshmem_library": found.folder if found else None,
        "environment": _environment(system),
    }  # fmt: skip


def _backends(system: System, names: Sequence[str]) -> dict[str, list[str]]:
    """Backends, each with all that keeps it from being used."""
    found = {name: registry.about(name) for name in names}
    return {
        name: [why for need in about.needs for why in NEEDS[need](system, about)]
        for name, about in found.items()
    }


def _platform(system: System, about: About) -> list[str]:
    if system.platform == PLATFORM:
        return []
    return [f"{' '.join(system.platform)}: not x86-64 Linux"]


def _calls(system: System, about: About) -> list[str]:
    failed = {call: system.probe(call) for call in PROBES}
    return [f"{call} does not work: {why}" for call, why in failed.items() if why]


def _driver(system: System, about: About) -> list[str]:
    return [] if driver_version(system) else ["no NVIDIA driver"]


def _gpu(system: System, about: About) -> list[str]:
    return [NO_GPU] if driver_version(system) and not gpus(system) else []


def _packages(system: System, about: About) -> list[str]:
    return about.lacking(system.packages.get)


def _library(system: System, about: About) -> list[str]:
    return [] if library(system) else ["no NVSHMEM library"]


# What backends can need of a machine (`About.needs`): what says why one cannot be used.
NEEDS: dict[str, Callable[[System, About], list[str]]] = {
    "platform": _platform, "calls": _calls, "driver": _driver, "gpu": _gpu,
    "packages": _packages, "nvshmem library": _library,
}  # fmt: skip


def _limits(system: System) -> dict[str, int | None]:
    sizes = system.room(system.path(SHM)) or (0, 0)
    soft = {key: limit(system, name) for key, name in LIMITS.items()}
    finite = {k: None if v is None or v == float("inf") else int(v) for k, v in soft.items()}
    mappings = system.number("/proc/sys/vm/max_map_count")
    return {"shm_total": sizes[0], "shm_free": sizes[1], **finite, "max_map_count": mappings}


LIMITS = {"locked_memory": "Max locked memory", "open_files": "Max open files"}


def _environment(system: System) -> dict[str, str]:
    names = sorted(n for n in system.environ if n.startswith(("GPUSHMEM_", "NVSHMEM_")))
    return {name: shown(name, system.environ[name]) for name in names}


def shown(name: str, text: str) -> str:
    """Return a variable's text for printing; values that are or look secret are hidden."""
    setting = settings.SETTINGS.get(name)
    secret = setting.secret if setting else bool(SECRET.search(name))
    return "(hidden)" if secret else plain(text)


def _plain(value: Any) -> Any:
    """Return the value with all its texts made printable."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return plain(value) if isinstance(value, str) else value


def plain(text: str) -> str:
    """Escape everything that is not printable ASCII, for any terminal or log."""
    return text if text.isascii() and text.isprintable() else ascii(text)
