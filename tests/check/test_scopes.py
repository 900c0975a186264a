"""Scopes x fences x accesses, as a table: what a fence of a scope orders for threads of another.

PTX ISA, "Memory Consistency Model": a fence orders for the threads of its scope. Each case is a
kernel of one program: one thread writes and another one, of its block or of another block, reads,
or both take a lock. It is right if the fence before the atomic operation reaches as far.
"""

import json
from itertools import product

FENCES = {"none": "pass", "block": "cuda.threadfence_block()", "gpu": "cuda.threadfence()",
          "system": "cuda.threadfence_system()"}  # fmt: skip
READERS = {"block": "cuda.threadIdx.x == 32 and cuda.blockIdx.x == 0",
           "gpu": "cuda.threadIdx.x == 0 and cuda.blockIdx.x == 1"}  # fmt: skip
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
    elif {reader}:
        while cuda.atomic.add(flag, 0, 0) == 0:
            pass
        out[0] = there[0]
"""
LOCK = """
@shmem.jit(collective=True)
def {name}(data, own, flag, out):
    {memory}
    if cuda.threadIdx.x == 0 and cuda.blockIdx.x == 0 or {reader}:
        while cuda.atomic.cas(flag, 0, 0, 1) != 0:
            pass
        there[0] = 1
        {fence}
        cuda.atomic.exch(flag, 0, 0)
"""
LAUNCH = """
{name}[2, 64](shmem.zeros(1, dtype="int32"), own, shmem.zeros(1, dtype="int32"), outs)
"""


def test_a_fence_orders_for_the_threads_of_its_scope(run_cli, tmp_path):
    text, wrong, cases = HEAD, set(), 0
    for reader, fence, memory, how in product(READERS, FENCES, MEMORIES, [*SIGNALS, "lock"]):
        if (reader, memory) == ("gpu", "shared"):
            continue
        name, cases = f"{reader}_{fence}_{memory}_{how}", cases + 1
        text += (LOCK if how == "lock" else FLAG).format(
            name=name, memory=MEMORIES[memory], fence=FENCES[fence], reader=READERS[reader],
            signal=SIGNALS.get(how),
        ) + LAUNCH.format(name=name)  # fmt: skip
        if list(FENCES).index(fence) < list(FENCES).index(reader):
            wrong.add(name)
    script = tmp_path / "table.py"
    script.write_text(text + "shmem.finalize()\n")
    options = ["--backend", "cpu", "--check", "--check-format", "json", "-n", 1]
    done = run_cli("run", *options, script, code=66)
    problems = json.loads(done.stdout)
    found = {a["line"].partition(" in ")[2] for problem in problems for a in problem["accesses"]}
    assert found == wrong
    assert {problem["kind"] for problem in problems} == {"race"}
    assert cases == 60
    shown = [problem["cure"] for problem in problems if "_lock" not in str(problem["accesses"])]
    assert len(problems) == len(wrong)
    assert all("threadfence" in cure for cure in shown), shown
