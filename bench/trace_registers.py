"""What a trace adds to kernels for GPUs: `python bench/trace_registers.py [ARCH]`.

Registers and stack of a thread, from the assembler's log, and bytes of machine code, without a
trace and with one. Needs no GPU.
"""

import sys

from numba import cuda
from numba.cuda import types

import gpushmem as shmem
from gpushmem.backends.nvshmem.compile import aot

F32, U64, INT = types.float32[::1], types.uint64[::1], types.int64


def scale(x, n):
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        x[i] *= 2


def elements(x, n, pe):
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        shmem.p(x[i:], x[i], pe)


def adds(x, pe):
    shmem.atomic_add(x, 1, pe)


def ring(dst, src, signal, pe):
    shmem.put_signal_block(dst, src, signal, 1, shmem.SIGNAL_SET, pe)
    if cuda.threadIdx.x == 0:
        shmem.signal_wait_until(signal, shmem.CMP_GE, 1)
    cuda.syncthreads()


def meets(dst, src):
    shmem.fcollect_block(shmem.TEAM_WORLD, dst, src)


KERNELS = {
    scale: ("no operation", (F32, INT)),
    elements: ("`p` in a loop", (F32, INT, INT)),
    adds: ("`atomic_add`", (U64, INT)),
    ring: ("`put_signal_block`, and a wait for it", (F32, F32, U64, INT)),
    meets: ("`fcollect_block`", (F32, F32)),
}

if __name__ == "__main__":
    arch = sys.argv[1] if sys.argv[1:] else "sm_90"
    print("| kernel | registers | traced | stack | traced | KB of code | traced |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for kernel, (what, argtypes) in KERNELS.items():
        plain, traced = (aot.build(kernel, argtypes, {}, arch, traced=on) for on in (False, True))
        pairs = [
            (plain.needs.registers, traced.needs.registers),
            (plain.needs.stack, traced.needs.stack),
            tuple(f"{len(built.code['cubin']) / 1024:.0f}" for built in (plain, traced)),
        ]
        print(f"| {what} |", " | ".join(f"{a} | {b}" for a, b in pairs), "|", flush=True)
