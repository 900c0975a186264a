"""The tables of predictions in docs/kernels.md, of bench/results/predictions.json.

`python docs/make_tables.py` writes them, `python -m bench.gpu.predict` makes the data.
"""

import json

from harness import RESULTS, seconds
from pages import table

ALL = json.loads((RESULTS / "predictions.json").read_text())
DTYPES = {row["kernel"]: row["dtype"] for row in reversed(ALL["rows"])}  # the first; others: data
SIZES = {8 << 10: "8 KiB", 256 << 10: "256 KiB", 16 << 20: "16 MiB", 256 << 20: "256 MiB"}
LARGE = 16 << 20
AIM, TRIPS = 0.8, 3
PARTS = "products", "sums", "launches", "waits"
WHY = """
Where that is less than 85%: parts fill the multiprocessors in more waves than the whole (a B200's
148, above all); each product has a launch of its own; sums take their time behind the last product;
and what an all-reduce sends takes NVLink as long as the products take, on a B200 longer (89% would
be the most): its last parts have nothing to overlap with, and are sent twice. With 16384 rows on an
H100 it had 62% when all sums came behind all products, in parts of rows it has 72%, and in place,
where nothing is copied, 76%; more and smaller parts cost the products more than they save.
"""
HEAD = """
These are predictions, of [bench/gpu/predict.py](../bench/gpu/predict.py): no machine with several
GPUs was at hand. Registers, shared memory, loops and fences are read from the machine code that is
linked for sm_90a and sm_100a; passes, bytes and messages follow from the algorithms; rates and
latencies are those of [bench/gpu/machines.py](../bench/gpu/machines.py), each with its source. A
block's pieces follow each other: a piece is its passes over memory, its fences, its signals' ways.
The time is a launch and the longest of: the pieces of a block, the bytes on NVLink, those of HBM,
those of the L2 cache, and of `FlashDecode` the instructions of the loop over keys; of `FFT`, with
its instructions and shared memory, and of `EmbeddingBags` the sum over their phases. The limit is
NVLink's, HBM's or the tensor cores' by the data sheet; copies of the driver reach {link:.0%} of
NVLink's, {hbm:.0%} of HBM's.

Products of {rows} rows are those of `method="kernel"`, without cuBLASDx; the others are the
library's: tiles of 128 x 256, one on a multiprocessor at a time, in waves, at the rate that its
best product reaches ({h100:.0%} of the data sheet's on an H100, {b200:.0%} on a B200), a launch for
each product; copy engines send meanwhile, as fast as the driver's copies between GPUs. Those of
`MoE library`, of 64 rows for each expert, take as long as HBM does for the weights.

Left out: PEs that begin late, links and banks that several use at once, what overlaps between
blocks of one multiprocessor, lines of a cache that are evicted before they are used. So times are
rather too short where something is busy for more than half of them; take the order of the kernels
from here, not the times. Of copies by many blocks of one H100, five sizes, the model gives what was
measured within 11 %; two of them are what its launch and the L2 cache's rate were taken from
(`tests/nvshmem/machine/test_kernels.py`). What threads have under way in LL, and how many fences a
piece meets, is from the source, not read from machine code. One way over NVLink is assumed (0.5 us
beyond a signal within one GPU), and a B200's latencies are an H100's.

"""


def text():
    """All of it."""
    reached = {what: ALL["machines"]["H100"][f"{what} reached"][0] for what in ("link", "hbm")}
    for name, machine in ALL["machines"].items():
        reached[name.lower()] = machine["matmul reached"][0]
    tables = _times(), _products(), _missed(), _moved(), _code()
    return HEAD.format(**reached, rows=8) + "\n".join(tables)


def _rows(**wanted):
    return [
        row for row in ALL["rows"]
        if row["dtype"] == DTYPES[row["kernel"]] and all(row[k] == v for k, v in wanted.items())
    ]  # fmt: skip


def _representative():
    """A row for each kernel and machine: of the largest array that is not above 16 MiB."""
    rows = [row for row in _rows() if (row["bytes"] or 0) <= LARGE]
    return list({(row["kernel"], row["machine"]): row for row in rows}.values())


def _kernels():
    return list(dict.fromkeys(row["kernel"] for row in ALL["rows"]))


def _share(row):
    return row["limit"] / row["seconds"]


def _cell(row):
    small = row["bytes"] is not None and row["bytes"] < LARGE
    return seconds(row["seconds"]) + ("" if small else f", {_share(row):.0%}")


# --- tables


def _times():
    lines = []
    for kernel in _kernels():
        for machine in ALL["machines"]:
            found = {r["bytes"]: r for r in _rows(kernel=kernel, machine=machine)}
            cells = [_cell(found[n]) if n in found else "" for n in SIZES]
            if None in found:
                cells[2] = f"{_cell(found[None])} (one shape)"
            lines.append([f"`{kernel}`", machine, *cells])
    return (
        "Time of a call, float16 (transforms: complex64, SpMV: float32), and from 16 MiB on the "
        "share of the limit:\n\n"
    ) + table(["kernel", "8 x", *SIZES.values()], lines, 2)


def _products():
    """Products by the library, beside its own time for all of the product at once."""
    lines = []
    for row in _rows():
        if "library" in row:
            made = row["made of"]
            share = f"{row['library'] / row['seconds']:.0%}"
            times = (row["seconds"], row["library"], *(made[what] for what in PARTS))
            lines.append([f"`{row['kernel']}`", row["machine"], share, *map(seconds, times)])
    return (
        "Products by the library, float16: the share of what the library reaches alone, if all of "
        "a and b are there and nothing is summed up or sent; the time, that of the library alone, "
        "and what it is made of:\n\n"
        + table(["kernel", "8 x", "share", "time", "alone", *PARTS], lines, 2)
        + WHY
    )


def _moved():
    """Bytes for each byte of the largest array."""
    lines = []
    for row in _representative():
        if row["machine"] == "H100":
            per = row["bytes"] or row["sent"]
            far = 4 / 7 if "ring" not in row["kernel"] else 1
            moved = (row["hbm"], row["sent"], far * row["sent"])
            lines.append([
                f"`{row['kernel']}`", *(f"{n / per:.2f}" for n in moved),
                f"{row['round trips']:g}", str(row["pieces"]), str(row["blocks"]),
                row["bound by"],
            ])  # fmt: skip
    return (
        "Bytes for each byte of the largest array, 16 MiB (of LL 256 KiB; of products and "
        "mixtures: of what is sent); on a NIC if half of the PEs are on another machine. Round "
        "trips of a piece: one for each fence, half a one for each signal; pieces one after the "
        "other; blocks; what the time is bound by:\n\n"
    ) + table(
        ["kernel", "HBM", "NVLink", "NIC", "round trips", "pieces", "blocks", "bound by"], lines
    )


def _code():
    at = {(row["kernel"], row["machine"]): row for row in _representative()}
    lines = []
    for code in ALL["code"]:
        if code["dtype"] == DTYPES[code["kernel"]] and code["arch"] == "sm_90a":
            row = at[code["kernel"], "H100"]
            lines.append([
                f"`{code['kernel']}`", str(code["threads"]), str(code["registers"]),
                str(code["shared"]), str(code["spills"]), str(code["resident"]),
                f"{row['under way'] / 1024:.1f} of {row['wanted'] / 1024:.1f}",
                str(code["wide loops"]), str(code["narrow loops"]), str(code["fences"]),
            ])  # fmt: skip
    return (
        "Machine code for sm_90a, float16: registers of a thread; bytes of shared memory, and "
        "spilled; blocks that a multiprocessor holds; KiB under way on each multiprocessor in "
        "use, and what Little's law wants there; loops that move 16 bytes at a time, and those "
        "that move 1 or 2 (ends, and what is aligned unlike); fences of the system in the code, "
        "those for networks included:\n\n"
    ) + table(
        [
            "kernel", "threads", "registers", "shared", "spilled", "held", "under way",
            "wide", "narrow", "fences",
        ],
        lines,
    )  # fmt: skip


def _missed():
    """Kernels that miss an aim with the largest arrays, the worst first."""
    lines = []
    for row in _rows():
        small = row["bytes"] is not None and row["bytes"] < max(SIZES)
        taken = "one_shot" not in row["kernel"]  # by default, for arrays as large
        taken &= "library" not in row
        if taken and not small and _share(row) < AIM:
            longest = sorted(row["made of"], key=lambda what: -row["made of"][what])[:2]
            why = ", ".join(f"{w} {seconds(row['made of'][w])}" for w in longest)
            why = why if row["bound by"] == "blocks" else f"{row['bound by']}; launch"
            lines.append((_share(row), row, why))
    lines.sort(key=lambda line: line[0])
    cells = (
        [f"`{row['kernel']}`", row["machine"], f"{share:.1%}", why] for share, row, why in lines
    )
    slow = sorted({
        row["kernel"] for row in ALL["rows"]
        if row["bytes"] == min(SIZES) and row["round trips"] > TRIPS
    })  # fmt: skip
    return (
        f"Below {AIM:.0%} of the limit with 256 MiB or the one shape, the worst first, and what "
        "takes longest:\n\n"
        + table(["kernel", "8 x", "share", "because of"], cells, 2)
        + f"\nMore than {TRIPS} round trips for small messages: {', '.join(slow)}.\n"
    )
