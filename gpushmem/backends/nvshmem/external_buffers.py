"""The user's buffers as symmetric memory: what NVSHMEM takes, checked before it is called.

A buffer that it does not take is not a mere error: `nvshmemx_buffer_register_symmetric` then tears
down the whole heap (NVSHMEM 3.5, `mmap_mem`). It maps the allocation from its beginning, whatever
the address given, and in whole granules of its heap.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from cuda.bindings import driver

from gpushmem.backends.nvshmem.transport import GRANULE, LARGEST
from gpushmem.errors import ArgumentError
from gpushmem.size import parse_size, span

__all__ = ["check_external"]

MOST = 2 << 30  # bytes of a granule
RECOMMENDED = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
ON_DEVICE = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
CURE = (
    "cuda.core.VirtualMemoryResource makes such memory, and so does cuMemCreate with the handle "
    "type of NVSHMEM's heap"
)


def check_external(
    what: str, memory: np.ndarray[Any, Any], on_gpu: bool, heap: int, device: int
) -> None:
    """Raise `ArgumentError` unless NVSHMEM can map the memory into its heap, at address `heap`."""
    start, end = span(memory)
    nbytes = end - start
    if not on_gpu:
        raise ArgumentError(f"{what}: this buffer is in host memory: pass one on GPU {device}")
    if not nbytes:
        raise ArgumentError(f"{what}: the buffer is empty")
    wanted = _properties(heap)
    if wanted is None:
        raise ArgumentError(
            f"{what}: NVSHMEM's heap is not in CUDA's virtual memory, to which buffers can be "
            "added: unset NVSHMEM_DISABLE_CUDA_VMM"
        )
    found = _properties(start)
    if found is None:
        raise ArgumentError(
            f"{what}: these {nbytes} bytes were not allocated by CUDA's virtual memory management: "
            f"{CURE}"
        )
    if found.location.type != ON_DEVICE or found.location.id != device:
        raise ArgumentError(f"{what}: this buffer is not in the memory of GPU {device}")
    if _kind(found) < _kind(wanted) or found.requestedHandleTypes != wanted.requestedHandleTypes:
        raise ArgumentError(
            f"{what}: this buffer was allocated with handle type {found.requestedHandleTypes}, "
            f"gpuDirectRDMACapable={_kind(found)}, NVSHMEM's heap with "
            f"{wanted.requestedHandleTypes} and {_kind(wanted)}: use the same"
        )
    granule = _granule(wanted)
    need = -(-nbytes // granule) * granule
    _, base, size = driver.cuMemGetAddressRange(start)
    if int(base) != start or size < need:
        raise ArgumentError(
            f"{what}: these {nbytes} bytes are bytes {start - int(base)} to {end - int(base)} of "
            f"an allocation of {size}: NVSHMEM takes the beginning of one, in multiples of "
            f"{granule} bytes, here {need}; {GRANULE}, set before init, changes {granule}"
        )


def _properties(address: int) -> Any:
    """How virtual memory was allocated; None for other memory."""
    status, handle = driver.cuMemRetainAllocationHandle(address)
    if status != driver.CUresult.CUDA_SUCCESS:
        return None
    status, properties = driver.cuMemGetAllocationPropertiesFromHandle(handle)
    driver.cuMemRelease(handle)
    return properties if status == driver.CUresult.CUDA_SUCCESS else None


def _kind(properties: Any) -> int:
    return int(properties.allocFlags.gpuDirectRDMACapable)


def _granule(properties: Any) -> int:
    """Bytes of which NVSHMEM's heap consists of multiples, as it computes them."""
    _, least = driver.cuMemGetAllocationGranularity(properties, RECOMMENDED)
    return min(max(parse_size(os.environ.get(GRANULE) or LARGEST), int(least)), MOST)
