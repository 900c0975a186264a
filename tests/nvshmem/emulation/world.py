"""This process as a PE: the job, its heap and its teams, once `hostlib_init_attr` was called."""

import ctypes
import os
from dataclasses import dataclass

from tests.nvshmem.emulation.driver import function
from tests.nvshmem.emulation.errors import EmulationError
from tests.nvshmem.emulation.heap import Heap
from tests.nvshmem.emulation.job import Job
from tests.nvshmem.emulation.teams import Teams

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass
class World:
    """`bootstrapped` only, with neither heap nor teams, until the process has a device."""

    job: Job
    heap: Heap | None = None
    teams: Teams | None = None
    limited_mpg: bool = False  # several PEs to a GPU, and no MPS


_state: dict[str, World | None] = {"world": None}


def symmetric_size() -> int:
    """Return NVSHMEM_SYMMETRIC_SIZE in bytes, to whole granules."""
    text = os.environ.get("NVSHMEM_SYMMETRIC_SIZE", "1G").strip().upper()
    unit = _UNITS.get(text[-1:], 1)
    size = float(text[:-1] if text[-1:] in _UNITS else text) * unit
    return -(-int(size) // granularity()) * granularity()


def granularity() -> int:
    """Return how many bytes of a GPU's memory NVSHMEM takes at a time."""
    found = int(os.environ.get("NVSHMEM_CUMEM_GRANULARITY") or 512 << 20)
    if found < 2 << 20 or found & (found - 1):
        raise EmulationError(f"NVSHMEM_CUMEM_GRANULARITY={found}: a power of 2, from 2 MiB on")
    return found


def start(path: str, me: int, n: int) -> None:
    """Join the job of this file."""
    if _state["world"] is not None:
        raise EmulationError("NVSHMEM is initialised already")
    _state["world"] = World(Job(path, me, n, symmetric_size()))
    if current_device() >= 0:
        complete()


def current_device() -> int:
    """Return this thread's device, by its number on the machine, or -1."""
    return function("current_device", ctypes.c_int)()


def complete() -> World:
    """Do the second half of initialisation, for which a device is needed. All PEs take part."""
    world = _state["world"]
    if world is None:
        raise EmulationError("NVSHMEM is not initialised")
    if world.heap is None:
        if current_device() < 0:
            raise EmulationError("NVSHMEM needs a device: Device(i).set_current() before this")
        job = world.job
        job.per_pe(0)[job.me] = current_device() + 1
        job.barrier(0, range(job.n), "init")
        devices = [int(device) for device in job.per_pe(0)]
        per_node = int(os.environ.get("EMULATION_NODE_PES", "0")) or job.n
        # Devices of the same number on two nodes are two.
        devices = [(pe // per_node, device) for pe, device in enumerate(devices)]
        world.teams = Teams(job, devices, per_node)
        world.heap = Heap(job, world.teams.members[2], granularity())
        world.limited_mpg = len(set(devices)) < job.n and os.environ.get("EMULATION_MPS") == "0"
        job.barrier(0, range(job.n), "init")
    return world


def current() -> World | None:
    """Return this PE, or None before init and after finalize."""
    return _state["world"]


def end() -> None:
    """Leave the job, with all others."""
    world = _state["world"]
    if world is None:
        return
    world.job.barrier(0, range(world.job.n), "finalize")
    if world.heap is not None:
        world.heap.close()
    _state["world"] = None
