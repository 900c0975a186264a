"""`nvshmem.core`: the host's side of nvshmem4py."""

from gpushmem.compat.nvshmem.core import (
    amo,
    arrays,
    collective,
    direct,
    init_fini,
    memory,
    nvshmem_types,
    rma,
    teams,
    tensors,
)

MODULES = (
    memory, init_fini, nvshmem_types, arrays, tensors, direct, collective, rma, amo, teams,
)  # fmt: skip
__all__: list[str] = []
for _module in MODULES:
    for _name in _module.__all__:
        globals()[_name] = getattr(_module, _name)
        __all__ += [_name]  # noqa: PLE0604
