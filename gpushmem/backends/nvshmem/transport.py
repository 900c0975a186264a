"""NVSHMEM's environment variables, set before it starts: heap size, transport, adapters.

Variables are those of NVSHMEM 3.4 to 3.8 (docs.nvidia.com/nvshmem/api/gen/env.html; the texts in
libnvshmem_host.so.3). Variables that the user has set are not changed; one that contradicts a
setting of gpushmem is an error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from gpushmem import settings
from gpushmem.errors import ArgumentError
from gpushmem.size import parse_size

__all__ = ["TRANSPORTS", "apply", "chosen", "variables", "without_ours"]

REMOTE, IBGDA = "NVSHMEM_REMOTE_TRANSPORT", "NVSHMEM_IB_ENABLE_IBGDA"
SIZE, GRANULE = "NVSHMEM_SYMMETRIC_SIZE", "NVSHMEM_CUMEM_GRANULARITY"
# NVSHMEM adds room for its own teams and buffers; this is for the backend's allocations beside the
# heap, and for the alignment of blocks (512 bytes).
BESIDE = 64 << 20
# NVSHMEM takes GPU memory in granules, of 512 MiB if nothing is said; each is made known to every
# peer and adapter. So a heap is at most some GRANULES of them, and wastes an eighth or less.
LARGEST, SMALLEST, GRANULES = 512 << 20, 2 << 20, 8

# With all of them, GPUs of one machine access each other directly if they can. With IBGDA the host
# uses another transport: NVSHMEM's own choice, or NVSHMEM_REMOTE_TRANSPORT.
TRANSPORTS: dict[str, dict[str, str]] = {
    "auto": {},
    "p2p": {REMOTE: "none", IBGDA: "0"},
    "ibrc": {REMOTE: "ibrc", IBGDA: "0"},
    "ibgda": {IBGDA: "1"},
    "ibdevx": {REMOTE: "ibdevx", IBGDA: "0"},
    "gpunetio": {REMOTE: "gpunetio", "NVSHMEM_GPUNETIO_ENABLE_GDAKI": "1", IBGDA: "0"},
    "ucx": {REMOTE: "ucx", IBGDA: "0"},
    "libfabric": {REMOTE: "libfabric", IBGDA: "0"},
}

# Loading code may wait for all kernels: CUDA is to load NVSHMEM's own when it starts, and not when
# the host first calls an operation that is one.
LOADING = {"CUDA_MODULE_LOADING": "EAGER"}

_put: dict[str, str] = {}  # variables that `apply` has set in this process


def variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables for the settings of transport and adapters; raises `ArgumentError`."""
    told = dict(TRANSPORTS[settings.get("GPUSHMEM_TRANSPORT", environ)])
    adapters = {
        "NVSHMEM_HCA_LIST": settings.get("GPUSHMEM_HCA", environ),
        "NVSHMEM_HCA_PE_MAPPING": settings.get("GPUSHMEM_NIC_MAP", environ),
    }
    if all(adapters.values()):
        raise ArgumentError(
            "GPUSHMEM_HCA (--hca) and GPUSHMEM_NIC_MAP (--nic-map) are both set: NVSHMEM takes "
            "either a list of adapters or a mapping"
        )
    given = {name: text for name, text in adapters.items() if text}
    if given:
        told |= {"NVSHMEM_ENABLE_NIC_PE_MAPPING": "1", **given}
    return told


def _memory(heap_bytes: int) -> dict[str, str]:
    """The variables for a heap: its size, and what it is made of where that is small."""
    size = heap_bytes + BESIDE
    told, granule = {SIZE: str(size)}, LARGEST
    while granule > SMALLEST and granule * GRANULES > size:
        granule //= 2
    if granule < LARGEST and _users(GRANULE) is None:
        told[GRANULE] = str(granule)
    return told


def apply(heap_bytes: int) -> None:
    """Put NVSHMEM's variables into this process's environment; before NVSHMEM starts.

    Raises `ArgumentError` if the user's variables contradict the settings, naming them.
    """
    told = {**_memory(heap_bytes), **variables()}
    conflict = _conflict(told, heap_bytes)
    if conflict:
        raise ArgumentError(conflict)
    for name, text in (told | LOADING).items():
        if _users(name) is None:
            os.environ[name] = _put[name] = text


def without_ours(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment without the variables set by `apply`: other processes have other heaps."""
    return {name: text for name, text in environ.items() if _put.get(name) != text}


def chosen(heap_bytes: int) -> dict[str, Any]:
    """The settings that would apply in this process, for `gpushmem info`."""
    told: dict[str, str] = {}
    try:
        told = {**_memory(heap_bytes), **variables()}
        problem = _conflict(told, heap_bytes)
    except ArgumentError as error:
        problem = str(error)
    return {
        "transport": _text("GPUSHMEM_TRANSPORT"),
        "heap": heap_bytes,
        "hca": _text("GPUSHMEM_HCA"),
        "nic_map": _text("GPUSHMEM_NIC_MAP"),
        "variables": {name: _users(name) or text for name, text in told.items()},
        "problem": problem,
    }


def _text(name: str) -> str | None:
    return os.environ.get(name) or settings.SETTINGS[name].default


def _users(name: str) -> str | None:
    """The variable's text if the user has set it; None if it is not set, or set by `apply`."""
    text = os.environ.get(name)
    return None if not text or _put.get(name) == text else text


def _conflict(told: Mapping[str, str], heap_bytes: int) -> str | None:
    for name, text in told.items():
        mine = _users(name)
        if mine is None:
            continue
        if name == SIZE:
            if _size(mine) < int(text):
                return (
                    f"{SIZE}={mine} is too little for a heap of {heap_bytes} bytes, with which it "
                    f"must be {text} or more: unset it, and give the heap's size to gpushmem"
                )
        elif not _same(mine, text):
            return (
                f"{name}={mine} is set, and {_source(name)} asks for {name}={text}: unset one of "
                "the two"
            )
    return None


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ArgumentError as error:
        raise ArgumentError(f"environment variable {SIZE}: {error}") from None


def _same(mine: str, text: str) -> bool:
    """Whether two values mean the same to NVSHMEM: 0, n, f and words that begin so mean off."""
    if text in {"0", "1"}:
        return (mine[0].lower() in "0nf") == (text == "0")
    return mine.lower() == text.lower()


def _source(name: str) -> str:
    """The setting that a variable of NVSHMEM is derived from, for messages."""
    table = {"NVSHMEM_HCA_LIST": "HCA", "NVSHMEM_HCA_PE_MAPPING": "NIC_MAP"}
    if name == "NVSHMEM_ENABLE_NIC_PE_MAPPING":
        setting = next(s for s in ("HCA", "NIC_MAP") if os.environ.get(f"GPUSHMEM_{s}"))
    else:
        setting = table.get(name, "TRANSPORT")
    return f"GPUSHMEM_{setting}={os.environ.get(f'GPUSHMEM_{setting}')}"
