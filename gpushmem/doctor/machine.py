"""Cores, memory and limits of this machine, and of an enclosing container."""

from __future__ import annotations

import os
from dataclasses import dataclass

from gpushmem.doctor.system import System

__all__ = [
    "Cores", "Memory", "cgroup_value", "cores", "kernel", "left_behind", "limit", "memory",
    "numbers",
]  # fmt: skip

UNLIMITED = 1 << 60  # cgroup version 1 writes almost 2**63 for no limit


@dataclass(frozen=True)
class Cores:
    """Number of cores present, of cores this process may use, and the cgroup's quota."""

    present: int
    available: int
    quota: float | None

    @property
    def usable(self) -> float:
        """The smaller of available cores and quota."""
        return min(self.available, self.quota or self.available)


@dataclass(frozen=True)
class Memory:
    """In bytes: total, available without swapping, and the cgroup's limit and usage."""

    total: int
    available: int
    limit: int | None
    used: int | None  # of the cgroup

    @property
    def usable(self) -> int:
        """The memory left, according to machine and cgroup."""
        if self.limit is None:
            return self.available
        return min(self.available, max(0, self.limit - (self.used or 0)))


def numbers(text: str) -> list[int]:
    """Parse a kernel list of numbers: "0-3,8" is 0 1 2 3 8."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            found += range(int(first), int(last or first) + 1)
    return found


def cores(system: System) -> Cores:
    """Read the cores from /sys, this process's status, and its cgroup."""
    present = len(numbers(system.read("/sys/devices/system/cpu/present") or ""))
    allowed = system.table("/proc/self/status").get("Cpus_allowed_list", "")
    available = len(numbers(allowed)) or present or 1
    return Cores(max(present, available), available, _quota(system))


def _quota(system: System) -> float | None:
    words = (cgroup_value(system, "", "cpu.max") or "").split()
    if not words:
        quota = cgroup_value(system, "cpu", "cpu.cfs_quota_us") or ""
        words = [quota, cgroup_value(system, "cpu", "cpu.cfs_period_us") or ""]
    if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
        return int(words[0]) / int(words[1])
    return None


def memory(system: System) -> Memory:
    """Read the memory from /proc/meminfo and this process's cgroup."""
    table = system.table("/proc/meminfo")
    kib = {key: 1024 * _whole(value) for key, value in table.items() if value}
    limit = _bytes(system, "memory.max", "memory.limit_in_bytes")
    used = _bytes(system, "memory.current", "memory.usage_in_bytes")
    total = kib.get("MemTotal", 0)
    return Memory(total, kib.get("MemAvailable", kib.get("MemFree", total)), limit, used)


def _whole(text: str) -> int:
    """Parse the number at the start of the text, "16384 kB"; 0 if there is none."""
    word = text.split(maxsplit=1)[0]
    return int(word) if word.isdecimal() else 0


def _bytes(system: System, unified: str, legacy: str) -> int | None:
    text = cgroup_value(system, "", unified) or cgroup_value(system, "memory", legacy) or ""
    return int(text) if text.isdecimal() and int(text) < UNLIMITED else None


def cgroup_value(system: System, controller: str, file: str) -> str | None:
    """Read a file of this process's cgroup; `controller` is empty for version 2.

    In a container the path in /proc is often the host's: then the root of the mount is used.
    """
    top = "/sys/fs/cgroup" + (f"/{controller}" if controller else "")
    for line in (system.read("/proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller in names.split(",") and system.exists(f"{top}{path}/{file}"):
            return system.read(f"{top}{path.rstrip('/')}/{file}")
    return system.read(f"{top}/{file}")


def limit(system: System, name: str) -> float | None:
    """Return a soft limit of this process by its name in /proc/self/limits: "Max open files".

    Infinite if unlimited; None if unknown.
    """
    for line in (system.read("/proc/self/limits") or "").splitlines():
        if line.startswith(name):
            words = line[len(name) :].split()
            if words and words[0] == "unlimited":
                return float("inf")
            return int(words[0]) if words and words[0].isdecimal() else None
    return None


def kernel(system: System) -> tuple[int, ...]:
    """Return the kernel's version: (5, 15)."""
    release = system.read("/proc/sys/kernel/osrelease") or ""
    parts = release.split("-")[0].split(".")[:2]
    return tuple(int(part) for part in parts if part.isdecimal())


def left_behind(system: System, folder: str, names: list[str]) -> dict[str, int]:
    """Return those of the files that are this user's and no process has mapped, with their bytes.

    Processes of the same user show what they have mapped.
    """
    mine = {}
    for name in names:
        about = system.status(f"{folder}/{name}")
        if about is not None and about[0] == os.getuid():
            mine[name] = about[1]
    if not mine:
        return {}
    maps = (system.read(f"/proc/{pid}/maps") for pid in system.names("/proc") if pid.isdecimal())
    used = {
        line.rpartition(f" {folder}/")[2] for text in maps if text for line in text.splitlines()
    }
    return {name: nbytes for name, nbytes in mine.items() if name not in used}
