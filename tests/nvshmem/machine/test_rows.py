"""The machine code of every row has the loads, stores, loops and fences that the row asks for."""

import re

import pytest

pytest.importorskip("nvshmem")

from gpushmem.ops import OPS
from tests.nvshmem import kernels
from tests.nvshmem.machine import objects, page, reader, rows
from tests.nvshmem.machine.objects import PTX, SASS

ARCHS = ("sm_80", "sm_90a")
LEFT_OUT = ("gemm", "trace_range_start", "trace_range_end")  # access no other PE
SAMPLE = (
    "p", "g", "put", "put_signal", "signal_op", "signal_fetch", "signal_wait_until", "test",
    "atomic_fetch", "atomic_add", "fence", "quiet", "sync_block", "peer_array", "qp_put",
    "qp_quiet",
)  # fmt: skip
ALL = {op.name: op for op in kernels.rows() if op.base not in LEFT_OUT}
REDUCTIONS = [name for name, op in ALL.items() if op.base in rows.REDUCTIONS]
OTHERS = [name for name in ALL if name not in REDUCTIONS]
KINDS = (PTX, *([SASS] if reader.disassembler() else []))


def gaps(functions, entries):
    """Row -> what it asks for that is not there."""
    found = {name: rows.missing(functions, entry, OPS[name]) for name, entry in entries.items()}
    return {name: looks for name, looks in found.items() if looks}


def known(names):
    found = {name: set(rows.defects(OPS[name])) for name in names}
    return {name: looks for name, looks in found.items() if looks}


@pytest.fixture(scope="module", params=kernels.COMPILERS)
def sample(elsewhere, request):
    """For `sm_90a`, as launches: NVSHMEM's functions, compiled for that, are in the store."""
    return elsewhere.submit(objects.built, SAMPLE, "sm_90a", KINDS, (), request.param).result()


@pytest.mark.parametrize("kind", [PTX, SASS])
def test_a_sample_has_what_it_asks_for(sample, kind):
    if kind not in KINDS:
        pytest.skip("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")
    code, entries = sample
    assert gaps(objects.read(kind, code[kind]), entries) == known(SAMPLE)


@pytest.mark.sweep
@pytest.mark.timeout(900)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("names", [OTHERS, REDUCTIONS], ids=["others", "reductions"])
@pytest.mark.parametrize("which", kernels.COMPILERS)
def test_every_row_has_what_it_asks_for(elsewhere, names, arch, which):
    if which == "numba-cuda-mlir":
        names = [name for name in names if name not in kernels.NOT_BY_MLIR]
    if arch == "sm_80":
        names = [name for name in names if OPS[name].base not in kernels.NEEDS_TMA]
    code, entries = elsewhere.submit(objects.built, names, arch, KINDS, (), which).result()
    for kind in KINDS:
        assert gaps(objects.read(kind, code[kind]), entries) == known(names), kind


def test_the_page_has_what_is_seen(sample):
    if SASS not in KINDS:
        pytest.skip("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")
    code, entries = sample
    functions, text = objects.read(SASS, code[SASS]), page.PAGE.read_text()
    for name in {*entries} & {*page.SHOWN}:
        (line,) = re.findall(rf"^\| `{name}` \|.*", text, re.MULTILINE)
        assert line.split(" | ")[2] == page.seen(functions, entries[name]), name


@pytest.mark.sweep
@pytest.mark.timeout(900)
def test_the_page_is_what_the_script_writes(elsewhere):
    """Run python -m tests.nvshmem.machine.page."""
    *found, more = (elsewhere.submit(page.cells, a, page.SHOWN) for a in (*page.ARCHS, "sm_90a"))
    cells = [each.result() for each in found]
    assert page.page(cells) == page.PAGE.read_text()
    assert more.result() == cells[-1]


def test_every_row_asks_for_something():
    """All but those that access no memory of others, and order nothing."""
    idle = {name for name, op in ALL.items() if rows.wanted(op) <= {rows.NO_LOCAL}}
    assert {OPS[name].base for name in idle} == {
        "my_pe", "n_pes", "pe_accessible", "team_my_pe", "team_n_pes", "team_translate_pe", "flush",
        "ask_smem", "give_smem", "release_smem", "load_vector", "store_vector", "copy_async",
        "copy_async_commit", "copy_async_wait", "mbarrier_init", "mbarrier_arrive",
        "mbarrier_arrive_and_expect_tx", "mbarrier_wait", "copy_bulk",
    }  # fmt: skip


# --- faults. In PTX, as if the functions had been written so.

FAULTS = {
    "fences are gone": (r"\b(membar|fence)\.(?!proxy)[\w.]+;", ""),
    "fences reach this GPU only": (r"\b(membar|fence)\.(?!proxy)[\w.]+;", "membar.gl;"),
    "nothing is volatile": (r"\b(ld|st)\.(volatile|relaxed\.sys)\b", r"\1"),
    "volatile reaches this GPU only": (r"\b(ld|st)\.(volatile|relaxed\.sys)\b", r"\1.relaxed.gpu"),
    "atomics are this GPU's": (r"\b(atom|red)((?:\.\w+)*?)\.sys\b", r"\1\2.gpu"),
    "8 bytes are 4 and 4": (
        r"\b((?:ld|st|atom|red)(?!\.param|\.const)(?:\.\w+)*\.[usb])64\b([^;]*;)",
        r"\g<1>32\2\g<1>32\2",
    ),
    "loops do not load again": (
        r"(?<=:\n)((?:\t(?!ld\.[vr]|@|bra)[^\n]*\n|\n|\s*//[^\n]*\n)*)\s*ld\.(volatile|relaxed)[^;]*;",
        r"\1",
    ),
}  # fmt: skip
L = rows
FOUND_BY = {
    "fences are gone": {
        "put_signal": {L.SIGNALLED}, "signal_wait_until": {L.ACQUIRED}, "test": {L.ACQUIRED_IF},
        "fence": {L.FENCES}, "quiet": {L.FENCES},
    },
    "fences reach this GPU only": {
        "put_signal": {L.SIGNALLED}, "fence": {L.FENCES}, "quiet": {L.FENCES},
    },
    "nothing is volatile": {
        "signal_fetch": {L.LOADED, L.POLLED}, "test": {L.LOADED, L.POLLED},
        "signal_wait_until": {L.LOADED, L.POLLED},
    },
    "volatile reaches this GPU only": {
        "signal_fetch": {L.LOADED, L.POLLED}, "test": {L.LOADED, L.POLLED},
        "signal_wait_until": {L.LOADED, L.POLLED},
    },
    "atomics are this GPU's": {"atomic_fetch": {L.LOADED, L.POLLED}, "atomic_add": {L.STORED}},
    "8 bytes are 4 and 4": {
        "signal_op": {L.STORED}, "signal_fetch": {L.LOADED, L.POLLED}, "test": {L.LOADED},
        "atomic_fetch": {L.LOADED, L.POLLED}, "atomic_add": {L.STORED}, "peer_array": {L.ASSIGNED},
    },
    "loops do not load again": {"signal_wait_until": {L.POLLED}, "test": {L.POLLED, L.NOT_DEAF}},
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(sample, fault):
    code, entries = sample
    changed, n = re.subn(*FAULTS[fault], code[PTX].decode(errors="ignore"))
    assert n
    found = gaps(reader.ptx(changed), entries)
    for name, looks in FOUND_BY[fault].items():
        assert looks <= found.get(name, set()), name


# --- faults in shims. C++ of NVSHMEM's functions replaced by what looks as good; and by what is.

MAPPED = "((uint64_t volatile*)nvshmem_ptr({}, *pe))"
PLAIN = "((uint64_t*)nvshmem_ptr({}, *pe))"
HALVES = "((uint32_t volatile*)nvshmem_ptr({}, *pe))"
WAIT = "while (*(uint64_t volatile*)*sig_addr != *cmp_val); retval = *cmp_val;"
COPY = f"for (int i = 0; i < *nelems; i++) {PLAIN.format('*dest')}[i] = ((uint64_t*)*source)[i];"
SET = f"*{MAPPED.format('*sig_addr')} = *signal;"
CALLS = {
    "wait": ("signal_wait_until", "retval = nvshmem_signal_wait_until(*sig_addr, *cmp, *cmp_val);"),
    "fetch": ("signal_fetch", "retval = nvshmem_signal_fetch(*sig_addr);"),
    "atomic": ("uint64_atomic_fetch", "retval = nvshmem_uint64_atomic_fetch(*target, *pe);"),
    "signal": ("signal_op", "nvshmemx_signal_op(*sig_addr, *signal, *sig_op, *pe);"),
    "put": (
        "put64_signal",
        "nvshmem_put64_signal(*dest, *source, *nelems, *sig_addr, *signal, *sig_op, *pe);",
    ),
    "fence": ("fence", "nvshmem_fence();"),
    "p": ("uint64_p", "nvshmem_uint64_p(*dest, *value, *pe);"),
    "g": ("uint64_g", "retval = nvshmem_uint64_g(*source, *pe);"),
}
UNHEARD = {rows.LOADED, rows.POLLED, rows.NOT_DEAF}
WRONG = {  # call -> what is written instead, the row, what is missing then
    "wait": (WAIT, "signal_wait_until", {rows.ACQUIRED}),
    "atomic": (f"retval = *{PLAIN.format('*target')};", "atomic_fetch", UNHEARD),
    "signal": (
        f"{HALVES.format('*sig_addr')}[0] = *signal; "
        f"{HALVES.format('*sig_addr')}[1] = *signal >> 32;",
        "signal_op", {rows.STORED},
    ),
    "put": (f"{COPY} __threadfence(); {SET}", "put_signal", {rows.SIGNALLED}),
    "fence": ("__threadfence();", "fence", {rows.FENCES}),
}  # fmt: skip
RIGHT = {
    "wait": (f"{WAIT} __threadfence();", "signal_wait_until"),
    "fetch": ("retval = *(uint64_t volatile*)*sig_addr; __threadfence();", "signal_fetch"),
    "atomic": (f"retval = *{MAPPED.format('*target')};", "atomic_fetch"),
    "signal": (f"*{MAPPED.format('*sig_addr')} = *signal;", "signal_op"),
    "put": (f"{COPY} __threadfence_system(); {SET}", "put_signal"),
    "fence": ("__threadfence_system();", "fence"),
    "p": (f"*{MAPPED.format('*dest')} = *value;", "p"),
    "g": (f"retval = *{MAPPED.format('*source')};", "g"),
}


@pytest.mark.sweep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("texts", [WRONG, RIGHT], ids=["wrong", "right"])
def test_a_faulty_shim_is_found(elsewhere, texts):
    changes = [(*CALLS[call], text[0]) for call, text in texts.items()]
    names = [text[1] for text in texts.values()]
    code, entries = elsewhere.submit(objects.built, names, "sm_90", KINDS, changes).result()
    wanted = {text[1]: text[2] for text in texts.values() if len(text) > 2}
    for kind in KINDS:
        assert gaps(objects.read(kind, code[kind]), entries) == wanted, kind
