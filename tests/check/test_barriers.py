"""Barriers x threads x accesses, and idioms without each of their parts: what is in order.

CUDA C++ Programming Guide: "Synchronization Functions", "Memory Fence Functions", "Cooperative
Groups"; shuffles and votes are no barriers for memory ("Warp Shuffle Functions"). Each case is a
kernel of one program, in which a race is found, or not.
"""

import json
from itertools import product
from random import Random

import pytest

HEAD = """
import gpushmem as shmem
from numba import cuda

shmem.init(heap_size="16M")
own, zero, outs = shmem.device_array(64, "int32"), shmem.zeros(1, dtype="int32"), []
"""
LAUNCH = """
{name}[2, 64](*(shmem.zeros(128, dtype="int32") for _ in range(4)), own)
"""

# Which threads a barrier is for: none, lanes, the warp, the block, the grid.
BARRIERS = {
    "nothing": ("pass", 0), "shuffle": ("out[cuda.grid(1)] = cuda.shfl_sync(-1, i, 0)", 0),
    "vote": ("out[cuda.grid(1)] = cuda.all_sync(-1, i)", 0),
    "other lanes": ("if i == 2 or i == 3:\n        cuda.syncwarp(12)", 0),
    "lanes": ("if i < 2:\n        cuda.syncwarp(3)", 1), "warp": ("cuda.syncwarp()", 1),
    "block": ("cuda.syncthreads()", 2),
    "count": ("out[cuda.grid(1)] = cuda.syncthreads_count(i)", 2),
    "grid": ("cuda.cg.this_grid().sync()", 3),
}  # fmt: skip
OTHERS = {"lane": (0, 1, 1), "thread": (0, 32, 2), "block": (1, 0, 3)}  # block, thread, barrier
MEMORIES = {
    "symmetric": "there = data", "device": "there = own",
    "shared": 'there = cuda.shared.array(1, "int32")\n    if i == 0:\n        there[0] = 0\n'
              "    cuda.syncthreads()",
}  # fmt: skip
ACCESSES = {"load": "out[cuda.grid(1)] = there[0]", "store": "there[0] = 1",
            "atomic": "cuda.atomic.add(there, 0, 1)"}  # fmt: skip
TWO = """
@shmem.jit(collective=True)
def {name}(data, out, words, parts, own):
    i, b = cuda.threadIdx.x, cuda.blockIdx.x
    {memory}
    if i == 0 and b == 0:
        {first}
    {barrier}
    if i == {thread} and b == {block}:
        {second}
"""


def two_accesses(barrier, other, memory, first, second):
    """The kernel, and whether the two accesses race."""
    block, thread, needed = OTHERS[other]
    text, reaches = BARRIERS[barrier]
    name = "_".join((barrier.replace(" ", "_"), other, memory, first, second))
    kernel = TWO.format(
        name=name, memory=MEMORIES[memory], first=ACCESSES[first], second=ACCESSES[second],
        barrier=text, block=block, thread=thread,
    )  # fmt: skip
    return name, kernel, reaches < needed and {first, second} not in ({"load"}, {"atomic"})


PAIRS = [
    case for case in product(BARRIERS, OTHERS, MEMORIES, ACCESSES, ACCESSES)
    if case[1:3] != ("block", "shared")
]  # fmt: skip

# Threads store, meet, and one of them fences and counts; it sees what it waits for, fences, and
# they meet; then all, or it alone, read what others have stored.
IDIOMS = {
    "last": """
    parts[cuda.grid(1)] = i
    {met}
    if i == 0:
        {fenced}
        last[0] = cuda.atomic.add(words, 0, 1) == 1
        {seen}
    {told}
    if ({who}) and last[0]:
        out[cuda.grid(1)] = parts[i ^ 1] + parts[(i ^ 1) + 64]
    if i == 0 and last[0]:
        words[0] = 0  # all that count have been seen
""",
    "sum": """
    cuda.atomic.add(parts, i, 1)
    {met}
    if i == 0:
        {fenced}
        last[0] = cuda.atomic.add(words, 0, 1) == 1
        {seen}
    {told}
    if ({who}) and last[0]:
        out[cuda.grid(1)] = parts[i ^ 1]
""",
    "grid": """
    parts[cuda.grid(1)] = i
    {met}
    if i == 0:
        {fenced}
        cuda.atomic.add(words, 0, 1)
        while cuda.atomic.add(words, 0, 0) < 2:
            pass
        {seen}
    {told}
    if {who}:
        out[cuda.grid(1)] = parts[i ^ 1] + parts[(i ^ 1) + 64]
""",
    "flag": """
    if b == 0:
        parts[i] = i
        {met}
        if i == 0:
            {fenced}
            cuda.atomic.exch(words, 0, 1)
    else:
        if i == 0:
            while cuda.atomic.or_(words, 0, 0) == 0:
                pass
            {seen}
        {told}
        if {who}:
            out[i] = parts[i] + parts[i + 1 & 63]
""",
}
# How thread 0 of a block takes a lock, and gives it back.
LOCKS = {
    "lock": ("""while cuda.atomic.cas(words, 0, 0, 1) != 0:
            pass""", "cuda.atomic.exch(words, 0, 0)"),
    "bit": ("""while cuda.atomic.or_(words, 0, 4) & 4:
            pass""", "cuda.atomic.and_(words, 0, ~4)"),
    "ticket": ("""mine = cuda.atomic.add(words, 0, 1)
        while cuda.atomic.add(words, 1, 0) != mine:
            pass""", "cuda.atomic.add(words, 1, 1)"),
}  # fmt: skip
IDIOMS |= {
    name: f"""
    if i == 0:
        {take}
        {{seen}}
    {{told}}
    if {{who}}:
        parts[i] += 1
        parts[i + 64] += 1
    {{met}}
    if i == 0:
        {{fenced}}
        {give}
"""
    for name, (take, give) in LOCKS.items()
}
WHO = {"all": "i >= 0", "one": "i == 0"}
PARTS = {"met": "cuda.syncthreads()", "fenced": "cuda.threadfence()",
         "seen": "cuda.threadfence()", "told": "cuda.syncthreads()"}  # fmt: skip
WAITS = """
@shmem.jit(collective=True)
def {name}(data, out, words, parts, own):
    i, b = cuda.threadIdx.x, cuda.blockIdx.x
    last = cuda.shared.array(1, "int32")
"""


def idiom(how, who, *there):
    """The kernel with these parts, and whether there is a race: all read, or the thread alone."""
    parts = dict(zip(PARTS, there, strict=True))
    name = "_".join((how, who, *(part for part in PARTS if parts[part])))
    shown = {part: text if parts[part] else "pass" for part, text in PARTS.items()}
    kernel = WAITS.format(name=name) + IDIOMS[how].format(who=WHO[who], **shown)
    stores = who == "all" or how not in LOCKS  # other threads
    before = parts["fenced"] and (parts["met"] or not stores)
    after = parts["told"] or (parts["seen"] and who == "one")
    return name, kernel, not (before and after)


def every(cases, sample):
    """All cases in the tier `sweep`, some of them always."""
    return pytest.mark.parametrize("cases", [
        pytest.param(Random(1).sample(cases, sample), id="some"),
        pytest.param(cases, id="all", marks=[pytest.mark.sweep, pytest.mark.timeout(600)]),
    ])  # fmt: skip


def races(run_cli, script, cases):
    """The names of the kernels in which races are found, of others, and of those to be found."""
    script.write_text(
        HEAD + "".join(kernel + LAUNCH.format(name=name) for name, kernel, _ in cases)
        + "shmem.finalize()\n"
    )  # fmt: skip
    options = ["--backend", "cpu", "--check", "--check-format", "json", "-n", 1]
    problems = json.loads(run_cli("run", *options, script, code=66, timeout=500).stdout)
    assert {problem["kind"] for problem in problems} == {"race"}
    found = {a["line"].partition(" in ")[2] for problem in problems for a in problem["accesses"]}
    return sorted(found), sorted(name for name, _, wrong in cases if wrong)


@every(PAIRS, 30)
def test_a_barrier_orders_for_the_threads_that_it_is_for(run_cli, tmp_path, cases):
    found, wanted = races(run_cli, tmp_path / "table.py", [two_accesses(*case) for case in cases])
    assert found == wanted


@every([*product(IDIOMS, WHO, *[(True, False)] * len(PARTS))], 25)
def test_idioms_are_right_with_all_of_their_parts(run_cli, tmp_path, cases):
    found, wanted = races(run_cli, tmp_path / "table.py", [idiom(*case) for case in cases])
    assert found == wanted
