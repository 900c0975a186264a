"""The kernels of compilers.py, launched by gpushmem, by numba-cuda and by numba-cuda-mlir.

gpushmem run -n 1 bench/gpu/both.py

Each is written for one compiler and for the other (but `arguments`, which names neither);
GPUSHMEM_COMPILER makes all by one. What they
leave is compared with NumPy's result. A kernel that fails is told, and the next one begins.
"""

import os
import sys
import time
import traceback

import numba.cuda
import numba_cuda_mlir.cuda
import numpy as np
from compilers import CASES, COMPILERS, WITH_NVSHMEM, kernels

import gpushmem as shmem
from gpushmem.artifacts.compiler_choice import written_for

MODULES = dict(zip(COMPILERS, (numba.cuda, numba_cuda_mlir.cuda), strict=True))


def place(value, symmetric):
    """An argument of a launch: arrays are copied to the GPU; `strided` with what is between."""
    if not isinstance(value, np.ndarray):
        return value
    if symmetric:
        return shmem.array(value)
    if value.flags.c_contiguous:
        return shmem.to_device(value)
    return shmem.to_device(value.base.reshape(len(value), -1))[:, 1:7:2]  # see `arguments_data`


def launched(name, kernel):
    """Whether a kernel's results are right; and the seconds of its first launch."""
    given, wanted, (grid, block), _ = CASES[name]()
    parts = kernel.py_func.__code__.co_varnames
    args = {n: place(v, name in WITH_NVSHMEM) for n, v in zip(parts, given, strict=False)}
    began = time.perf_counter()
    kernel[grid, block](*args.values())
    shmem.synchronize()
    took = time.perf_counter() - began
    right = all(np.allclose(args[n].numpy(), wanted[n]) for n in wanted)
    if name == "fetch_add":  # each number once
        right = (np.sort(args["found"].numpy()) == np.arange(args["found"].size)).all()
    return bool(right), took


def made_by(kernel, compiler):
    """Whether a kernel on the GPU is that compiler's; True elsewhere."""
    prepared = kernel._prepared.get("nvshmem")
    return prepared is None or {code.mlir for code in prepared._loaded.values()} == {
        compiler == COMPILERS[1]
    }


def main():
    shmem.init(heap_size="64M")
    failed = 0
    for which, cuda in MODULES.items():
        for name, function in kernels(cuda, shmem).items():
            by = os.environ.get("GPUSHMEM_COMPILER") or written_for(function)
            kernel = shmem.jit(function)
            try:
                right, took = launched(name, kernel)
            except Exception:
                traceback.print_exc()
                right, took = False, 0.0
            its = made_by(kernel, by)
            failed += not (right and its)
            said = "right" if right else "WRONG"
            print(
                f"{name}, for {which}, by {by}: {said}{'' if its else ', NOT MADE BY IT'}, "
                f"first launch {took:.2f} s",
                flush=True,
            )
    print(f"{2 * len(CASES) - failed} right, {failed} not", flush=True)
    shmem.finalize()
    sys.exit(failed > 0)


main()
