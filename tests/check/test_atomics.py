"""Operations x types x places, as a table: which two operations on one word, or a part, may race.

Two kernels on two streams each make one of them. PTX ISA, "Memory Consistency Model": strong
operations that overlap completely are atomic for each other, whatever their types.
"""

import json
from itertools import combinations_with_replacement, product
from random import Random

import pytest

WIDTH = {"int32": 4, "uint32": 4, "float32": 4, "int64": 8, "uint64": 8, "float64": 8}
MADE = {
    "load": "out[0] = a[k]", "store": "a[k] = 1", "p": "shmem.p(a[k:], 1, 0)",
    "g": "shmem.g(a[k:], 0)", "atomic_fetch": "shmem.atomic_fetch(a[k:], 0)",
    "atomic_set": "shmem.atomic_set(a[k:], 1, 0)", "atomic_add": "shmem.atomic_add(a[k:], 1, 0)",
    "atomic_swap": "shmem.atomic_swap(a[k:], 1, 0)", "cuda_add": "cuda.atomic.add(a, k, 1)",
    "cuda_max": "cuda.atomic.max(a, k, 1)",
}  # fmt: skip
READS, PLAIN, SETS = {"load", "g", "atomic_fetch"}, {"load", "store"}, {"p", "atomic_set"}
EVERY = list(product(MADE, WIDTH))
HEAD = """
import gpushmem as shmem
from numba import cuda

shmem.init(heap_size="16M")
words = shmem.zeros({words}, dtype="int64")
outs = [shmem.zeros(1, dtype="float64") for _ in range(2)]
streams = [shmem.stream(), shmem.stream()]
"""
KERNEL = """
@shmem.jit
def {how}_{dtype}(a, k, out):
    {made}
"""
LAUNCH = """
{how}_{dtype}[1, 1, streams[{which}]](words.view("{dtype}"), {k}, outs[{which}])
"""


def places(one, two):
    """Of one word, of its parts, and of its neighbours: the elements at which two operations are.

    Each with whether they overlap; 16 bytes apart.
    """
    widths = [WIDTH[dtype] for _, dtype in (one, two)]
    if widths[0] == widths[1]:
        return [(0, 0, True), (0, 1, False)]
    narrow = [((0, 0), True), ((0, 1), True), ((0, 2), False)]
    return [(*(pair if widths[0] == 8 else pair[::-1]), over) for pair, over in narrow]


def races(one, two):
    """Whether two operations on bytes of both may come in any order, and that matters."""
    hows = {one[0], two[0]}
    if hows <= READS:
        return False
    if hows & PLAIN or WIDTH[one[1]] != WIDTH[two[1]]:
        return True
    return "atomic_add" in hows and bool(hows & SETS)  # what is added may be lost


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(Random(1).sample(EVERY, 14), id="some"),
        pytest.param(EVERY, id="all", marks=[pytest.mark.sweep, pytest.mark.timeout(600)]),
    ],
)
def test_words_are_atomic_for_all_types_of_one_width(run_cli, tmp_path, chosen):
    text, at, wanted = "", 0, {}
    for how, dtype in chosen:
        text += KERNEL.format(how=how, dtype=dtype, made=MADE[how])
    for pair in combinations_with_replacement(chosen, 2):
        for *elements, over in places(*pair):
            for which, ((how, dtype), k) in enumerate(zip(pair, elements, strict=True)):
                place = at * 16 // WIDTH[dtype] + k
                text += LAUNCH.format(how=how, dtype=dtype, which=which, k=place)
            at += 1
            if over and races(*pair):
                name = tuple(sorted("_".join(one) for one in pair))
                wanted[name] = wanted.get(name, 0) + 1
    script = tmp_path / "table.py"
    script.write_text(HEAD.format(words=2 * at) + text + "shmem.finalize()\n")
    options = ["--backend", "cpu", "--check", "--check-format", "json", "-n", 1]
    done = run_cli("run", *options, script, code=66, timeout=500)
    found = {}
    for problem in json.loads(done.stdout):
        assert problem["kind"] == "race"
        lines = [a["line"].partition(" in ")[2] for a in problem["accesses"]]
        found[tuple(sorted(lines))] = problem["count"]
    assert found == wanted


FLOATS = """
import gpushmem as shmem
from numba import cuda

@shmem.jit(collective=True)
def kernel(words, floats, data, out):
    if cuda.blockIdx.x == 0:
        data[0] = 1
        shmem.quiet()
        shmem.atomic_add(floats, 1.5, 0)
    else:
        shmem.signal_wait_until(words, shmem.CMP_NE, 0)
        out[0] = data[0]

shmem.init()
words, data, out = (shmem.zeros(1, dtype="uint64") for _ in range(3))
kernel[2, 1](words, words.view("float64"), data, out)
shmem.synchronize()
shmem.atomic_add(words.view("float64"), 1.5, 0)
shmem.signal_wait_until(words, shmem.CMP_NE, 0)
shmem.finalize()
"""


def test_a_word_is_waited_for_that_is_added_to_as_a_float(run_cli, tmp_path):
    script = tmp_path / "floats.py"
    script.write_text(FLOATS)
    done = run_cli("run", "--backend", "cpu", "--check", "-n", 1, script, code=0)
    assert "gpushmem check" not in done.stderr
