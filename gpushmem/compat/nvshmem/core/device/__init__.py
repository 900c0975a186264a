"""`nvshmem.core.device`: what kernels call."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name == "numba":
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"nvshmem.core.device has no {name} on the CPU: numba has the functions")
