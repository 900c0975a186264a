"""Collectives of the host, on streams. Sizes are those of whole buffers, as there."""

from __future__ import annotations

from typing import Any

from gpushmem.compat import cuda_core
from gpushmem.compat.cuda_core import Buffer
from gpushmem.compat.nvshmem.core import memory, session
from gpushmem.compat.nvshmem.core.interop.cupy import is_array
from gpushmem.compat.nvshmem.core.interop.torch import is_tensor
from gpushmem.compat.nvshmem.core.nvshmem_types import NvshmemInvalid
from gpushmem.compat.nvshmem.core.rma import buffer_of, fitted
from gpushmem.compat.nvshmem.core.utils import named

__all__ = [
    "alltoall", "barrier", "barrier_all", "broadcast", "collective_on_buffer", "fcollect",
    "reduce", "reducescatter", "sync", "sync_all",
]  # fmt: skip

REDUCTIONS = "min", "max", "sum"


def _parts(coll: str, team: int, dst: Any, src: Any) -> tuple[Any, Any]:
    """The elements that a collective moves."""
    n = int(session.call("team_n_pes", int(team)))
    if coll == "reducescatter":  # `dst` says how much
        if src.size < dst.size * n:
            raise NvshmemInvalid(
                f"{coll}: dst has {dst.size} elements, so src needs {dst.size * n} for {n} PEs; it "
                f"has {src.size}"
            )
        return dst, src[: dst.size * n]
    if coll == "fcollect":  # `src` does
        if dst.size < src.size * n:
            raise NvshmemInvalid(
                f"{coll}: src has {src.size} elements, so dst needs {src.size * n} for {n} PEs; it "
                f"has {dst.size}"
            )
        return dst, src
    if coll == "alltoall":
        return dst, src[: src.size // n * n]
    return fitted(coll, dst, src, "put" if dst.size < src.size else "get")


def collective_on_buffer(
    coll: str,
    team: int,
    dest: Buffer,
    src: Buffer,
    dtype: Any = None,
    op: str | None = None,
    root: int = 0,
    stream: Any = None,
    enable_timing: bool = False,
) -> float:
    """Run a collective on buffers of elements of `dtype`; returns its milliseconds, if asked."""
    if coll not in ("reduce", "reducescatter", "alltoall", "fcollect", "broadcast"):
        raise NvshmemInvalid(f"collective_on_buffer: there is no collective {coll!r}")
    on = session.on(coll, stream)
    reduces = coll.startswith("reduce")
    if reduces and op not in REDUCTIONS:
        raise NvshmemInvalid(f"{coll}: op must be one of {', '.join(REDUCTIONS)}, not {op!r}")
    words = [memory.words(memory.part(coll, each), named(dtype)) for each in (dest, src)]
    more: list[Any] = [op] if reduces else [root] if coll == "broadcast" else []
    events = [cuda_core.as_stream(stream).record()] if enable_timing else []
    session.call(coll, int(team), *_parts(coll, int(team), *words), *more, stream=on)
    if not enable_timing:
        return 0
    events.append(cuda_core.as_stream(stream).record())
    events[1].sync()
    return events[1] - events[0]


def _call(
    coll: str, team: int, dst: Any, src: Any, op: str | None, stream: Any, root: int = 0
) -> None:
    for name, each in (("dst_array", dst), ("src_array", src)):
        if not (is_array(each) or is_tensor(each)):
            raise NvshmemInvalid(
                f"{coll}: {name} must be an array or a tensor, not {type(each).__name__}: "
                "collective_on_buffer takes buffers"
            )
    dtypes = [named(each.dtype) for each in (dst, src)]
    if dtypes[0] != dtypes[1]:
        raise NvshmemInvalid(f"{coll}: dst is of {dtypes[0]}, src of {dtypes[1]}")
    pair = buffer_of(coll, dst), buffer_of(coll, src)
    collective_on_buffer(coll, team, *pair, dtypes[0], op, root, stream)


def reduce(team: int, dst_array: Any, src_array: Any, op: str, stream: Any = None) -> None:
    """Combine the buffers of all PEs of a team: `op` is min, max or sum."""
    _call("reduce", team, dst_array, src_array, op, stream)


def reducescatter(team: int, dst_array: Any, src_array: Any, op: str, stream: Any = None) -> None:
    """Combine part k of the buffers of all PEs on the team's PE k."""
    _call("reducescatter", team, dst_array, src_array, op, stream)


def alltoall(team: int, dst_array: Any, src_array: Any, stream: Any = None) -> None:
    """Send part k to the team's PE k."""
    _call("alltoall", team, dst_array, src_array, None, stream)


def fcollect(team: int, dst_array: Any, src_array: Any, stream: Any = None) -> None:
    """Collect the buffers of all PEs of a team."""
    _call("fcollect", team, dst_array, src_array, None, stream)


def broadcast(team: int, dst_array: Any, src_array: Any, root: int = 0, stream: Any = None) -> None:
    """Copy the buffer of the team's PE `root` to all."""
    _call("broadcast", team, dst_array, src_array, None, stream, root)


def _meet(name: str, stream: Any, *team: int) -> None:
    if stream is None:
        raise NvshmemInvalid(f"{name} needs a stream, as in nvshmem4py: give stream=")
    session.call(name, *team, stream=session.on(name, stream))


def barrier(team: int, stream: Any = None) -> None:
    """A barrier of a team."""
    _meet("barrier", stream, int(team))


def sync(team: int, stream: Any = None) -> None:
    """Meet the PEs of a team; completes nothing."""
    _meet("sync", stream, int(team))


def barrier_all(stream: Any = None) -> None:
    """A barrier of all PEs."""
    _meet("barrier_all", stream)


def sync_all(stream: Any = None) -> None:
    """Meet all PEs; completes nothing."""
    _meet("sync_all", stream)
