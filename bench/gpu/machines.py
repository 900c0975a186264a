"""The machines that predictions are for: each figure with its source.

What can be had from one GPU was measured by bench/gpu on an H100 (bench/results/gpu-h100.json), and
is derived here; what is of a data sheet is a limit; the rest is assumed, and says so.
"""

import json
from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).parents[1] / "results"
ROWS = json.loads((RESULTS / "gpu-h100.json").read_text())["rows"]


class Figure(NamedTuple):
    """A number in SI units, and where it is from."""

    value: float
    source: str


def _measured(what, nbytes, key="ours"):
    (row,) = (
        r for r in ROWS
        if (r["what"], r.get("bytes")) == (what, nbytes) and r["n_pes"] == 1 and key in r
    )  # fmt: skip
    return row[key]


ONE_WAY = next(r["ours"] for r in ROWS if r["what"].startswith("signal ping-pong"))
LARGE, SMALL = 256 << 20, 2 << 20
TRIP = 256 * 16  # bytes that a block of 256 threads has under way in NVSHMEM's copy
HBM_TRIP = _measured("put_block", LARGE) / (LARGE / TRIP)
L2_TRIP = _measured("put_block", SMALL) / (SMALL / TRIP)
FENCE = _measured("put_block and quiet", 8) - _measured("put_block", 8)
COPIED = 2 * LARGE / _measured("put_block in parts, beside memcpy", LARGE, "memcpy")
LAUNCH = _measured("put_block in parts, beside memcpy", 64 << 10) - HBM_TRIP
L2_RATE = 2 * (16 << 20) / (_measured("put_block in parts, beside memcpy", 16 << 20) - LAUNCH)
REACHED = COPIED / 3.35e12  # of HBM, by the driver's copy

H100 = "NVIDIA H100 data sheet, SXM5"
B200 = "NVIDIA HGX B200 data sheet"
OURS = "measured by us on one H100 (gpu-h100.json)"
AS_H100 = f"as on an H100, assumed; there: {OURS}"
MATMULS = "bf16, the best shape, github.com/stas00/ml-engineering, compute/accelerator, MAMF"
FLASH = "FlashAttention-2 on an H100, 35 % of its tensor cores' rate (Shah et al., 2024, abstract)"
LINKS = "p2pBandwidthLatencyTest on 8 x H100: 375 of 450 GB/s (github.com/NVIDIA/nccl, issue 1264)"

MACHINES = {
    "H100": {
        "capability": Figure(9, "CUDA C++ Programming Guide: compute capability 9.0"),
        "multiprocessors": Figure(132, H100),
        "hbm": Figure(3.35e12, H100),
        "link": Figure(450e9, f"{H100}: NVLink 4, one direction"),
        "float16 rate": Figure(989e12, f"{H100}: tensor cores, dense"),
        "float32 rate": Figure(67e12, H100),
        "matmul reached": Figure(794.5 / 989, f"{MATMULS}: 794.5 of 989 TFLOP/s"),
        "attention reached": Figure(0.35, FLASH),
        "nic": Figure(50e9, "ConnectX-7, 400 Gbit/s, one for each GPU"),
        "l2": Figure(50e6, H100),
        "hbm reached": Figure(REACHED, f"{OURS}: the driver's copy of 256 MiB"),
        "link reached": Figure(375 / 450, LINKS),
        "l2 rate": Figure(L2_RATE, f"{OURS}: put_block in parts, 16 MiB"),
        "hbm trip": Figure(HBM_TRIP, f"{OURS}: put_block of one block, 256 MiB"),
        "l2 trip": Figure(L2_TRIP, f"{OURS}: put_block of one block, 2 MiB"),
        "clock": Figure(1.98e9, f"{OURS}: clocks.max.sm of nvidia-smi"),
        "l1 trip": Figure(20e-9, "some 40 clocks at 1.98 GHz, assumed"),
        "fence": Figure(FENCE, f"{OURS}: put_block of 8 bytes with quiet, and without"),
        "one way": Figure(ONE_WAY, f"{OURS}: signal ping-pong of 2 PEs on one GPU, with the wait"),
        "wire": Figure(0.5e-6, "NVLink and switch, one direction, beyond that: assumed"),
        "launch": Figure(LAUNCH, f"{OURS}: a graph of launches, 64 KiB each, without the copy"),
    },
}
MACHINES["B200"] = {
    name: Figure(figure.value, AS_H100) for name, figure in MACHINES["H100"].items()
} | {
    "capability": Figure(10, "CUDA C++ Programming Guide: compute capability 10.0"),
    "multiprocessors": Figure(148, "chipsandcheese.com, Nvidia's B200: 2 x 74"),
    "hbm": Figure(8e12, B200),
    "link": Figure(900e9, f"{B200}: NVLink 5, one direction"),
    "float16 rate": Figure(2.25e15, f"{B200}: tensor cores, dense"),
    "float32 rate": Figure(80e12, B200),
    "matmul reached": Figure(1745 / 2250, f"{MATMULS}: 1745 of 2250 TFLOP/s"),
    "attention reached": Figure(
        0.35 * 989 / 2250 * 148 / 132, "as fast for each multiprocessor as on an H100, assumed"
    ),
    "nic": Figure(50e9, "ConnectX-7, 400 Gbit/s, one for each GPU"),
    "l2": Figure(126e6, "chipsandcheese.com, Nvidia's B200: 126 MB"),
    "l2 rate": Figure(L2_RATE * 8 / 3.35, "as many times that of HBM as on an H100, assumed"),
}
