"""What a GPU counts in the inner loops of the ready kernels, by Nsight Compute, with one PE.

python bench/gpu/counters.py [--rehearse] [FAMILY...]

Runs the largest case of each family of bench/kernels (and `copy_block`, `reduce_rows_block`) under
`ncu`. A line for each kernel: bytes that a warp's loads and stores move at once, in means (512 are
16 a lane; arguments and ends are less), sectors of local memory (none: nothing is spilled), bytes
from and to HBM, as a share of what it can do, warps and registers; and which figures are expected.
The exit status is 1 if one is missed. A rehearsal runs the calls without `ncu`, on any backend.
"""

import csv
import json
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
GLOBAL = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_{}.ratio"
LOCAL = "l1tex__t_sectors_pipe_lsu_mem_local_op_{}.sum"
SECTOR = 32  # bytes
# What a line says: its metric, and by what it is multiplied.
METRICS = {
    "load": (GLOBAL.format("ld"), SECTOR), "store": (GLOBAL.format("st"), SECTOR),
    "spilled": (LOCAL.format("ld"), 1), "spills": (LOCAL.format("st"), 1),
    "read": ("dram__bytes_read.sum", 1), "written": ("dram__bytes_write.sum", 1),
    "share": ("dram__throughput.avg.pct_of_peak_sustained_elapsed", 0.01),
    "warps": ("sm__warps_active.avg.pct_of_peak_sustained_active", 0.01),
    "registers": ("launch__registers_per_thread", 1), "ns": ("gpu__time_duration.sum", 1),
}  # fmt: skip
WIDE = {"load": 400, "store": 400}  # of 512: some are of arguments, of ends
NOTHING = {"spilled": 0, "spills": 0}
# Kernels, and what is expected of them at least; of all of them, that nothing is spilled.
FAMILIES = {
    "moved": {"copy_parts": WIDE | {"share": 0.85}, "sum_parts": WIDE | {"share": 0.85}},
    "all_reduce_norm": {"all_reduce_norm": WIDE},
    "zero": {"in_one_pass": WIDE},
    "muon": {"momentum": WIDE, "normalised": WIDE, "polynomial": WIDE},
    "all_to_all_v": {"exchange_rows": WIDE},
    "moe": {"combine": WIDE},
    "flash_decode": {"flash_decode": {"load": 400}},
    "embedding": {"embed_by_lanes": WIDE},
    "jacobi": {"iterate": WIDE},
    "fft": {"in_tiles": {"load": 200, "store": 200}},  # 8 bytes a lane
    "spmv": {"multiply": {"load": 100}},  # 4 bytes a lane
    "sort": {"count": {}, "place": {}},  # scattered, as are those of bfs
    "bfs": {"search": {}},
}


def moved():
    """A copy and a sum of 8 sources, of 64 MiB each, as `moving` has them."""
    from moving import GRIDS, SIZES, SOURCES, THREADS, copy_parts, sum_parts

    import gpushmem as shmem

    rows = shmem.device_array((SOURCES, SIZES[-1] // 2), "float16")
    rows.copy_from(1)
    dst = shmem.device_array(rows.shape[1:], "float16")
    copy_parts[GRIDS[-1], THREADS](dst, rows[0])
    sum_parts[GRIDS[-1], THREADS](dst, rows)
    assert (dst.numpy() == SOURCES).all()


def run(families, rehearse):
    """In one PE: the calls."""
    sys.path += [str(HERE.parent / "kernels"), str(HERE.parent)]
    import gpushmem as shmem

    shmem.init(heap_size="1G")
    for family in families:
        print("counters:", family, file=sys.stderr, flush=True)
        if family == "moved":
            moved()
            continue
        module = import_module(family)
        plan, call = module.fused(module.CASES[0 if rehearse else -1])
        for _ in range(2):  # the second time nothing has to be set up
            call()
        shmem.synchronize()
        plan.free()
    shmem.finalize()


def counted(text):
    """What `ncu` has printed: for each launch the kernel's name, and values by metric."""
    rows = csv.DictReader(line for line in text.splitlines() if line.startswith('"'))
    launches = {}
    for row in rows:
        _, values = launches.setdefault(row["ID"], (row["Kernel Name"], {}))
        found = row["Metric Value"].replace(",", "")
        values[row["Metric Name"]] = float(found) if re.fullmatch(r"[\d.e+-]+", found) else None
    return list(launches.values())


def judged(launches, families):
    """A line for each kernel, of its last launch, with what it has missed."""
    for family in families:
        for kernel, least in FAMILIES[family].items():
            found = [values for name, values in launches if re.search(rf"\b{kernel}\b", name)]
            line = {"family": family, "kernel": kernel, "expected": least | NOTHING}
            if not found:
                yield line | {"missed": ["it was not launched"]}
                continue
            for what, (metric, factor) in METRICS.items():
                value = found[-1].get(metric)
                line[what] = None if value is None else value * factor
            missed = [what for what, value in least.items() if (line[what] or 0) < value]
            missed += [what for what in NOTHING if line[what] != 0]
            yield line | {"missed": missed}


def main():
    rehearse, running = "--rehearse" in sys.argv, "--run" in sys.argv
    families = [word for word in sys.argv[1:] if not word.startswith("-")] or list(FAMILIES)
    if running or rehearse:
        run(families, rehearse)
        return
    if shutil.which("ncu") is None:
        sys.exit("counters: there is no ncu on PATH: it comes with the CUDA toolkit")
    names = "|".join(kernel for family in families for kernel in FAMILIES[family])
    done = subprocess.run(
        [
            "ncu", "--csv", "--print-units", "base", "--target-processes", "all", "--metrics",
            ",".join(metric for metric, _ in METRICS.values()), "--kernel-name",
            f"regex:({names})", sys.executable, __file__, "--run", *families,
        ],
        stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    lines = list(judged(counted(done.stdout), families))
    for line in lines:
        print(json.dumps(line), flush=True)
    if done.returncode:
        print(done.stdout[-3000:], file=sys.stderr)
    sys.exit(done.returncode or int(any(line["missed"] for line in lines)))


if __name__ == "__main__":
    main()
