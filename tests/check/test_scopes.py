"""Scopes x fences x accesses, as a table: what a fence of a scope orders for threads of another.

PTX ISA, "Memory Consistency Model": a fence before an atomic operation and one after another that
has seen it order for the threads of both scopes; a barrier does, too. Each case is a kernel of one
program: one thread writes and another one, of its block or of another block, reads, or both take a
lock. It is right if both fences reach as far.
"""

import json
from itertools import product
from random import Random

import pytest

FENCES = {"none": "pass", "block": "cuda.threadfence_block()", "gpu": "cuda.threadfence()",
          "system": "cuda.threadfence_system()"}  # fmt: skip
AFTER = FENCES | {"barrier": "cuda.syncthreads()"}
# The block of the other thread, and its number there.
READERS = {"block": (0, 32), "gpu": (1, 0)}
SIGNALS = {"exch": "cuda.atomic.exch(flag, 0, 1)", "add": "cuda.atomic.add(flag, 0, 1)"}
MEMORIES = {"symmetric": "there = data", "device": "there = own",
            "shared": 'there = cuda.shared.array(1, "int32")'}  # fmt: skip
HEAD = """
import gpushmem as shmem
from numba import cuda

shmem.init(heap_size="16M")
own, outs = shmem.device_array(1, "int32"), shmem.zeros(1, dtype="int32")
"""
FLAG = """
@shmem.jit(collective=True)
def {name}(data, own, flag, out):
    {memory}
    if cuda.threadIdx.x == 0 and cuda.blockIdx.x == 0:
        there[0] = 1
        {fence}
        {signal}
    elif cuda.blockIdx.x == {block}:
        if cuda.threadIdx.x == {thread}:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
        {after}
        if cuda.threadIdx.x == {thread}:
            out[0] = there[0]
"""
LOCK = """
@shmem.jit(collective=True)
def {name}(data, own, flag, out):
    {memory}
    i, b = cuda.threadIdx.x, cuda.blockIdx.x
    takes = i == 0 and b == 0 or i == {thread} and b == {block}
    if takes:
        while cuda.atomic.cas(flag, 0, 0, 1) != 0:
            pass
    {after}
    if takes:
        there[0] = 1
        {fence}
        cuda.atomic.exch(flag, 0, 0)
"""
LAUNCH = """
{name}[2, 64](shmem.zeros(1, dtype="int32"), own, shmem.zeros(1, dtype="int32"), outs)
"""
# One block has no barrier between its threads, one of which has gone another way or has the lock.
CASES = [
    case for case in product(READERS, FENCES, AFTER, MEMORIES, [*SIGNALS, "lock"])
    if (case[0] == "gpu" and case[3] != "shared") or (case[0] == "block" and case[2] != "barrier")
]  # fmt: skip


def reaches(fence, reader):
    """Whether a fence is one for the threads of a block, or of the GPU."""
    return fence == "barrier" or list(FENCES).index(fence) >= list(FENCES).index(reader)


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(Random(1).sample(CASES, 45), id="some"),
        pytest.param(CASES, id="all", marks=pytest.mark.sweep),
    ],
)
def test_a_fence_orders_for_the_threads_of_its_scope(run_cli, tmp_path, cases):
    text, wrong = HEAD, {}
    for case in cases:
        reader, fence, after, memory, how = case
        name, (block, thread) = "_".join(case), READERS[reader]
        text += (LOCK if how == "lock" else FLAG).format(
            name=name, memory=MEMORIES[memory], fence=FENCES[fence], after=AFTER[after],
            block=block, thread=thread, signal=SIGNALS.get(how),
        ) + LAUNCH.format(name=name)  # fmt: skip
        if not (reaches(fence, reader) and reaches(after, reader)):
            wrong[name] = "before" if not reaches(fence, reader) else "after"
    script = tmp_path / "table.py"
    script.write_text(text + "shmem.finalize()\n")
    options = ["--backend", "cpu", "--check", "--check-format", "json", "-n", 1]
    problems = json.loads(run_cli("run", *options, script, code=66).stdout)
    found = {problem["accesses"][0]["line"].partition(" in ")[2]: problem for problem in problems}
    assert sorted(found) == sorted(wrong)
    assert len(problems) == len(wrong)
    assert {problem["kind"] for problem in problems} == {"race"}
    for name, where in wrong.items():
        assert f"threadfence() {where}" in found[name]["cure"], (name, found[name])
