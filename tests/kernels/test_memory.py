"""Plans take what docs/kernels.md says on the symmetric heap: its formulas, and each plan made.

A formula is evaluated with letters that follow from what a plan is made with, not from the plan.
"""

import re
from math import ceil
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

import gpushmem as shmem
from gpushmem import kernels
from gpushmem.backends.registry import about

PAGE = Path(__file__).parents[2] / "docs/kernels.md"
MOST = about("cpu").tuning.piece_bytes
B, SINGLE = 2, {"dtype": "float32"}


def formulas():
    """{(class, what else its row says): formula}."""
    section = PAGE.read_text().split("\n## Memory on the heap\n")[1].split("\n## ")[0]
    found = {}
    for cell, formula in re.findall(r"^\| (`.+?) \| `(.+?)` \|", section, re.MULTILINE):
        names = re.findall(r"`([A-Z]\w+)`", cell)
        rest = cell.rpartition(f"`{names[-1]}`")[2].replace("`", "").strip(", ")
        found |= dict.fromkeys(((name, rest) for name in names), formula)
    return found


FORMULAS = formulas()


def taken(plan, rest="", **letters):
    """What a row says; letters side by side are multiplied."""
    text = re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", FORMULAS[plan, rest])
    return eval(text, {"ceil": ceil, "min": min}, {"B": B, "S": 4} | letters)


def part(x, y):
    return min(x, -(-x // y // 32) * 32)


def piece(size, width=4, blocks=B):
    return min(part(size, blocks), MOST // width)


def narrow(x):
    """Bytes of numbers in 8 bits, with a scale for each 128, both in whole 16."""
    return ceil(4 * ceil(x / 128) / 16) * 16 + ceil(x / 16) * 16


def sums_and_copies(n):
    for size in (1000, 400_000):
        given, p = SINGLE | {"size": size}, piece(size)
        for name in ("one_shot", "multicast", "in_place", "ll", "ll128"):
            yield "AllReduce", f'"{name}"', given | {"algorithm": name}, {"p": p}
        for name in ("two_shot", "ll128_two_shot"):
            yield "AllReduce", f'"{name}"', given | {"algorithm": name}, {"q": part(p, n), "p": p}
        q = part(min(part(size, B), n * (MOST // 4)), n)
        yield "AllReduce", '"ring"', given | {"algorithm": "ring"}, {"q": q}
        for name, w in (("one_shot", p), ("two_shot", part(p, n))):
            options = given | {"algorithm": name, "wire": "float8_e4m3"}
            yield "AllReduce", f'wire=, "{name}"', options, {"w": narrow(w)}
        for name in ("AllGather", "AllToAll", "ReduceScatter", "ExclusiveScan", "Broadcast"):
            yield name, "", given, {"p": p}
    for tokens, rows in ((5, 3), (4000, MOST // 400)):
        given = SINGLE | {"tokens": tokens, "hidden": 100, "algorithm": "one_shot"}
        sums = taken("AllReduce", '"one_shot"', n=n, p=100 * rows)
        yield "AllReduceRMSNorm", "", given, {"sums": sums}


def rows_and_keys(n):
    for rows in (60, 40_000):
        given = SINGLE | {"rows": rows, "row": (9,)}
        r = ceil(piece(9 * rows) // 9 * 9 / 32) * 32
        for name in ("AllToAllV", "AllGatherV"):
            yield name, "", given, {"r": r}
            yield name, '"put"', given | {"algorithm": "put"}, {}
    samples = taken("AllGatherV", n=n, B=1, S=8, r=128)
    for values, width in ((None, 0), ("float32", 4)):
        keys, more = (taken("AllToAllV", n=n, B=1, S=each, r=1000 + 24) for each in (8, width))
        letters = {"samples": samples, "keys": keys, "values": more if values else 0}
        yield "SampleSort", "", {"size": 1000, "dtype": "int64", "values": values}, letters


def cut_arrays(n):
    bundle = {1: 32, 2: 32, 3: 16}[n]
    r, c = ceil(64 / n), ceil(128 / n)
    yield (
        "FFT", "", {"shape": (64, 128), "dtype": "complex64", "method": "steps"},
        {"r": ceil(r / bundle) * bundle, "c": c, "K": 1, "S": 8},
    )  # fmt: skip
    if n < 3:
        for shape in ((64, 128), (64, 128, 16)):
            given = {"shape": shape, "dtype": "complex128", "method": "tiles"}
            yield "FFT", "", given, {"r": r, "c": c, "K": (*shape, 1)[2], "S": 16}
    given = SINGLE | {"shape": (10, 6), "width": 2}
    yield "HaloExchange", "", given, {"e": 2 * 6 * 4}
    yield "HaloExchange", "", given | {"axis": 1}, {"e": 2 * 10 * 4}
    yield (
        "Jacobi", "from the first gather on", SINGLE | {"shape": (12, 10), "grid": (n, 1)},
        {"f": max(12, 12 // n + 2), "c": 12 // n * 10},
    )  # fmt: skip
    y = ceil(5 / n) + 2
    yield (
        "Jacobi", "", {"shape": (8, 5, 4), "grid": (1, n, 1), "dtype": "float64"},
        {"f": max(y * 6, 10 * y, 10 * 6), "S": 8},
    )  # fmt: skip


def irregular(n, me):
    size, ends = 40, [np.random.default_rng(pe).integers(0, 40 * n, 160) for pe in range(n)]
    graph = SimpleNamespace(indptr=4 * np.arange(size + 1), indices=ends[me], data=np.ones(160))
    led_to = [[np.unique(its[its // size == pe]).size for its in ends] for pe in range(n)]
    from_others = [sum(row) - row[pe] for pe, row in enumerate(led_to)]
    needed = [sum(row[pe] for row in led_to) - led_to[pe][pe] for pe in range(n)]
    yield "BFS", "", {"graph": graph}, {"v": max(from_others)}
    yield "SpMV", "", {"matrix": graph}, {"h": max(needed) + size, "S": 8}
    for parts in (1, n):
        given = SINGLE | {"rows": 50, "dim": 10, "bags": 6, "most": 7, "column_parts": parts}
        yield "EmbeddingBags", "", given, {"b": 6, "L": 7, "c": ceil(10 / parts)}
    yield "TaskPool", "", {"places": 100}, {"t": 128}


def training(n):
    for size, buckets in ((1000, (300, 0, 700)), (2_000_000, None)):
        given = {"dtype": "bfloat16", "gradient_dtype": "float32", "size": size}
        largest = part(max(buckets or (size,)), n)
        letters = {"p": piece(largest), "G": 4, "S": 2}
        yield "ZeroAdam", "", given | {"buckets": buckets}, letters
        yield "ZeroAdam", "clip=", given | {"buckets": buckets, "clip": 1.0}, letters
    p = piece(ceil(5 / n) * 128)
    yield "ZeroMuon", "", {"shapes": [(8, 16)] * 5, "dtype": "float32"}, {"p": p, "G": 4}
    yield "PipelineExchange", "", SINGLE | {"shape": (5, 8), "window": 3}, {"w": 3, "m": 40}
    stage = {"rows": 4, "hidden": 8, "layers": 1, "microbatches": 4, "window": 3}
    yield "PipelinedLayers", "", SINGLE | stage, {"w": 3, "R": 4, "H": 8}


def products(n):
    sizes, tile, library = SINGLE | {"m": 20, "n": 40, "k": 16}, (8, 16), {"method": "library"}
    shard = {"m": 20, "k": 16}
    yield "AllGatherGemm", '"kernel"', sizes | {"tile": tile}, shard | {"T": 3}
    yield "AllGatherGemm", '"library"', sizes | library, shard
    codes = {"dtype": "float8_e4m3fn", "out_dtype": "float32", "row_scales": True, "n": 48}
    yield "AllGatherGemm", "row_scales=", sizes | codes, shard | {"S": 1}
    yield "GemmReduceScatter", '"kernel"', sizes | {"tile": tile}, {"t": 7 * 14}
    yield "GemmReduceScatter", '"library"', sizes | library, {"c": 20 * 40}
    yield "GemmReduceScatter", "at once", sizes | {"m": 4}, {"t": 4 * 40}
    t = {1: 7, 2: 5, 3: 7}[n] * 14
    yield "GemmAllReduce", '"kernel"', sizes | {"tile": tile}, {"t": t}
    parts = {"m": 20, "w": 40, "P": 3, "c": ceil(8 / n) * 40}  # of 8, 8 and 4 rows
    yield "GemmAllReduce", '"library"', sizes | library | {"tile": tile}, parts
    yield "GemmAllReduce", "in_place=", sizes | {"in_place": True, "tile": tile}, parts
    yield "GemmAllReduce", "at once", sizes, {"t": 20 * 40}


def experts(n):
    sizes = {"tokens": 8, "hidden": 72, "experts": 5, "top_k": 2, "dtype": "float16"}
    letters = {"t": 8, "k": 2, "H": 72, "L": ceil(5 / n), "S": 2}
    for c in (8, 2):
        given, known = sizes | {"capacity": c}, letters | {"c": c}
        for method in ("kernel", "library"):
            yield "MoE", "", given | {"inner": 16, "method": method}, known
        for wire, r in ((None, 144), ("int8", narrow(72))):
            for form in ("low_latency", "throughput"):
                options = given | {"form": form, "wire": wire}
                yield "ExpertParallel", f'"{form}"', options, known | {"r": r}


def attention(n):
    sizes = SINGLE | {"tokens": 6, "heads": 12, "kv_heads": 6, "head_dim": 8}
    letters = {"t": 6, "G": 6, "D": 8}
    for method in ("kernel", "library"):
        for name in ("RingAttention", "RingAttentionBackward"):
            yield name, f'"{method}"', sizes | {"method": method}, letters
    given = SINGLE | {"tokens": 6, "head_dim": 8, "heads": (12, 6, 6)}
    yield "Ulysses", "", given, letters | {"h": 24}
    split, join = (taken("Ulysses", n=n, B=1, t=6, D=8, h=h) for h in (24, 12))
    ring = taken("RingAttention", '"kernel"', n=1, t=6 * n, G=6 // n, D=8)
    yield "ContextParallel", "", sizes, {"split": split, "join": join, "ring": ring}


def serving(n):
    cache = SINGLE | {"pages": 5, "page_size": 4, "kv_heads": 4, "head_dim": 8}
    given = cache | {"layers": 3, "requests": 2, "most_pages": 4, "decode": (n - 1,)}
    given |= {"prefill": tuple(range(max(1, n - 1))), "prefill_tp": max(1, n - 1)}
    known = {"l": 3, "P": 5, "g": 4, "h": 4, "D": 8, "s": 2, "M": 4, "I": 1}
    yield "KVTransfer", "", given, known | {"T": given["prefill_tp"]}
    given = cache | {"batch": 2, "queries": 3, "heads": 8, "splits": 2}
    for splits, heads in ((False, 8), (True, 2 * ceil(4 / n))):
        letters = {"s": 2, "q": 2 * 3 * heads, "D": 8}
        yield "FlashDecode", "", given | {"split_heads": splits}, letters


def on_nodes_of_two():
    """Two of them; blocks of the plans for numbers of rows are one."""
    given = SINGLE | {"size": 400_001, "algorithm": "two_level"}
    size = part(400_001, 2)
    inside = taken("AllGather", n=2, p=piece(size))
    across = taken("AllReduce", '"one_shot"', n=2, p=piece(size))
    yield "AllReduce", '"two_level"', given, {"inside": inside, "across": across}
    given = SINGLE | {"rows": 64, "algorithm": "two_level"}
    numbers = taken("AllToAll", n=2, B=1, S=8, p=2)
    inside, across = (numbers + taken("AllToAllV", n=2, r=part(k * 64, 2)) for k in (1, 2))
    yield "AllToAllV", '"two_level"', given, {"inside": inside, "across": across}


def cases(n, me=0):
    """Class, what else its row says, what a plan is made with, what letters mean then."""
    if n == 4:
        yield from on_nodes_of_two()
        return
    every = sums_and_copies, rows_and_keys, cut_arrays, training, products, experts, attention
    for some in (*every, serving):
        yield from some(n)
    yield from irregular(n, me)


def test_each_plan_has_a_formula_and_each_formula_a_plan():
    plans = {
        name for name in kernels.__all__
        if hasattr(getattr(kernels, name), "free") and name not in ("Arena", "Plan")
    }  # fmt: skip
    assert {name for name, _ in FORMULAS} == plans
    assert {case[:2] for n in (1, 2, 3, 4) for case in cases(n)} == set(FORMULAS)


def make(name, options):
    made = getattr(kernels, name)
    if name == "ContextParallel":
        options["rows"], options["columns"] = shmem.TEAM_WORLD.split_2d(shmem.n_pes())
    return made(**options, blocks=B)


def said(plan):
    plans = [plan] if isinstance(plan, kernels.Plan) else [plan.split, plan.join, plan.ring]
    return sum(int(re.search(r"(\d+) bytes on the heap", p.describe())[1]) for p in plans)


@pytest.mark.cpu_backend
@pytest.mark.parametrize(("n_pes", "n_nodes"), [(1, 1), (2, 1), (3, 1), (4, 2)])
def test_no_plan_takes_more_than_its_formula(run_pes, on_nodes, n_pes, n_nodes):
    on_nodes(n_nodes)

    def body():
        shmem.init()
        n, wrong = shmem.n_pes(), []
        for name, rest, options, letters in cases(n, shmem.my_pe()):
            before = shmem.heap_stats()
            plan = make(name, options)
            if "gather" in rest:
                plan.gather(plan.scatter(np.zeros((14, 12), "float32")))
            after = shmem.heap_stats()
            arrays = len(after.allocations) - len(before.allocations)
            formula, used = taken(name, rest, n=n, **letters), after.used - before.used
            if said(plan) != formula or not formula <= used <= formula + 256 * arrays:
                wrong.append((name, rest, options, formula, said(plan), used))
            plan.free()
            assert shmem.heap_stats().used == before.used, name
        shmem.finalize()
        return wrong

    with mock.patch("gpushmem.kernels.attention_library.Library"):  # PyTorch's
        found = run_pes(body, n_pes)
    assert found == [[]] * n_pes
