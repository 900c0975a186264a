"""Whether the GPUs of this machine are linked by NVLink, as NVML says."""

from __future__ import annotations

from itertools import combinations
from typing import Any

__all__ = ["all_linked"]


def all_linked() -> bool:
    """Whether each GPU that NVML shows is linked to each other one; False if it cannot be asked.

    It shows those that CUDA_VISIBLE_DEVICES hides, too: so all PEs of a machine get one answer. A
    single GPU needs no link.
    """
    try:
        from cuda.bindings import nvml  # noqa: PLC0415  (older ones have none)

        nvml.init_v2()
        try:
            return _are_linked(nvml)
        finally:
            nvml.shutdown()
    except Exception:  # noqa: BLE001  (no driver, an older one: NVML raises its own, CUDA another)
        return False


def _are_linked(nvml: Any) -> bool:
    count, what = nvml.device_get_count_v2(), nvml.GpuP2PCapsIndex.P2P_CAPS_INDEX_NVLINK
    gpus = [nvml.device_get_handle_by_index_v2(k) for k in range(count)]
    there = nvml.GpuP2PStatus.P2P_STATUS_OK
    return all(nvml.device_get_p2p_status(*two, what) == there for two in combinations(gpus, 2))
