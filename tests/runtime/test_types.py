"""What a type checker makes of a user's program, with the stubs."""

import os
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytest.importorskip("mypy")

PROGRAM = """
from numba import cuda

import gpushmem as shmem


@shmem.jit
def shift(dst, src, signal):  # type: ignore[no-untyped-def]
    shmem.put_signal_block(dst, src, signal, 1, shmem.SIGNAL_SET, 0)


@shmem.jit(device=True)
def half(x: float) -> float:
    return x / 2


@shmem.jit(fastmath=True)
def nothing(x: float) -> None:
    pass


with shmem.session(heap_size="4M") as world:
    reveal_type(world)
    x = shmem.array([1, 2], dtype="uint64")
    reveal_type(x)
    stream = shmem.stream()
    reveal_type(shift)
    reveal_type(nothing)
    reveal_type(half)
    reveal_type(shift[1, 128])
    reveal_type(shift[1, 128].bind(x, x, x))
    shift[1, 128, stream](x, x, x)
    reveal_type(world.split_2d(2))
    with world.split_strided(0, 1, 1) as team:
        reveal_type(team.my_pe)
        team.barrier(stream=stream)
    reveal_type(shmem.signal_wait_until(x, shmem.CMP_EQ, 1))
    reveal_type(shmem.signal_wait_until(x, shmem.CMP_EQ, 1, 1000))
    reveal_type(shmem.signal_wait_until(x, shmem.CMP_EQ, 1, timeout_ns=1000))
    reveal_type(shmem.wait_until(x, shmem.CMP_EQ, 1, 1000))
    reveal_type(shmem.wait_until_any(x, None, shmem.CMP_EQ, 1))
    reveal_type(shmem.test_any(x, None, shmem.CMP_EQ, 1))
    shmem.wait_until(x, shmem.CMP_EQ, 1)
    shmem.signal_wait_until(x, shmem.CMP_EQ, 1, stream=3)
    reveal_type(shmem.my_pe())
    shmem.put(x, x, "0")
    found: bool = shmem.wait_until_all(x, None, shmem.CMP_EQ, 1)
    world.no_such
"""
REVEALED = [
    "gpushmem.ops.team.Team",
    "gpushmem.memory.array.SymmetricArray",
    "gpushmem.kernel.Kernel",
    "gpushmem.kernel.Kernel",
    "gpushmem.backends.base.DeviceFunction",
    "gpushmem.kernel.Launch",
    "def ()",
    "tuple[gpushmem.ops.team.Team, gpushmem.ops.team.Team]",
    "int",
    "int",
    "bool",
    "bool",
    "bool",
    "int",
    "int",
    "int",
]
ERRORS = ["arg-type", "assignment", "attr-defined"]


def test_types_of_a_program(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    options = ("--strict", "--config-file=", "--follow-imports=silent")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, program.name], cwd=tmp_path, text=True,
        env={**os.environ, "MYPYPATH": str(ROOT)}, capture_output=True, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith(program.name)]
    types = [re.search(r'Revealed type is "(.*)"', line) for line in lines]
    assert [t[1].replace("builtins.", "") for t in types if t] == REVEALED, done.stdout
    errors = [re.search(r"error: .*\[(.*)\]$", line) for line in lines]
    assert [e[1] for e in errors if e and e[1] != "import-untyped"] == ERRORS, done.stdout
