"""`nvshmem.core`: the host's side of nvshmem4py."""

from gpushmem.compat.nvshmem.core import (
    amo,
    collective,
    direct,
    init_fini,
    memory,
    nvshmem_types,
    rma,
    teams,
)
from gpushmem.compat.nvshmem.core.interop import cupy, torch

MODULES = (
    memory, init_fini, nvshmem_types, cupy, torch, direct, collective, rma, amo, teams,
)  # fmt: skip
__all__: list[str] = []
for _module in MODULES:
    for _name in _module.__all__:
        globals()[_name] = getattr(_module, _name)
        __all__ += [_name]  # noqa: PLE0604
