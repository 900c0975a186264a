"""Collectives in a stream: each PE reads what it needs from all, then all write their own part."""

import re

import numpy as np

from tests.nvshmem.emulation.errors import EmulationError
from tests.nvshmem.emulation.stream_ops import as_int, on_stream
from tests.nvshmem.emulation.world import complete

DTYPES = {
    "half": "f2", "float": "f4", "double": "f8", "int8": "i1", "int16": "i2", "int32": "i4",
    "int64": "i8", "uint8": "u1", "uint16": "u2", "uint32": "u4", "uint64": "u8", "size": "u8",
    "ptrdiff": "i8", "char": "i1", "schar": "i1", "short": "i2", "int": "i4", "long": "i8",
    "longlong": "i8", "uint": "u4", "ulong": "u8", "ulonglong": "u8",
}  # fmt: skip
_OPERATORS = {"sum": np.add, "min": np.minimum, "max": np.maximum}


def dtype_of(name: str) -> np.dtype:
    """Return NumPy's dtype for what NVSHMEM calls so."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(DTYPES[name])


def _gathered(team, src, n, dtype, doing):
    """Return `n` elements of each of the team's PEs, as they are now."""
    world = complete()
    size = n * dtype.itemsize
    parts = [world.heap.bytes_of(pe, src, size, doing) for pe in world.teams.of(team, doing)]
    return np.stack([part.view(dtype) for part in parts])


def _collective(name, team, dst, src, n_src, n_dst, dtype, stream, combine):
    """`combine(parts, me)` makes this PE's result of what `_gathered` returns."""
    team, dst, src = map(as_int, (team, dst, src))
    world = complete()

    def places():
        into = world.heap.offset(dst, n_dst * dtype.itemsize, name)
        return into, world.heap.offset(src, n_src * dtype.itemsize, name)

    world.teams.of(team, name)
    places()

    def action():
        into, of = places()
        world.teams.meet(team, f"{name}(dst=heap+{into}, src=heap+{of}, {n_src} elements)")
        result = combine(_gathered(team, src, n_src, dtype, name), world.teams.my_pe(team))
        # Nobody writes before all have read: dst may be src.
        world.teams.barrier(team, name)
        out = world.heap.bytes_of(world.job.me, dst, n_dst * dtype.itemsize, name)
        out.view(dtype)[:] = np.ravel(result)

    on_stream(stream, action)


def _threads(name, n):
    """NVSHMEM launches one for each element, up to 1024."""
    if n == 0:
        raise EmulationError(f"{name} of 0 elements: CUDA refuses its launch, and NVSHMEM exits")


def fcollect(name, dtype, team, dst, src, n, stream):
    n, size = as_int(n), complete().teams.n_pes(team)
    _collective(name, team, dst, src, n, n * size, dtype, stream, lambda parts, me: parts)


def alltoall(name, dtype, team, dst, src, n, stream):
    n, size = as_int(n), complete().teams.n_pes(team)
    _threads(name, n)

    def combine(parts, me):
        return parts[:, me * n : (me + 1) * n]

    _collective(name, team, dst, src, n * size, n * size, dtype, stream, combine)


def broadcast(name, dtype, team, dst, src, n, root, stream):
    n, root = as_int(n), as_int(root)
    _threads(name, n)
    name = f"{name}[root={root}]"
    _collective(name, team, dst, src, n, n, dtype, stream, lambda parts, me: parts[root])


def _reduced(operator, parts):
    result = parts[0].copy()
    for part in parts[1:]:
        result = operator(result, part).astype(parts.dtype)
    return result


def reduce(name, dtype, operator, team, dst, src, n, stream):
    def combine(parts, me):
        return _reduced(operator, parts)

    _collective(name, team, dst, src, as_int(n), as_int(n), dtype, stream, combine)


def reducescatter(name, dtype, operator, team, dst, src, n, stream):
    n, size = as_int(n), complete().teams.n_pes(team)
    _threads(name, n)

    def combine(parts, me):
        return _reduced(operator, parts[:, me * n : (me + 1) * n])

    _collective(name, team, dst, src, n * size, n, dtype, stream, combine)


_MOVES = {"fcollect": fcollect, "alltoall": alltoall, "broadcast": broadcast}
_REDUCES = {"reduce": reduce, "reducescatter": reducescatter}
_NAME = re.compile(r"([a-z0-9]+)_(?:(sum|min|max)_)?([a-z]+)_on_stream")


def functions(names):
    """Return the stand-in of each of `names` that is a typed collective."""
    return {name: made for name in names if (made := _function(name)) is not None}


def _function(name):
    match = _NAME.fullmatch(name)
    dtype, operator, kind = match.groups() if match else (None, None, None)
    if operator and kind in _REDUCES:
        fixed = (_REDUCES[kind], (_OPERATORS[operator],))
    elif not operator and kind in _MOVES:
        fixed = (_MOVES[kind], ())
    else:
        return None
    body, operators = fixed
    return lambda *args: body(name, dtype_of(dtype), *operators, *args)


def barrier(team):
    """`nvshmem_barrier`."""
    complete().teams.barrier(as_int(team), "barrier")


def barrier_on_stream(team, stream):
    """`nvshmemx_barrier_on_stream`, and `sync`: there is nothing here that it need not wait for."""
    team = as_int(team)
    complete().teams.of(team, "barrier")
    on_stream(stream, lambda: complete().teams.barrier(team, "barrier"))


def team_sync_on_stream(team, stream):
    barrier_on_stream(team, stream)
    return 0


BARRIERS = {
    "barrier": barrier,
    "barrier_all": lambda: barrier(0),
    "barrier_on_stream": barrier_on_stream,
    "barrier_all_on_stream": lambda stream: barrier_on_stream(0, stream),
    "team_sync_on_stream": team_sync_on_stream,
    "sync_all_on_stream": lambda stream: barrier_on_stream(0, stream),
}
