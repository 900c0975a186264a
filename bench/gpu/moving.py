"""How fast a GPU copies by `copy_block`, sums by `reduce_rows_block`, and multiplies in plans.

gpushmem run --backend nvshmem -n N --heap-size 1G bench/gpu/moving.py [--rehearse]

Beside the driver's copy of the same bytes, and as a share of what the memory can do at most;
products beside PyTorch's of the same matrices, where it is installed. With several PEs all-reduces
instead, of each algorithm beside one shot. Each line says which figure is expected. A rehearsal, on
any backend, has few bytes, and neither driver nor PyTorch.
"""

import json
import sys
import time

import numpy as np
from gpushmem.kernels import AllGatherGemm, AllReduce, part_of
from gpushmem.kernels.all_reduce import SUMMING
from numba import cuda

import gpushmem as shmem

REHEARSE = "--rehearse" in sys.argv
MiB = 1 << 20
SIZES = (MiB // 16,) if REHEARSE else (16 * MiB, 64 * MiB)
SOURCES, THREADS = 8, 512
SIDE = 64 if REHEARSE else 8192
GRIDS = (2,) if REHEARSE else (66, 132, 264, 528)
TIMES, ROUNDS = (2, 2) if REHEARSE else (20, 7)
DTYPES = "float32", "float16"
# Of one shot's time: no fence, no signals; a fence and a signal are most of a small message.
EXPECTED = {("ll", 8 << 10): "ratio 0.7"}


@shmem.jit
def copy_parts(dst, src):
    first, last = part_of(dst.size, cuda.gridDim.x, cuda.blockIdx.x)
    shmem.copy_block(dst[first:last], src[first:last])


@shmem.jit
def sum_parts(dst, rows):
    first, last = part_of(dst.size, cuda.gridDim.x, cuda.blockIdx.x)
    shmem.reduce_rows_block(dst[first:last], rows[:, first:last], "sum")


def seconds(work):
    """The best of some rounds, of one of so many launches."""
    best = float("inf")
    for _ in range(1 + ROUNDS):
        shmem.synchronize()
        began = time.perf_counter()
        for _ in range(TIMES):
            work()
        shmem.synchronize()
        best = min(best, (time.perf_counter() - began) / TIMES)
    return best


def on_grids(kernel, *args):
    """The best of some grids: blocks, and seconds."""
    took = {grid: seconds(lambda g=grid: kernel[g, THREADS](*args)) for grid in GRIDS}
    grid = min(took, key=took.get)
    return grid, took[grid]


def driver_copy(dst, src, nbytes):
    """Seconds of the driver's copy, and bytes a second that the memory can do; in a rehearsal 0."""
    if REHEARSE:
        return 0.0, 0.0
    from cuda.bindings import driver
    from side import check, native

    attribute = driver.CUdevice_attribute
    clock, width = (
        check(driver.cuDeviceGetAttribute(getattr(attribute, name), 0), name)
        for name in (
            "CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE", "CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH",
        )
    )  # fmt: skip
    to, source = native(dst).address, native(src).address
    took = seconds(lambda: check(driver.cuMemcpyDtoDAsync(to, source, nbytes, 0), "memcpy"))
    return took, 2 * clock * 1e3 * width / 8


def say(what, nbytes, moved, grid, took, copied, most, expected):
    """One line; `moved`: bytes that are read and written."""
    line = {"what": what, "bytes": nbytes, "grid": grid, "ours": took, "expected": expected}
    if copied:
        line |= {"memcpy": copied, "ratio": took / copied}
    if most:
        line |= {"share": moved / took / most}
    print(json.dumps(line), flush=True)


def products():
    """A product through the plan with one PE, method "library", and PyTorch's."""
    for dtype in "float16", "bfloat16", "float32":
        a, b, out = (shmem.device_array((SIDE, SIDE), dtype) for _ in range(3))
        a.copy_from(1)
        b.copy_from(1)
        with AllGatherGemm(m=SIDE, n=SIDE, k=SIDE, dtype=dtype, method="library") as plan:
            took = seconds(lambda p=plan, x=a, y=b, z=out: p(x, y, out=z))
        assert (out.numpy()[0].astype(float) == SIDE).all()
        line = {"what": f"AllGatherGemm, {dtype}", "side": SIDE, "ours": took, "expected": 1.1}
        if not REHEARSE:
            import torch

            left, right, to = map(torch.from_dlpack, (a, b, out))
            theirs = seconds(lambda x=left, y=right, z=to: torch.matmul(x, y, out=z))
            line |= {"torch": theirs, "ratio": took / theirs}
        print(json.dumps(line), flush=True)


def all_reduces():
    """The algorithms beside one shot: a call with its launch, and one of many in a row."""
    me, n = shmem.my_pe(), shmem.n_pes()
    for nbytes in (8 << 10, MiB) if REHEARSE else (8 << 10, 64 << 10, MiB, 16 * MiB):
        took = {}
        for algorithm in SUMMING:
            size = nbytes // 2
            x = shmem.zeros(size, "float16")
            with AllReduce(size=size, dtype="float16", algorithm=algorithm) as plan:
                x.copy_from(me + 1)
                plan(x)
                assert (x.numpy() == n * (n + 1) // 2).all()
                x.copy_from(0)
                shmem.barrier_all()
                took[algorithm] = seconds(lambda p=plan, y=x: p(y))
            shmem.free(x)
            line = {"what": f"AllReduce, {algorithm}", "pes": n, "bytes": nbytes}
            line |= {"ours": took[algorithm], "ratio": took[algorithm] / took["one_shot"]}
            line["expected"] = EXPECTED.get((algorithm, nbytes), "none: PEs share the memory")
            if me == 0:
                print(json.dumps(line), flush=True)


def main():
    shmem.init()
    if shmem.n_pes() > 1:
        all_reduces()
        shmem.finalize()
        return
    products()
    for nbytes in SIZES:
        for dtype in DTYPES:
            n = nbytes // np.dtype(dtype).itemsize
            rows, dst = shmem.device_array((SOURCES, n), dtype), shmem.device_array(n, dtype)
            rows.copy_from(np.tile(np.arange(1, SOURCES + 1)[:, None], n).astype(dtype))
            copied, most = driver_copy(dst, rows[0], nbytes)
            grid, took = on_grids(copy_parts, dst, rows[0])
            assert (dst.numpy() == 1).all()
            say(f"copy_block, {dtype}", nbytes, 2 * nbytes, grid, took, copied, most, "ratio 1.05")
            grid, took = on_grids(sum_parts, dst, rows)
            assert (dst.numpy() == SOURCES * (SOURCES + 1) // 2).all()
            what, moved = f"reduce_rows_block of {SOURCES}, {dtype}", (SOURCES + 1) * nbytes
            say(what, nbytes, moved, grid, took, 0.0, most, "share 0.85")
    shmem.finalize()


if __name__ == "__main__":
    main()
