"""Three kernels compiled, interpreted, and on Numba's CUDA simulator and Triton's interpreter.

python bench/simulators.py [--triton FOLDER] [--rounds N]

Each measurement is a process of its own (`--run WHAT`), in turns; of each the best round counts.
FOLDER is one that Triton is installed in, with the option `--target` of pip; it needs PyTorch.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from numba import cuda, float32  # the simulator replaces a name of the module's

REPEATS = 2
BLOCK, TILE = 256, 16
ADDED, BLOCKS, SIDE = 16 * BLOCK, 4, 2 * TILE
KERNELS = {
    "add": f"vector add, {ADDED:,} threads",
    "reduce": f"block reduction, {BLOCKS} blocks of {BLOCK} threads",
    "multiply": f"matrix product in shared memory, {SIDE} x {SIDE}, {TILE} x {TILE} threads",
}
PEERS = {"simulator": "CUDA simulator", "triton": "Triton's interpreter"}
TOGETHER = {"compiled": "the engine", "interpreted": "the interpreter"}


def arrays():
    """The arguments of each kernel, and what must be in the first one afterwards."""
    random = np.random.default_rng(1)
    x, y = random.random((2, ADDED)).astype(np.float32)
    many = random.random(BLOCKS * BLOCK).astype(np.float32)
    a, b = random.random((2, SIDE, SIDE)).astype(np.float32)
    return {
        "add": ((np.zeros_like(x), x, y), x + y),
        "reduce": ((np.zeros(BLOCKS, np.float32), many), many.reshape(BLOCKS, BLOCK).sum(1)),
        "multiply": ((np.zeros_like(a), a, b), a @ b),
    }


def numba_kernels():
    """A launch of each kernel, as functions of its arguments."""

    @cuda.jit
    def add(out, x, y):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = x[i] + y[i]

    @cuda.jit
    def reduce(out, x):
        shared = cuda.shared.array(BLOCK, float32)
        t = cuda.threadIdx.x
        shared[t] = x[cuda.grid(1)]
        cuda.syncthreads()
        half = BLOCK // 2
        while half > 0:
            if t < half:
                shared[t] += shared[t + half]
            cuda.syncthreads()
            half //= 2
        if t == 0:
            out[cuda.blockIdx.x] = shared[0]

    @cuda.jit
    def multiply(out, a, b):
        left = cuda.shared.array((TILE, TILE), float32)
        right = cuda.shared.array((TILE, TILE), float32)
        i, j = cuda.grid(2)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        total = float32(0)
        for first in range(0, a.shape[1], TILE):
            left[x, y] = a[i, first + y]
            right[x, y] = b[first + x, j]
            cuda.syncthreads()
            for k in range(TILE):
                total += left[x, k] * right[k, y]
            cuda.syncthreads()
        out[i, j] = total

    tiles = (SIDE // TILE, SIDE // TILE), (TILE, TILE)
    return {
        "add": lambda *args: add[ADDED // BLOCK, BLOCK](*args),
        "reduce": lambda *args: reduce[BLOCKS, BLOCK](*args),
        "multiply": lambda *args: multiply[tiles](*args),
    }


def triton_kernels():
    import torch
    import triton
    from triton import language as tl

    @triton.jit
    def add(out, x, y, n, size: tl.constexpr):
        i = tl.program_id(0) * size + tl.arange(0, size)
        inside = i < n
        tl.store(out + i, tl.load(x + i, inside) + tl.load(y + i, inside), inside)

    @triton.jit
    def reduce(out, x, size: tl.constexpr):
        block = tl.program_id(0)
        tl.store(out + block, tl.sum(tl.load(x + block * size + tl.arange(0, size)), 0))

    @triton.jit
    def multiply(out, a, b, n, tile: tl.constexpr):
        i = tl.program_id(0) * tile + tl.arange(0, tile)[:, None]
        j = tl.program_id(1) * tile + tl.arange(0, tile)[None, :]
        total = tl.zeros((tile, tile), tl.float32)
        for first in range(0, n, tile):
            k = first + tl.arange(0, tile)
            total += tl.dot(tl.load(a + i * n + k[None, :]), tl.load(b + k[:, None] * n + j))
        tl.store(out + i * n + j, total)

    def on_tensors(launch):
        return lambda *args: launch(*map(torch.from_numpy, args))

    tiles = SIDE // TILE, SIDE // TILE
    return {
        "add": on_tensors(lambda out, x, y: add[ADDED // BLOCK,](out, x, y, ADDED, BLOCK)),
        "reduce": on_tensors(lambda out, x: reduce[BLOCKS,](out, x, BLOCK)),
        "multiply": on_tensors(lambda out, a, b: multiply[tiles](out, a, b, SIDE, TILE)),
    }


def times(kernels):
    """CPU seconds of each kernel, with copies; the first launch compiles, and is not timed."""
    found = {}
    for name, (args, expected) in arrays().items():
        kernels[name](*args)
        np.testing.assert_allclose(args[0], expected, rtol=1e-4)
        found[name] = float("inf")
        for _ in range(REPEATS):
            began = time.process_time()
            kernels[name](*args)
            found[name] = min(found[name], time.process_time() - began)
    return found


def run(what):
    if what == "triton":
        return times(triton_kernels())
    if what == "simulator":
        return times(numba_kernels())
    from gpushmem.simt.numba_cuda import patch_numba_cuda

    with patch_numba_cuda(interpret=what == "interpreted"):
        return times(numba_kernels())


def measure(what, triton):
    """The same in a process of its own."""
    env = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1" if what == "simulator" else "0"}
    env |= {"TRITON_INTERPRET": "1"}
    if triton:
        env["PYTHONPATH"] = os.pathsep.join([env.get("PYTHONPATH", ""), triton])
    command = [sys.executable, "-W", "ignore", __file__, "--run", what]
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def rows(best):
    from harness import row

    for peer, against in PEERS.items():
        for name, what in KERNELS.items():
            for ours, how in TOGETHER.items():
                if peer in best:
                    pair = best[ours][name], best[peer][name]
                    yield row(f"{what}, {how}", pair[0], against, pair[1], "", pair[1] / pair[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--triton", metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        print(json.dumps(run(args.run)))
        return
    sys.path.insert(0, str(Path(__file__).parent))
    from harness import report

    what = [*PEERS, *TOGETHER] if args.triton else ["simulator", *TOGETHER]
    best = {}
    for _ in range(args.rounds):
        for each in what:
            found = measure(each, args.triton)
            before = best.setdefault(each, found)
            best[each] = {name: min(before[name], found[name]) for name in found}
    report("simulators", list(rows(best)))


if __name__ == "__main__":
    main()
