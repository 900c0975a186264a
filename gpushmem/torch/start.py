"""From PyTorch's options to a process group: the runtime is started with the first one."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from gpushmem import runtime
from gpushmem.errors import ArgumentError, BackendUnavailable
from gpushmem.import_hooks import WhenImported
from gpushmem.torch import flight_recorder
from gpushmem.torch.group import ProcessGroup

__all__ = ["create"]

INDUCTOR = "torch._inductor.config"


class _Ranks:
    """What `init` needs to know of a process group that is being made."""

    def __init__(self, options: Any) -> None:
        self.rank, self.size = (lambda: options.group_rank), (lambda: options.group_size)
        self.get_group_store = lambda: options.store


def create(options: Any) -> ProcessGroup:
    """Make the group that these options of `torch.distributed` describe; collective over it."""
    pes = list(options.global_ranks_in_group) or list(range(options.group_size))
    if not runtime.is_initialized():
        runtime.init(process_group=_Ranks(options))
    backend = runtime.current("init_process_group").backend
    if not hasattr(backend, "host_collectives"):
        raise BackendUnavailable(
            f"init_process_group: the backend {backend.name} has no process groups; those of "
            "gpushmem take tensors in host memory, on the backend cpu. For tensors on GPUs use NCCL"
        )
    if backend.my_pe != pes[options.group_rank]:
        raise ArgumentError(
            f"init_process_group: this is PE {backend.my_pe} of {backend.n_pes}, and rank "
            f"{pes[options.group_rank]}: PEs and ranks must be the same"
        )
    backend.begin_anew()
    import gpushmem.torch.operators  # noqa: PLC0415  (heavy)

    _fuse_products()
    if not options.global_ranks_in_group:
        flight_recorder.start(options.group_rank, options.group_size, options.store)
    made = ProcessGroup(pes, options.timeout)
    if not options.global_ranks_in_group:  # of all: the one of init_process_group
        gpushmem.torch.operators.reserve()
    return made


def _fuse_products() -> None:
    """Add our pass to PyTorch's compiler: now, or when it is imported, which takes seconds."""
    if INDUCTOR in sys.modules:
        _install(sys.modules[INDUCTOR])
    else:
        _waiting.wait()


def _install(config: ModuleType) -> None:
    from gpushmem.torch.fusion import install  # noqa: PLC0415  (imports the compiler)

    install(config)


_waiting = WhenImported(INDUCTOR, _install)
