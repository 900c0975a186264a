"""Device-initiated communication for Numba CUDA kernels, on GPUs and without any.

Conventional use is `import gpushmem as shmem`. Importing it is cheap: names are loaded when
first used. `__init__.pyi` tells type checkers and editors what they are.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from typing import Any

__version__ = "0.2.0"

if sys.platform != "linux":
    raise ImportError(
        f"gpushmem runs on Linux x86-64, with or without a GPU, and not on {sys.platform}: use "
        "Linux, a container or WSL 2"
    )
if os.uname().machine != "x86_64":
    warnings.warn(
        "gpushmem runs on Linux x86-64: its cpu backend does not work on "
        f"{os.uname().machine}, where the nvshmem backend has not been tried",
        stacklevel=2,
    )

_HOME = {
    "gpushmem.errors": (
        "ArgumentError", "BackendUnavailable", "BootstrapError", "CollectiveMismatch", "Deadlock",
        "HeapExhausted", "KernelError", "KernelTypingError", "NotInitializedError", "PeerFailed",
        "ShmemError", "SymmetryError", "TeamError", "WaitTimeout",
    ),
    "gpushmem.runtime": (
        "alloc_bytes", "array", "capture", "device_array", "empty", "finalize", "free", "full",
        "heap_stats", "init", "init_module", "is_capturing", "is_initialized", "on_device",
        "on_stream", "ones", "qp_create", "register", "register_symmetric", "session",
        "set_timeout", "stats", "stream", "synchronize", "to_device", "trace_range", "tuning",
        "unregister", "unregister_symmetric", "wait_stream", "zeros",
    ),
    "gpushmem.backends.properties": ("Tuning",),
    "gpushmem.kernel": ("jit", "preload"),
    "gpushmem.communicators": ("comm_from", "process_group_from", "team_from"),
    "gpushmem.start.launch.spawn": ("spawn",),
    "gpushmem.memory.array": ("DeviceArray", "MulticastArray", "SymmetricArray"),
    "gpushmem.memory.stats": ("HeapStats",),
    "gpushmem.ops.constants": (
        "CMP_EQ", "CMP_GE", "CMP_GT", "CMP_LE", "CMP_LT", "CMP_NE", "QP_ANY", "QP_DEFAULT",
        "SIGNAL_ADD", "SIGNAL_SET", "SMEM_BARRIERS_ONLY", "SMEM_MINIMUM", "SMEM_RECOMMENDED",
        "TEAM_INVALID", "TEAM_NODE", "TEAM_SHARED", "TEAM_WORLD",
    ),
    "gpushmem.ops.team": ("Team",),
    "gpushmem.trace.counters": ("Stats",),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def _operations() -> dict[str, Any]:
    from gpushmem.ops import OPS  # noqa: PLC0415  (light, but not needed to import the package)

    return {name: op.function for name, op in OPS.items()}


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name != "__all__":
        raise AttributeError(name)
    if name == "__all__":
        return sorted([*_MODULE_OF, *_operations()])
    if name in _MODULE_OF:
        from gpushmem.gc_control import seldom_collected  # noqa: PLC0415  (not needed to import it)

        with seldom_collected():
            value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    else:
        try:
            value = _operations()[name]
        except KeyError:
            raise AttributeError(f"module 'gpushmem' has no attribute {name!r}") from None
    globals()[name] = value
    return value


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext gpushmem` in a notebook, or in IPython: add the magic `%%gpushmem`."""
    from gpushmem.notebook import register  # noqa: PLC0415  (needs IPython)

    register(shell)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF, *_operations()])
