"""PyTorch: tensors in symmetric memory, and a backend for `torch.distributed`; see docs/torch.md.

`gpushmem.torch.zeros(4, 1024, dtype=torch.bfloat16)` and the like make tensors. The backend,
`torch.distributed.init_process_group("gpushmem")`, makes process groups whose ranks are PEs.
`register` is found by PyTorch itself, through the entry point `torch.backends`.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpushmem.torch.pool import get_mem_pool
    from gpushmem.torch.symmetric import (
        empty,
        empty_like,
        free,
        full,
        full_like,
        ones,
        ones_like,
        peer,
        tensor,
        zeros,
        zeros_like,
    )

__all__ = [
    "empty", "empty_like", "free", "full", "full_like", "get_mem_pool", "ones", "ones_like", "peer",
    "register", "set_variables", "tensor", "zeros", "zeros_like",
]  # fmt: skip

NAME = "gpushmem"
PORTS = range(20_000, 30_000)  # for PE 0's store


def __getattr__(name: str) -> Any:
    """Import what makes tensors when it is first used: PyTorch takes a while."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gpushmem.torch import pool, symmetric  # noqa: PLC0415

    return getattr(pool if name in pool.__all__ else symmetric, name)


def register() -> None:
    """Make the backend known to `torch.distributed`; PyTorch calls this as it is imported."""
    import torch.distributed as dist  # noqa: PLC0415

    if dist.is_available() and not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
        set_variables()


def set_variables() -> None:
    """In a PE that `gpushmem run` has started: set what torchrun sets, for `init_process_group`."""
    jobs = sys.modules.get("gpushmem.job.job")  # it has been imported, then
    job = None if jobs is None else jobs.current()
    if job is not None and "RANK" not in os.environ:
        port = PORTS.start + os.fstat(job.control_fd).st_ino % len(PORTS)  # one for each job
        for name, value in {
            "RANK": job.my_pe, "WORLD_SIZE": job.n_pes, "LOCAL_RANK": job.my_pe,
            "LOCAL_WORLD_SIZE": job.n_pes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
        }.items():  # fmt: skip
            os.environ.setdefault(name, str(value))


def _create(options: Any, backend_options: Any) -> Any:
    """A process group, for `init_process_group` and `new_group`."""
    from gpushmem.torch.start import create  # noqa: PLC0415

    return create(options)
