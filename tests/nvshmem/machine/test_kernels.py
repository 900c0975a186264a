"""The ready kernels' machine code is what docs/kernels.md says, and what is asked of it.

The data are those of `python -m bench.gpu.predict`, which also says what they predict.
"""

import json

import pytest

pytest.importorskip("nvshmem")

from bench.gpu import machines, predict
from tests.nvshmem.machine import loops, plans, reader

DATA = json.loads(predict.RESULT.read_text())
CODE = {(c["kernel"], c["dtype"], c["arch"]): c for c in DATA["code"]}
MACHINES = {"sm_90a": "H100", "sm_100a": "B200"}
SAMPLE = ("AllGather", "float16", "sm_90a")

# Elements of 16 bits that a kernel moves one by one, and why.
ONE_BY_ONE = {
    "AllReduce multicast": "sums are stored to the multicast address",
    "AllReduce ll128": "the last pieces of a row, which do not fill a line, are put together",
    "AllReduce ll128_two_shot": "as in ll128",
    "AllGatherGemm": "`gemm_block` fetches tiles to shared memory, with gaps between their rows",
    "GemmReduceScatter": "as in AllGatherGemm, and rows of tiles are copied to where they belong",
    "GemmAllReduce": "as in GemmReduceScatter",
    "ExpertParallel combine": "ends of rows, of which there may be none, are added up",
    "MoE": "tiles are fetched, as in AllGatherGemm, and rows are activated",
    "KVTransfer": "rows are quantised, if they are sent as 8 bits",
    "RingAttention": "rows are widened, and softened, by a thread each; as in AllGatherGemm",
    "RingAttentionBackward": "as in RingAttention",
    "Ulysses": "rows that are not aligned are rotated",
    "PipelinedLayers": "as in MoE",
    "Jacobi": "cells are computed from their neighbours",
    "HaloExchange": "ends of the whole array are set to zero",
}
# Kernels whose loops of 16 bytes are NVSHMEM's puts, or those of LL, which looks at flags; or the
# ends of loops of more.
PUTTING = (
    "AllGatherGemm", "AllReduce ll", "AllReduce ll128", "AllReduce ll128_two_shot",
    "ExclusiveScan", "ExpertParallel combine", "FlashDecode", "GemmReduceScatter", "Jacobi",
    "KVTransfer", "MoE library", "RingAttention", "RingAttention library",
    "RingAttentionBackward", "SpMV", "Ulysses",
)  # fmt: skip
# Bytes that a thread spills: it has as many registers as let a block fit a multiprocessor. Of
# FlashDecode none is loaded in the loop over keys, of Jacobi none in the loop over cells, of
# EmbeddingBags none in that over rows; of FFT one register in the loop over steps.
SPILLS = {
    "EmbeddingBags rows": 1608, "EmbeddingBags columns": 1608, "FFT 2 axes": 552,
    "FlashDecode": 396, "Jacobi": 464, "RingAttention": 1732, "RingAttentionBackward": 2836,
}  # fmt: skip
SHARED = {"FFT": 136 << 10}  # bytes of a block, at launch: 227 KiB on Hopper, 163 on A100
MOST_FENCES = {"one_shot": 5, "two_shot": 10, "ring": 4, "multicast": 3}

needs_nvdisasm = pytest.mark.skipif(
    not reader.disassembler(), reason="nvdisasm is not installed: pip install nvidia-cuda-nvdisasm"
)


def found(kernel, dtype, arch):
    """What the code says today."""
    machine = machines.MACHINES[MACHINES[arch]]
    gpu = machine["multiprocessors"].value, machine["capability"].value
    return predict.code_of(kernel, dtype, arch, gpu)


def cases():
    for case in CODE:
        yield pytest.param(*case, marks=[pytest.mark.sweep] * (case != SAMPLE))


@needs_nvdisasm
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kernel", "dtype", "arch"), list(cases()))
def test_the_data_are_those_of_the_code(elsewhere, kernel, dtype, arch):
    """Run python -m bench.gpu.predict, and python docs/make_tables.py."""
    assert elsewhere.submit(found, kernel, dtype, arch).result() == CODE[kernel, dtype, arch]


def test_every_kernel_is_predicted():
    assert {kernel for kernel, *_ in CODE} == set(plans.CASES)
    classes = {name.split()[0] for name in plans.CASES}
    # Of these some have no kernels; what sorts moves keys one by one, and sends them by AllToAllV;
    # what tasks do is the user's.
    others = {
        "Arena", "ContextParallel", "Plan", "SampleSort", "Schedule", "TaskPool", "TransferFailed",
    }  # fmt: skip
    assert classes == {n for n in plans.k.__all__ if isinstance(getattr(plans.k, n), type)} - others


@pytest.mark.parametrize("case", list(CODE.values()), ids=lambda c: f"{c['kernel']}-{c['dtype']}")
def test_loops_move_16_bytes_at_a_time(case):
    names = {case["kernel"], case["kernel"].split()[0]}
    if case["kernel"] == "BFS":
        return  # edge by edge
    if case["kernel"].startswith("FFT"):  # by 8, next to each other, 16 of a thread's under way
        assert case["in flight"]["tile"] >= 128
        return
    assert case["wide loops"] >= 1
    # By LL128, and to 8 bits, ends go one by one in the loop that the others have.
    assert case["mixed loops"] == 0 or any(name in case["kernel"] for name in ("ll128", "8 bits"))
    assert case["lonely loops"] == 0 or names & set(ONE_BY_ONE)
    assert case["in flight"]["put"] >= 16
    kinds = {"copy", "sum"} & set(case["in flight"])
    least = 16 if names & set(PUTTING) else 64
    assert min(case["in flight"][kind] for kind in kinds) >= least


@pytest.mark.parametrize("case", list(CODE.values()), ids=lambda c: f"{c['kernel']}-{c['dtype']}")
def test_blocks_fit_and_spill_no_more_than_known(case):
    assert case["resident"] >= 1
    assert case["spills"] <= SPILLS.get(case["kernel"], 0)
    assert case["shared"] <= SHARED.get(case["kernel"].split()[0], 48 << 10)


def test_fences_are_counted():
    """Of the kernels that sum: no more in the code than the algorithm has, with NVSHMEM's own."""
    for (kernel, *_), code in CODE.items():
        algorithm = kernel.split()[-1]
        if algorithm in MOST_FENCES:
            assert 1 <= code["fences"] <= MOST_FENCES[algorithm], kernel


def test_what_is_known_of_one_gpu_is_predicted_within_a_tenth():
    """Copies of parts by many blocks, which are measured: see bench/gpu."""
    machine = machines.MACHINES["H100"]
    code = {"threads": 512, "dtype": "float32", "in flight": {predict.PUT: 16}}
    rows = [row for row in machines.ROWS if row["what"].startswith("put_block in parts, beside n")]
    for row in rows:
        if row["n_pes"] == 1:
            moved, part = 2 * row["bytes"], row["bytes"] / row["grid"]
            fits = moved < machine["l2"].value
            source = predict.L2 if fits and row["bytes"] > 16 << 20 else predict.HBM
            work = predict.Work(
                moved / 2 if fits else 0, 0 if fits else moved,
                (predict.Pass(predict.PUT, part, source),), 1, 0, 0,
            )  # fmt: skip
            slow = {**machine, "link": machines.Figure(1e15, "none in between")}
            assert predict.predict(work, slow, code)["seconds"] == pytest.approx(row["ours"], 0.11)


# --- reading loops


def code(*texts):
    lines = (f"\t/*{16 * k:04x}*/ {text} ;" for k, text in enumerate(texts))
    return reader.sass_text("\n".join(["kernel:", *lines]))["kernel"].code


def test_loads_are_in_flight_until_one_is_used():
    loads = [f"LDG.E.128 R{4 * k}, desc[UR4][R100.64]" for k in range(1, 5)]
    assert loops.in_flight(code(*loads)) == 64
    used = "FADD R50, R5, R6"  # of the first
    assert loops.in_flight(code(*loads[:2], used, *loads[2:])) == 48
    stores = ["STG.E.128 desc[UR4][R100.64], R4", "STG.E.128 desc[UR4][R100.64], R8"]
    assert loops.in_flight(code(loads[0], stores[0], loads[1], stores[1])) == 16
    assert loops.in_flight(code("LDS.128 R4, [R1]", "LDG.E.U16 R8, desc[UR4][R2.64]")) == 2


def test_loops_are_those_without_loops_inside():
    text = """kernel:
.L_a:
\t/*0000*/ LDG.E R1, desc[UR4][R100.64] ;
.L_b:
\t/*0010*/ LDG.E.128 R4, desc[UR4][R100.64] ;
\t/*0020*/ STG.E.128 desc[UR4][R100.64], R4 ;
\t/*0030*/ @P0 BRA `(.L_b) ;
\t/*0040*/ @P0 BRA `(.L_a) ;
\t/*0050*/ EXIT ;"""
    (loop,) = loops.innermost(reader.sass_text(text)["kernel"])
    assert (loop.loads, loop.stores, loop.in_flight) == ((16,), (16,), 16)
    assert loop.is_wide
    assert not loop.is_narrow
    narrow = loop._replace(loads=(2, 2), stores=(2, 2))
    assert loops.lonely([loop, narrow]) == []
    assert loops.lonely([loop, narrow._replace(stores=(2,))]) != []
