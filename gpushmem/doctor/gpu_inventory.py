"""The GPUs, as reported by nvidia-smi, or else by the driver's files in /proc."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass

from gpushmem.doctor.system import System

__all__ = ["Gpu", "driver_version", "gpus", "pci_gpus", "visible"]

FIELDS = ("index", "name", "memory.total", "uuid", "compute_cap", "mig.mode.current")
OLD_FIELDS = FIELDS[:4]  # an old nvidia-smi refuses a query with a field it does not know
NVIDIA = "0x10de"
VERSION_FILE = "/proc/driver/nvidia/version"


@dataclass(frozen=True)
class Gpu:
    """One GPU; unknown properties are None."""

    index: int
    name: str
    uuid: str | None = None
    memory: int | None = None  # bytes
    compute: str | None = None  # "9.0"
    mig: bool | None = None


def driver_version(system: System) -> str | None:
    """Return the version of the loaded driver; None if there is none."""
    text = system.read(VERSION_FILE) or ""
    match = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return match[1] if match else system.read("/sys/module/nvidia/version")


def gpus(system: System) -> list[Gpu]:
    """Return all GPUs the driver shows to this process's container, in nvidia-smi's order."""
    for fields in (FIELDS, OLD_FIELDS):
        query = f"--query-gpu={','.join(fields)}"
        text = system.run(("nvidia-smi", query, "--format=csv,noheader,nounits"))
        if text:
            rows = csv.reader(text.splitlines(), skipinitialspace=True)
            return [_gpu(dict(zip(fields, row, strict=False))) for row in rows if len(row) > 2]
    return [_from_proc(system, k, bus) for k, bus in enumerate(system.names(GPUS_FOLDER))]


GPUS_FOLDER = "/proc/driver/nvidia/gpus"


def _gpu(row: dict[str, str]) -> Gpu:
    mebibytes, mig = row["memory.total"], row.get("mig.mode.current", "")
    return Gpu(
        index=int(row["index"]) if row["index"].isdecimal() else 0,
        name=row["name"],
        uuid=row.get("uuid"),
        memory=int(mebibytes) << 20 if mebibytes.isdecimal() else None,
        compute=row.get("compute_cap"),
        mig={"Enabled": True, "Disabled": False}.get(mig),
    )


def _from_proc(system: System, index: int, bus: str) -> Gpu:
    table = system.table(f"{GPUS_FOLDER}/{bus}/information")
    return Gpu(index, table.get("Model", bus), table.get("GPU UUID"))


def pci_gpus(system: System) -> int:
    """Return the number of NVIDIA GPUs on the PCI bus, with or without a driver."""
    folder = "/sys/bus/pci/devices"
    return sum(
        system.read(f"{folder}/{name}/vendor") == NVIDIA
        and (system.read(f"{folder}/{name}/class") or "").startswith("0x03")
        for name in system.names(folder)
    )


def visible(system: System, found: list[Gpu]) -> tuple[list[Gpu], list[str]]:
    """Return the GPUs CUDA shows this process, in its order, and the entries that name none.

    CUDA silently stops at the first entry of CUDA_VISIBLE_DEVICES that it cannot use.
    """
    text = system.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return found, []
    seen: list[Gpu] = []
    entries = [entry.strip() for entry in text.split(",")] if text.strip() else []
    for k, entry in enumerate(entries):
        matching = [gpu for gpu in found if _names(entry, gpu)]
        if len(matching) != 1 or matching[0] in seen:
            return seen, entries[k:]
        seen += matching
    return seen, []


def _names(entry: str, gpu: Gpu) -> bool:
    if entry.isdecimal():
        return int(entry) == gpu.index
    return entry.startswith("GPU-") and (gpu.uuid or "").startswith(entry)
