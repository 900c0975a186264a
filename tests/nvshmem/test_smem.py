"""Shared memory given to NVSHMEM: what TMA needs is in the machine code, where there is TMA."""

import re
from pathlib import Path

import pytest

pytest.importorskip("nvshmem")

from numba import cuda, types
from nvshmem.bindings import ask_smem as nvshmems

import gpushmem as shmem
from gpushmem.backends.nvshmem.compile import compiler, shims
from gpushmem.ops import SMEM_BYTES
from tests.nvshmem import emulation, host
from tests.nvshmem.machine import reader

ARGUMENTS = types.float32[::1], types.float32[::1], types.uint64[::1], types.int32
# In PTX; in SASS UBLKCP.S.G, UBLKCP.G.S and so on.
IN = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
OUT = "cp.async.bulk.global.shared::cta.bulk_group"
WAIT = "cp.async.bulk.wait_group "
TO_TMA = ["fence.proxy.async.global", "fence.proxy.async.shared::cta"]
OPCODES = {"in": "UBLKCP.S.G", "out": "UBLKCP.G.S", "fence": "FENCE.VIEW.ASYNC.G", "wait": "DEPBAR"}


def given(dst, src, signal, pe):
    smem = cuda.shared.array(0, "uint8", alignment=16)
    shmem.give_smem(smem)
    shmem.put_nbi_block(dst, src, pe)
    shmem.quiet()
    shmem.release_smem()


def plain(dst, src, signal, pe):
    shmem.put_nbi_block(dst, src, pe)
    shmem.quiet()


def given_a_tile(dst, src, signal, pe):
    tile = cuda.shared.array(256, "float32", alignment=16)
    smem = cuda.shared.array(2048, "uint8", alignment=16)
    shmem.give_smem(smem)
    tile[cuda.threadIdx.x] = src[cuda.threadIdx.x]
    cuda.syncthreads()
    shmem.put_signal_block(dst, tile, signal, 1, shmem.SIGNAL_SET, pe)
    shmem.release_smem()


def got(dst, src, signal, pe):
    shmem.give_smem(cuda.shared.array(2048, "uint8", alignment=16))
    shmem.get_block(dst, src, pe)
    shmem.release_smem()


def met(dst, src, signal, pe):
    shmem.give_smem(cuda.shared.array(2048, "uint8", alignment=16))
    shmem.barrier_all_block()
    shmem.release_smem()


def asked(dst, src, signal, pe):
    signal[0] = shmem.ask_smem(shmem.SMEM_MINIMUM)
    signal[1] = shmem.ask_smem(pe)


KERNELS = {f.__name__: f for f in (given, plain, given_a_tile, got, met, asked)}


def code_of(name, arch, kind):
    """A kernel's code, linked alone, as a text; of SASS its instructions only."""
    compiled = compiler.compile_kernel(KERNELS[name], ARGUMENTS, {}, compiler.Arch.of(arch))
    linked = compiler.link(compiled, kind)
    if kind == "ptx":
        return linked.code.decode(errors="ignore")
    return [instruction.opcode for instruction in reader.sass(linked.code)[compiled.entry].code]


@pytest.fixture(scope="module")
def linked(elsewhere):
    return lambda *which: elsewhere.submit(code_of, *which).result()


def statements(ptx, *which):
    """The statements among `which`, in their order."""
    return re.findall("|".join(map(re.escape, which)), ptx)


def test_a_put_from_global_memory_is_staged_by_tma(linked):
    """In, and out again; before that a fence of the threads; after it they wait, and meet."""
    ptx = linked("given", "sm_90", "ptx")
    order = statements(ptx, *TO_TMA, IN, OUT)
    assert order[:2] == TO_TMA
    assert {IN, OUT} <= set(order)
    assert ptx.index(TO_TMA[0]) < ptx.index("mbarrier.init")
    assert f"{WAIT}0;" in ptx
    end = statements(ptx[ptx.rindex(f"{WAIT}0;") :], f"{WAIT}0;", "bar.sync", "barrier.sync")
    assert end[0] == f"{WAIT}0;"
    assert len(end) >= 3


def test_a_kernel_that_gives_no_memory_has_the_copies_and_no_fence(linked):
    """It is the same library code; the fence is for who gives memory. See test_machine_code."""
    ptx = linked("plain", "sm_90", "ptx")
    assert {IN, OUT} <= set(statements(ptx, IN, OUT))
    assert TO_TMA[0] not in ptx


@pytest.mark.parametrize(("name", "copies"), [("given_a_tile", {OUT}), ("got", {IN, OUT})])
def test_other_copies_have_the_fence_before_them(linked, name, copies):
    """A put from shared memory has no copy in; that of a get comes from the other PE."""
    ptx = linked(name, "sm_90", "ptx")
    order = statements(ptx, *TO_TMA, IN, OUT)
    assert order[:2] == TO_TMA
    assert set(order[2:]) - set(TO_TMA) == copies


def test_all_threads_wait_for_their_copies_before_a_barrier_fences(linked):
    """Two of the waits are ours: before the barrier, and in the release."""
    order = statements(linked("met", "sm_90", "ptx"), f"{WAIT}0;", "membar.sys", "fence.sc.sys")
    assert order[0] == f"{WAIT}0;"
    assert order.count(f"{WAIT}0;") == 3
    assert len(set(order)) == 2


@pytest.mark.skipif(reader.disassembler() is None, reason="nvdisasm is not installed")
def test_the_assembler_makes_tmas_instructions_of_it(linked):
    found = linked("given", "sm_90", "cubin")
    begins = {what: [op for op in found if op.startswith(text)] for what, text in OPCODES.items()}
    assert len(begins["in"]) >= 1
    assert len(begins["out"]) >= 1
    assert len(begins["fence"]) == 1
    without = linked("plain", "sm_90", "cubin")
    assert not any(op.startswith(OPCODES["fence"]) for op in without)
    waits = [op for op in without if op.startswith(OPCODES["wait"])]
    assert len(begins["wait"]) == len(waits) + 1


@pytest.mark.skipif(reader.disassembler() is None, reason="nvdisasm is not installed")
def test_before_sm_90_nothing_is_left_of_it(linked):
    assert linked("given", "sm_80", "cubin") == linked("plain", "sm_80", "cubin")
    assert not any("UBLKCP" in op for op in linked("given_a_tile", "sm_80", "cubin"))


def test_it_links_for_later_gpus(linked):
    assert {IN, OUT} <= set(statements(linked("given", "sm_100", "ptx"), IN, OUT))


def test_amounts_are_nvshmems():
    assert [nvshmems.ask_smem(amount) for amount in range(3)] == list(SMEM_BYTES)


def test_the_amounts_are_in_the_code(linked):
    ptx = linked("asked", "sm_90", "ptx")
    assert set(map(str, SMEM_BYTES)) <= set(re.findall(r"\b\d+\b", ptx))
    assert "call" not in ptx


@pytest.mark.skipif(emulation.missing() is not None, reason=str(emulation.missing()))
@host.in_pes(1)
def test_the_host_asks_on_gpus_too(me, n):
    assert [shmem.ask_smem(amount) for amount in range(3)] == list(SMEM_BYTES)
    with pytest.raises(shmem.ArgumentError, match="ask_smem: there is no amount 3 of shared"):
        shmem.ask_smem(3)


def test_the_headers_keep_as_many_bytes_for_nvshmem():
    folder = next(f for f in shims._include_path() if f.endswith("nvshmem/include"))
    text = Path(folder, "device_host/nvshmem_types.h").read_text()
    found = dict(re.findall(r"#define (NVSHMEMI_\w+)\s+((?:[^\\\n]|\\\n)+)", text))

    def value(name):
        inside = re.sub(r"NVSHMEMI_\w+", lambda other: str(value(other[0])), found[name])
        return eval(inside.replace("\\\n", " "), {})

    assert value("NVSHMEMI_SMEM_DATA_REGION_OFFSET") == SMEM_BYTES[shmem.SMEM_BARRIERS_ONLY]
