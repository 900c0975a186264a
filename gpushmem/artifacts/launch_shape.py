"""A launch's shape and other attributes, checked against CUDA's limits."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from gpushmem.arguments import integer, shown
from gpushmem.artifacts.gpu_limits import MAX_THREADS
from gpushmem.errors import ArgumentError

__all__ = [
    "AXES", "CLUSTERS", "LIMITS", "NONBLOCKING", "PRIORITIES", "LaunchShape", "carveout",
    "shape_of",
]  # fmt: skip

AXES = ("x", "y", "z")
MAX_CLUSTER = 8  # blocks of a cluster, on every GPU that has clusters
CLUSTERS = (9, 0)  # the compute capability from which on there are clusters, and dependent launches
LIMITS = {
    "grid": (2**31 - 1, 65535, 65535), "block": (1024, 1024, 64), "cluster": (MAX_CLUSTER,) * 3,
}  # fmt: skip
PRIORITIES = -5, 0  # of streams: the highest and the lowest, of current GPUs
NONBLOCKING = 1 << 60  # in the numbers of streams that are not ordered with the default one
CARVEOUTS = {"default": -1, "maxl1": 0, "maxshared": 100}  # Numba's names

Dim = tuple[int, ...]


class LaunchShape:
    """A checked launch configuration: grid, block, dynamic shared bytes, blocks of a cluster."""

    def __init__(self, grid: Any, block: Any, dynamic_shared: int = 0, cluster: Any = None) -> None:
        self.grid, self.block = _dim("grid", grid), _dim("block", block)
        self.dynamic_shared = integer("dynamic shared memory", dynamic_shared)
        self.threads = math.prod(self.block)
        if self.threads > MAX_THREADS:
            raise ArgumentError(
                f"a block of {' x '.join(map(str, self.block))} has {self.threads} threads; "
                f"at most {MAX_THREADS} are possible: use more, smaller blocks"
            )
        if self.dynamic_shared < 0:
            raise ArgumentError(
                f"dynamic shared memory must be 0 bytes or more, not {self.dynamic_shared}"
            )
        self.cluster = None if cluster is None else self._clusters(cluster)

    def _clusters(self, cluster: Any) -> Dim:
        sizes = _dim("cluster", cluster)
        if math.prod(sizes) > MAX_CLUSTER:
            raise ArgumentError(
                f"a cluster of {' x '.join(map(str, sizes))} has {math.prod(sizes)} blocks; at "
                f"most {MAX_CLUSTER} are possible"
            )
        for axis, blocks, size in zip(AXES, self.grid, sizes, strict=True):
            if blocks % size:
                raise ArgumentError(
                    f"grid dimension {axis} is {blocks}, which is not divisible by the cluster's "
                    f"{size}: the grid counts blocks"
                )
        return sizes


def carveout(value: Any) -> int:
    """The percentage of shared memory for an argument of `jit`, -1 for CUDA's default."""
    if isinstance(value, str) and value.lower() in CARVEOUTS:
        return CARVEOUTS[value.lower()]
    if isinstance(value, int) and -1 <= value <= 100:
        return int(value)
    raise ArgumentError(
        "jit: shared_memory_carveout must be 0 to 100 (percent), -1 or 'default', 'MaxL1' or "
        f"'MaxShared', not {shown(value)}"
    )


def shape_of(grid: Any, block: Any, dynamic_shared: int = 0, cluster: Any = None) -> LaunchShape:
    """Check a launch configuration; raises `ArgumentError` naming the value and the limit."""
    try:
        return _shape_of(grid, block, dynamic_shared, cluster)
    except ArgumentError:
        raise
    except Exception:  # noqa: BLE001  (a list, say, which cannot be remembered)
        return LaunchShape(grid, block, dynamic_shared, cluster)


_shape_of = lru_cache(maxsize=1024, typed=True)(LaunchShape)


def _dim(what: str, value: Any) -> Dim:
    parts = tuple(value) if isinstance(value, tuple | list) else (value,)
    try:
        sizes = tuple(integer(what, p) for p in parts)
    except ArgumentError:
        raise ArgumentError(
            f"{what} must be an int or a tuple of up to 3 ints, not {shown(value)}"
        ) from None
    if not 1 <= len(sizes) <= 3:
        raise ArgumentError(f"{what} must have 1 to 3 dimensions, not {len(sizes)}: {shown(value)}")
    for size, limit, axis in zip(sizes, LIMITS[what], AXES, strict=False):
        if not 1 <= size <= limit:
            raise ArgumentError(f"{what} dimension {axis} is {size}; it must be 1 to {limit}")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z
