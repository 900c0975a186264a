"""Memory of gpushmem's as NIXL's agents register it: NIXL writes, kernels wait and read.

`import nixl` takes the library for the CUDA of `cuda.bindings`, which comes with gpushmem, and
fails where that one is not installed; `agent` takes what is there. An agent must not keep memory
that is gone: what `register` has registered is given back before `gpushmem.finalize` ends the heap.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from gpushmem import runtime
from gpushmem.errors import ArgumentError, BackendUnavailable

__all__ = ["Registered", "agent", "blocks", "register"]

LIBRARIES = "nixl_cu12", "nixl_cu13"  # NIXL's packages, each for one CUDA


def agent(name: str, *, backends: Sequence[str] = ("UCX",), **config: Any) -> Any:
    """Make an agent of NIXL; `config` is what `nixl_agent_config` takes, too.

    Of several libraries that for PyTorch's CUDA is taken, else the first. Raises
    `BackendUnavailable` if there is none.
    """
    there = [each for each in LIBRARIES if find_spec(each) is not None]
    if not there:
        raise BackendUnavailable("gpushmem.integrations.nixl: pip install nixl-cu12, or nixl-cu13")
    with suppress(ImportError):
        version = import_module("torch").version.cuda or ""
        there.sort(key=lambda each: each != f"nixl_cu{version.partition('.')[0]}")
    api = import_module(f"{there[0]}._api")
    return api.nixl_agent(name, api.nixl_agent_config(backends=list(backends), **config))


class Registered:
    """Memory that an agent has registered: NIXL's `list` of it."""

    def __init__(self, agent: Any, made: Any) -> None:
        self._agent, self.list = agent, made

    def close(self) -> None:
        """Deregister it; a second call does nothing."""
        if self.list is not None:
            self._agent.deregister_memory(self.list)
            self.list = None


def register(agent: Any, *arrays: Any) -> Registered:
    """Register arrays with an agent; not collective. `close` of the result ends it.

    They are contiguous: symmetric or other device arrays, NumPy's, tensors. `gpushmem.finalize`
    closes it, too, and waits for nobody: transfers must have ended. Raises `ArgumentError` for
    arrays that are not contiguous.
    """
    places = [_place(array) for array in arrays]
    made = agent.register_memory([(*place, "") for _, *place in places], places[0][0])
    registered = Registered(agent, made)
    runtime.current("gpushmem.integrations.nixl").at_end.append(registered.close)
    return registered


def blocks(agent: Any, array: Any, rows: Sequence[int] | None = None) -> Any:
    """Descriptors of `rows` of the first axis, such as pages, for transfers; without, of all."""
    kind, address, nbytes, device = _place(array)
    if rows is None:
        return agent.get_xfer_descs([(address, nbytes, device)], kind)
    each = nbytes // len(array)
    return agent.get_xfer_descs([(address + int(k) * each, each, device) for k in rows], kind)


def _place(array: Any) -> tuple[str, int, int, int]:
    """NIXL's kind of memory, address, bytes, and number of the GPU."""
    if hasattr(array, "data_ptr"):
        contiguous, device = array.is_contiguous(), max(array.get_device(), 0)
        kind, address = ("VRAM" if array.is_cuda else "DRAM"), array.data_ptr()
    else:
        backend = runtime.current("gpushmem.integrations.nixl").backend
        on_gpu = backend.on_gpu and hasattr(array, "__cuda_array_interface__")
        about = array.__cuda_array_interface__ if on_gpu else array.__array_interface__
        contiguous, address, device = about.get("strides") is None, about["data"][0], 0
        kind = "VRAM" if on_gpu else "DRAM"
    if not contiguous:
        raise ArgumentError("gpushmem.integrations.nixl: the array is not contiguous")
    return kind, address, array.nbytes, device
