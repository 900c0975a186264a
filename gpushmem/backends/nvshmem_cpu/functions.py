"""NVSHMEM's device functions as the engine calls them: from the bitcode that NVSHMEM installs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import nvidia
from llvmlite import ir
from numba import types
from numba.core import cgutils

from gpushmem.backends.cpu.operations import mbarriers as on_cpus
from gpushmem.backends.cpu.operations import vectors
from gpushmem.backends.cpu.operations.access import as_world
from gpushmem.backends.cpu.sync.world import WORLD
from gpushmem.backends.nvshmem.compile import shims
from gpushmem.backends.nvshmem.operations import (
    accesses,
    composed,
    ll,
    ll128,
    mbarriers,
    multicast,
    multimem,
    ordering,
)
from gpushmem.backends.nvshmem_cpu import layout
from gpushmem.backends.nvshmem_cpu.layout import STATE
from gpushmem.errors import BackendUnavailable
from gpushmem.native.memory import copy_bytes, i8p, i64
from gpushmem.native.structs import offset, view
from gpushmem.ops.roles import Groups
from gpushmem.simt.functions import call_device, device, made_of
from gpushmem.simt.layout import THREAD
from gpushmem.simt.libraries import (
    INTRINSICS,
    THREAD_ARG,
    Bitcode,
    Facts,
    Leaf,
    foreign,
    generator,
    load_field,
    now,
    places,
    unseen_polls,
)
from gpushmem.simt.thread import user_word

__all__ = ["OWN", "install", "library"]

# What kernels find by `WORLD.own`.
OWN = np.dtype([("state", "i8"), ("words", "i8")])  # see `DeviceState`; memory for `collect`
as_own = view(OWN)
FILE = "libnvshmem_device_sm_80.bc"
VARIABLE = "nvshmemi_device_state_d"
CALL = re.compile(r"(?P<result>retval = )?(?P<name>nvshmemx?_\w+)\((?P<arguments>[^;]*)\);")
# For each type: three quarters of the library's code. Programs without them start in half the time.
COLLECTIVES = (
    r"nvshmemx?_\w+_(reduce|reducescatter|broadcast|collect|fcollect|alltoalls?)(_warp|_block)?"
)
# The proxy carries what goes to other nodes: the code for other transports is left out.
KNOWN = {(VARIABLE, offset(STATE, "selected_device_transport")): 0}


@cache
def library() -> Bitcode:
    """The library, for GPUs of the oldest architecture that numba-cuda and NVSHMEM share."""
    for folder in nvidia.__path__:
        path = Path(folder, "nvshmem", "lib", FILE)
        if path.exists():
            made = Bitcode(path, Facts(KNOWN, frozenset({VARIABLE}), COLLECTIVES))
            layout.check(made.types())
            return made
    raise BackendUnavailable(f"NVSHMEM is installed without its bitcode, nvshmem/lib/{FILE}")


def install() -> None:
    """Make the engine find NVSHMEM's functions by the names that the bindings' shims have."""
    places[VARIABLE] = _state
    for symbol, (_, text) in shims._texts().items():
        called = CALL.search(text.partition("{")[2])
        if called is not None:
            foreign[symbol] = partial(_shim, called["name"], called["result"] is not None)
    for name, function, pointers in (
        ("gpushmem_ptr", "nvshmem_ptr", (0,)), ("gpushmem_mc_ptr", "nvshmemx_mc_ptr", (1,)),
    ):  # fmt: skip
        INTRINSICS[name] = partial(_pointer, function, pointers)
    INTRINSICS["gpushmem_words"] = _words
    for form in ("", "_warp", "_block"):
        INTRINSICS[f"gpushmem_qp_quiet{form}"] = partial(_qp_quiet, f"nvshmemx_qp_quiet{form}")
    for what in "before_tma", "after_tma", "release_smem":  # there is no TMA
        INTRINSICS[f"gpushmem_{what}"] = lambda builder: ir.IntType(32)(0)
    INTRINSICS[composed.CLOCK] = now
    for leaf in _instructions():
        INTRINSICS[leaf.what] = partial(_instruction, leaf)
    for access, loads, text in accesses.instructions():
        INTRINSICS[text] = partial(_load if loads else _store, access)
    for nbytes, text in accesses.COPIES.items():
        INTRINSICS[text] = partial(_copy, nbytes)
    for text in accesses.COMMIT, *map(accesses.WAIT.format, range(Groups.most + 1)):
        INTRINSICS[text] = lambda builder: None  # there is nothing to wait for
    for what, function in ON_MBARRIERS.items():
        INTRINSICS[mbarriers.TEXTS[what]] = partial(_on_mbarrier, function)
    for kind, _ in multicast.STORES.values():
        INTRINSICS[multicast.INSTRUCTION.format(kind)] = _store_on_all
    INTRINSICS[multicast.STORE_WORD] = lambda *never_called: None
    for text, found in multimem.TEXTS.items():
        INTRINSICS[text] = partial(_load_from_all, found)
    INTRINSICS[ll.LOAD_TWO], INTRINSICS[ll.STORE_TWO] = _load_two, _store_two
    INTRINSICS[ll128.ONE_PIECE] = lambda builder: ir.IntType(32)(0)
    INTRINSICS["polling loop"] = partial(_polls, INTRINSICS["polling loop"])


def _polls(cpus: Any, builder: Any) -> None:
    """In kernels of the cpu backend, if this process has had one, polls are seen."""
    (unseen_polls if made_of else cpus)(builder)


def _shim(name: str, has_result: bool, builder: Any, result: Any, *arguments: Any) -> ir.Value:
    """A shim's code: a call of the function, with the values that the arguments point to."""
    value = library().call(builder, name, [builder.load(a) for a in arguments])
    if has_result:
        kind = result.type.pointee
        if isinstance(kind, ir.IntType) and kind.width != value.type.width:
            value = (builder.zext if kind.width > value.type.width else builder.trunc)(value, kind)
        builder.store(value, result)
    return ir.IntType(32)(0)


def _pointer(name: str, pointers: tuple[int, ...], builder: Any, *arguments: Any) -> ir.Value:
    """A function that takes and returns addresses as integers."""
    given = [builder.inttoptr(a, i8p) if k in pointers else a for k, a in enumerate(arguments)]
    return builder.ptrtoint(library().call(builder, name, given), i64)


def _instructions() -> Iterator[Leaf]:
    """What `ordering` adds to calls, as a bitcode library would have it."""
    yield Leaf(ordering.FENCE, "void", ())
    for name, _, bits in ordering.KINDS.values():
        yield Leaf(ordering.LOAD.format(name), f"i{bits}", ("ptr",))
        yield Leaf(ordering.STORE.format(name), "void", ("ptr", f"i{bits}"))


def _load(access: Any, builder: Any, address: ir.Value) -> Any:
    """The words of a vector, as wide as the instruction's registers."""
    words = [
        builder.zext(word, ir.IntType(16)) if word.type.width < 16 else word
        for word in vectors.load(builder, address, access)
    ]
    return words[0] if len(words) == 1 else cgutils.pack_struct(builder, words)


def _store(access: Any, builder: Any, address: ir.Value, *given: ir.Value) -> None:
    kind = ir.IntType(access.bits)
    words = [word if word.type == kind else builder.trunc(word, kind) for word in given]
    vectors.store(builder, address, access, words)


@device
def copy_now(target, source, nbytes):
    copy_bytes(target, source, nbytes)


def _copy(nbytes: int, builder: Any, target: ir.Value, source: ir.Value) -> None:
    """An asynchronous copy, at once."""
    call_device(builder, copy_now, types.void(*[types.intp] * 3), [target, source, i64(nbytes)])


@device
def arrive(barrier):
    on_cpus.arrive(barrier, 0)


@device
def copy(barrier, target, source, nbytes):
    on_cpus.copy(target, source, nbytes, barrier)


ON_MBARRIERS = {
    "init": on_cpus.begin, "arrive": arrive, "expect": on_cpus.arrive, "copy": copy,
    "wait": on_cpus.await_phase, "wait before TMA": on_cpus.await_phase,
}  # fmt: skip


def _on_mbarrier(function: Any, builder: Any, *given: ir.Value) -> None:
    """What the cpu backend does, with its errors; the last argument may be a number of 32 bits."""
    words = [builder.sext(value, i64) if value.type != i64 else value for value in given]
    call_device(builder, function, types.void(*[types.intp] * len(words)), words)


def _instruction(leaf: Leaf, builder: Any, *arguments: Any) -> Any:
    """Its code; the address, if it has one, is an integer."""
    given = [builder.inttoptr(a, i8p) if k == 0 else a for k, a in enumerate(arguments)]
    return generator(leaf)(builder, *given)


def _store_on_all(builder: Any, address: ir.Value, value: ir.Value) -> None:
    """Compiled, but never run: no memory here has an address that reaches all PEs."""
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()))


def _load_from_all(found: Any, builder: Any, address: ir.Value) -> ir.Value:
    """The same: the value is never used."""
    return ir.Constant(found, None)


def _two(builder: Any, address: ir.Value) -> list[ir.Value]:
    first = builder.inttoptr(address, i64.as_pointer())
    return [first, builder.gep(first, [i64(1)])]


def _load_two(builder: Any, address: ir.Value) -> ir.Value:
    """Two units: each is in one piece, and so on GPUs."""
    units = [builder.load_atomic(place, "monotonic", 8) for place in _two(builder, address)]
    made: Any = ll.TWO(ir.Undefined)
    for k, unit in enumerate(units):
        made = builder.insert_value(made, unit, k)
    return made


def _store_two(builder: Any, address: ir.Value, *units: ir.Value) -> None:
    for place, unit in zip(_two(builder, address), units, strict=True):
        builder.store_atomic(unit, place, "monotonic", 8)


def _qp_quiet(name: str, builder: Any, pe: ir.Value, qps: ir.Value, n: ir.Value) -> None:
    """NVSHMEM's function; with requests of the proxy a list of one queue pair is one."""
    given = pe, builder.inttoptr(qps, i8p), builder.trunc(n, ir.IntType(32))
    library().call(builder, name, [*given])


@device
def words():
    return as_own(as_world(user_word()).own).words


def _state(builder: Any) -> ir.Value:
    """Where the state is: read from memory that does not change while a kernel runs."""
    place: Any = builder.function.args[THREAD_ARG]
    for struct, name in ((THREAD, "user"), (WORLD, "own"), (OWN, "state")):
        word: Any = load_field(builder, struct, place, name)
        word.set_metadata("invariant.load", builder.module.add_metadata([]))
        place = builder.inttoptr(word, i8p)
    vars(builder.module)["simt_embedded"] = True
    return place


def _words(builder: Any) -> ir.Value:
    return call_device(builder, words, types.intp(), [])
