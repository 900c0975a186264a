"""Our operations give the machine code that nvshmem4py's bindings called by hand give.

But those for which that is too weak: `EXCEPTIONS`.
"""

import re
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

pytest.importorskip("nvshmem")

import cffi
from numba import cuda, types
from nvshmem.bindings.device.numba import _numbast as by_hand

import gpushmem as shmem
from gpushmem.backends.nvshmem.compile import aot, compiler
from gpushmem.ops import OPS
from tests.nvshmem.machine import reader, rows

ffi = cffi.FFI()
F32, U64, I32 = types.float32[::1], types.uint64[::1], types.int32[::1]
PE = types.int32


def put(dst, src, pe):
    shmem.put(dst, src, pe)


def put_by_hand(dst, src, pe):
    by_hand.float_put(ffi.from_buffer(dst), ffi.from_buffer(src), src.size, pe)


def put_block(dst, src, pe):
    shmem.put_block(dst, src, pe)


def put_block_by_hand(dst, src, pe):
    by_hand.float_put_block(ffi.from_buffer(dst), ffi.from_buffer(src), src.size, pe)


def put_nbi_warp(dst, src, pe):
    shmem.put_nbi_warp(dst, src, pe)


def put_nbi_warp_by_hand(dst, src, pe):
    by_hand.float_put_nbi_warp(ffi.from_buffer(dst), ffi.from_buffer(src), src.size, pe)


def get(dst, src, pe):
    shmem.get(dst, src, pe)


def get_by_hand(dst, src, pe):
    by_hand.float_get(ffi.from_buffer(dst), ffi.from_buffer(src), dst.size, pe)


def p_by_hand(dst, value, pe):
    by_hand.uint64_p(ffi.from_buffer(dst), value, pe)


def g_by_hand(dst, src, pe):
    dst[cuda.threadIdx.x] = by_hand.uint64_g(ffi.from_buffer(src), pe)


def wait_by_hand(out, signal, value):
    out[0] = by_hand.signal_wait_until(ffi.from_buffer(signal), shmem.CMP_GE, value)


def add(dst, value, pe):
    shmem.atomic_add(dst, value, pe)


def add_by_hand(dst, value, pe):
    by_hand.int32_atomic_add(ffi.from_buffer(dst), value, pe)


def fetch_add(dst, value, pe):
    value = shmem.atomic_fetch_add(dst, value, pe)
    dst[1] = value


def fetch_add_by_hand(dst, value, pe):
    value = by_hand.int32_atomic_fetch_add(ffi.from_buffer(dst), value, pe)
    dst[1] = value


def put_signal_block(dst, src, signal, pe):
    shmem.put_signal_block(dst, src, signal, 1, shmem.SIGNAL_SET, pe)


def put_signal_block_by_hand(dst, src, signal, pe):
    by_hand.float_put_signal_block(
        ffi.from_buffer(dst), ffi.from_buffer(src), src.size, ffi.from_buffer(signal), 1,
        shmem.SIGNAL_SET, pe,
    )  # fmt: skip


def ordered(dst, src, pe):
    shmem.put(dst, src, pe)
    shmem.fence()
    shmem.put(dst[1:], src, pe)
    shmem.quiet()


def ordered_by_hand(dst, src, pe):
    by_hand.float_put(ffi.from_buffer(dst), ffi.from_buffer(src), src.size, pe)
    by_hand.fence()
    by_hand.float_put(ffi.from_buffer(dst[1:]), ffi.from_buffer(src), src.size, pe)
    by_hand.quiet()


def signal_fetch_by_hand(out, signal):
    out[0] = by_hand.signal_fetch(ffi.from_buffer(signal))


def barrier_by_hand(team):
    by_hand.barrier_block(team)


def sync_by_hand(team):
    by_hand.team_sync_block(team)


PAIRS = {
    "put": (put, put_by_hand, (F32, F32, PE)),
    "atomic_add": (add, add_by_hand, (I32, types.int32, PE)),
    "put_block": (put_block, put_block_by_hand, (F32, F32, PE)),
    "put_nbi_warp": (put_nbi_warp, put_nbi_warp_by_hand, (F32, F32, PE)),
    "get": (get, get_by_hand, (F32, F32, PE)),
    "atomic_fetch_add": (fetch_add, fetch_add_by_hand, (I32, types.int32, PE)),
    "fence, quiet": (ordered, ordered_by_hand, (F32, F32, PE)),
}
ARCH = compiler.Arch.of("sm_90")
SMALLER = "put_signal_block"  # NVSHMEM writes its function for words another way than for floats
PAIRS[SMALLER] = (put_signal_block, put_signal_block_by_hand, (F32, F32, U64, PE))


class Weak(NamedTuple):
    """A call of the bindings that lacks what OpenSHMEM 1.5 and docs/memory-model.md promise."""

    by_hand: Callable[..., None]
    types: tuple[Any, ...]
    lacks: str  # of what the row asks for: tests/nvshmem/machine/rows.py


EXCEPTIONS = {
    "p": Weak(p_by_hand, (U64, types.uint64, PE), rows.STORED),
    "g": Weak(g_by_hand, (U64, U64, PE), rows.LOADED),
    "signal_fetch": Weak(signal_fetch_by_hand, (U64, U64), rows.ACQUIRED),
    "signal_wait_until": Weak(wait_by_hand, (U64, U64, types.uint64), rows.ONCE),
    "barrier_block": Weak(barrier_by_hand, (PE,), rows.MEETING),
    "sync_block": Weak(sync_by_hand, (PE,), rows.RELEASED),
}


@pytest.fixture(scope="module")
def codes():
    """Ours and those by hand: of each operation the kernel's instructions, and of all functions.

    All of a kind are in one cubin, so NVSHMEM's headers are compiled once.
    """
    return [_codes(side) for side in (0, 1)]


def _codes(side, which="numba-cuda"):
    compiled = {
        name: compiler.compile_kernel(pair[side], pair[2], {}, ARCH, which=which)
        for name, pair in PAIRS.items()
    }
    linked = compiler.link_all(list(compiled.values()))
    names = {kernel.entry: name for name, kernel in compiled.items()}
    found = {}
    for section, data in sections(linked.code).items():
        if section.startswith(".text."):
            name = section.removeprefix(".text.")
            # NVSHMEM's templates: by hand for float, ours for words of its width.
            found[names.get(name) or re.sub(r"I[fj]E", "I?E", name)] = data
    needs = {name: aot.needs_of(linked.log, kernel.entry) for name, kernel in compiled.items()}
    return found, needs


@pytest.mark.parametrize("name", [name for name in PAIRS if name != SMALLER])
def test_the_machine_code_is_that_of_the_bindings_called_by_hand(codes, name):
    (ours, our_needs), (theirs, their_needs) = codes
    assert len(ours[name]) >= 128
    assert ours[name] == theirs[name]
    assert our_needs[name].registers == their_needs[name].registers
    assert our_needs[name].spill_stores == their_needs[name].spill_stores == 0


def test_nothing_else_is_called(codes):
    (ours, _), (theirs, _) = codes
    assert ours.keys() == theirs.keys()
    for name in ours.keys() - PAIRS.keys():
        assert len(ours[name]) == len(theirs[name]), name


def test_kernels_of_numba_cuda_mlir_are_as_small(codes):
    """Operations are functions that they call: nothing of that may be left."""
    pytest.importorskip("numba_cuda_mlir")
    (ours, our_needs), _ = codes
    theirs, their_needs = _codes(0, "numba-cuda-mlir")
    assert ours.keys() == theirs.keys()
    for name, code in ours.items():
        assert abs(len(code) - len(theirs[name])) <= (512 if name in PAIRS else 0), name
    for name, needs in our_needs.items():
        assert abs(needs.registers - their_needs[name].registers) <= 8, name
        assert (needs.stack, needs.spill_stores) == (
            their_needs[name].stack, their_needs[name].spill_stores
        ), name  # fmt: skip


def test_a_put_with_a_signal_is_smaller(codes):
    (ours, our_needs), (theirs, their_needs) = codes
    assert len(ours[SMALLER]) <= len(theirs[SMALLER])
    assert our_needs[SMALLER].registers <= their_needs[SMALLER].registers
    assert our_needs[SMALLER].spill_stores == their_needs[SMALLER].spill_stores == 0


def test_the_bindings_lack_what_the_exceptions_are_for():
    """An exception that NVSHMEM no longer needs has to go; ours is tested in machine/test_rows."""
    if reader.disassembler() is None:
        pytest.skip("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")
    kernels = [
        compiler.compile_kernel(weak.by_hand, weak.types, {}, ARCH) for weak in EXCEPTIONS.values()
    ]
    functions = reader.sass(compiler.link_all(kernels).code)
    for (name, weak), kernel in zip(EXCEPTIONS.items(), kernels, strict=True):
        assert weak.lacks in rows.missing(functions, kernel.entry, OPS[name]), name


def sections(elf):
    """Sections of an ELF file by name."""
    (start,) = struct.unpack_from("<Q", elf, 0x28)
    count, names = struct.unpack_from("<HH", elf, 0x3C)
    headers = [struct.unpack_from("<IIQQQQ", elf, start + 64 * i) for i in range(count)]
    texts = headers[names][4]

    def name_of(offset):
        return elf[texts + offset : elf.index(b"\0", texts + offset)].decode()

    return {name_of(h[0]): elf[h[4] : h[4] + h[5]] for h in headers}
