"""Occupancy, compared with NVIDIA's calculator."""

import importlib.util
import itertools
import shutil
import subprocess
from pathlib import Path

import pytest

from gpushmem.artifacts.gpu_limits import LIMITS, MOST_REGISTERS, most_registers
from gpushmem.explain.occupancy import occupancy

# Compute capability, threads of a block, registers of a thread, bytes of shared memory, barriers;
# and the blocks of a multiprocessor and what limits them, as cuda_occupancy.h says.
KNOWN = [
    ((9, 0), 256, 32, 0, 1, 8, ("registers", "threads")),
    ((9, 0), 256, 33, 0, 1, 6, ("registers",)),
    ((9, 0), 1024, 65, 0, 1, 0, ("registers",)),
    ((9, 0), 128, 168, 0, 1, 3, ("registers",)),
    ((9, 0), 32, 16, 0, 1, 32, ("blocks",)),
    ((9, 0), 128, 32, 48 * 1024, 1, 4, ("shared memory",)),
    ((9, 0), 128, 32, 227 * 1024, 1, 1, ("shared memory",)),
    ((9, 0), 128, 32, 227 * 1024 + 1, 1, 0, ("shared memory",)),
    ((9, 0), 64, 16, 0, 4, 16, ("barriers",)),
    ((8, 0), 96, 64, 0, 1, 10, ("registers",)),
    ((8, 0), 512, 32, 40 * 1024, 1, 4, ("registers", "shared memory", "threads")),
    ((8, 6), 256, 40, 0, 1, 6, ("registers", "threads")),
    ((7, 5), 64, 32, 4097, 1, 15, ("shared memory",)),
    ((12, 0), 1024, 64, 0, 1, 1, ("registers", "threads")),
    ((12, 0), 100, 255, 0, 1, 2, ("registers",)),
]  # fmt: skip

CALCULATOR = r"""
#include <climits>
#include <cstdio>
#include "cuda_occupancy.h"
int main() {
    int major, minor, most_threads, most_shared, reserved, threads, registers, shared, barriers;
    while (scanf("%d %d %d %d %d %d %d %d %d", &major, &minor, &most_threads, &most_shared,
                 &reserved, &threads, &registers, &shared, &barriers) == 9) {
        cudaOccDeviceProp device;
        device.computeMajor = major, device.computeMinor = minor;
        device.maxThreadsPerBlock = 1024, device.maxThreadsPerMultiprocessor = most_threads;
        device.regsPerBlock = device.regsPerMultiprocessor = 65536;
        device.warpSize = 32, device.numSms = 1;
        device.sharedMemPerBlock = 49152, device.sharedMemPerMultiprocessor = most_shared;
        device.sharedMemPerBlockOptin = most_shared - reserved;
        device.reservedSharedMemPerBlock = reserved;
        cudaOccFuncAttributes kernel;
        kernel.maxThreadsPerBlock = 1024, kernel.numRegs = registers;
        kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        kernel.maxDynamicSharedSizeBytes = shared, kernel.numBlockBarriers = barriers;
        cudaOccDeviceState state;
        cudaOccResult found;
        if (cudaOccMaxActiveBlocksPerMultiprocessor(
                &found, &device, &kernel, &state, threads, shared))
            return 1;
        printf("%d %d\n", found.activeBlocksPerMultiprocessor, found.limitingFactors);
    }
}
"""
FACTORS = {1: "threads", 2: "registers", 4: "shared memory", 8: "blocks", 16: "barriers"}


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared", "barriers", "blocks", "by"), KNOWN
)
def test_known_values(capability, threads, registers, shared, barriers, blocks, by):
    found = occupancy(capability, threads, registers, shared, barriers)
    assert (found.blocks_per_multiprocessor, found.limited_by) == (blocks, by)
    assert found.warps == blocks * -(-threads // 32)
    assert found.most_warps == LIMITS[capability].threads // 32


def test_as_many_registers_as_a_block_fits_with():
    for threads in range(1, 1025):
        most = most_registers(threads)
        assert occupancy((9, 0), threads, most, 0).blocks_per_multiprocessor >= 1
        if most < MOST_REGISTERS:
            assert occupancy((9, 0), threads, most + 1, 0).blocks_per_multiprocessor == 0
    assert [most_registers(threads) for threads in (32, 512, 1024)] == [255, 128, 64]


def test_an_unknown_capability_is_not_guessed():
    assert occupancy((13, 7), 32, 32, 0) is None


def include():
    """The folder of cuda_occupancy.h among the packages of CUDA, if it is there."""
    found = importlib.util.find_spec("nvidia")
    for folder in found.submodule_search_locations if found else ():
        for path in Path(folder).glob("*/include/cuda_occupancy.h"):
            return path.parent
    return None


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.skipif(include() is None, reason="needs cuda_occupancy.h")
def test_all_is_as_nvidias_calculator_says(tmp_path):
    (tmp_path / "occupancy.cpp").write_text(CALCULATOR)
    subprocess.run(
        ["g++", "-w", f"-I{include()}", "occupancy.cpp", "-o", "occupancy"],
        cwd=tmp_path, check=True,
    )  # fmt: skip
    cases = [
        case
        for case in itertools.product(
            LIMITS, (1, 32, 33, 96, 128, 192, 256, 384, 512, 640, 1000, 1024),
            (1, 16, 24, 32, 33, 40, 48, 64, 65, 72, 96, 128, 168, 255),
            (0, 1, 128, 1024, 4097, 12288, 49152, 49153, 66560, 101376, 101377, 232448), (1, 2, 3),
        )
        if case[0] != (8, 8)  # older calculators do not know it
    ]  # fmt: skip
    lines = []
    for capability, *case in cases:
        limits = LIMITS[capability]
        about = *capability, limits.threads, limits.shared, limits.reserved
        lines.append(" ".join(map(str, (*about, *case))))
    done = subprocess.run(
        [tmp_path / "occupancy"], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    for case, line in zip(cases, done.stdout.splitlines(), strict=True):
        blocks, factors = map(int, line.split())
        found = occupancy(*case)
        assert found.blocks_per_multiprocessor == blocks, case
        by = {what for bit, what in FACTORS.items() if factors & bit}
        if "barriers" not in found.limited_by:  # it does not take back what else it named
            by -= {"barriers"}
            assert set(found.limited_by) == by, case
        assert set(found.limited_by) <= by, case
