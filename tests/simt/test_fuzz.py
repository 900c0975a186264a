"""Random kernels do on the engine what they do in CPython; if they did not, it would be seen."""

import pytest

from gpushmem.simt.blocks import uniformity
from gpushmem.simt.intrinsics import atomics
from tests.simt.fuzz import check, reference
from tests.simt.fuzz.generate import Line, Program, generate

SAMPLE = range(4)


def compare(seeds):
    """Fail for a kernel of `seeds` that does something else; say how many are no tests."""
    rejected = 0
    for seed in seeds:
        program = generate(seed)
        try:
            fault = check.check(program)
        except check.Rejected:
            rejected += 1
            continue
        if fault:
            pytest.fail(check.report(*check.smallest(program, fault)))
    return rejected


def test_random_kernels_do_what_they_do_in_cpython():
    assert compare(SAMPLE) <= 2


@pytest.mark.sweep
@pytest.mark.timeout(3600)
def test_many_random_kernels_do_what_they_do_in_cpython():
    assert compare(range(1000, 1300)) <= 45


def test_random_kernels_use_all_ways():
    programs = [generate(seed) for seed in range(60)]
    assert {p.mode for p in programs} == {"none", "block", "any"}
    assert {o for p in programs for o in p.options} == {"fastmath", "debug"}
    assert {name for p in programs for name in check.ways(p)} == {
        "as it is", "on fibers", "in lockstep", "between barriers", "kept on disk",
        "loaded from disk",
    }  # fmt: skip


def program(*lines, shapes=(((1, 1), (5, 1)),)):
    return Program(0, "block", True, [Line(line) for line in lines], {}, list(shapes))


HEAD = ["t = cuda.threadIdx.x", "g = cuda.grid(1)"]
DELIBERATE = {
    "stack memory kept once for the block": (
        lambda patch: patch.setattr(uniformity.Analysis, "_varies_as_memory", lambda *_: False),
        [*HEAD, "a = cuda.local.array(3, int64)", "a[0] = t", "a[1] = 2 * t", "s = same(a)",
         "cuda.syncthreads()", "out[g] = s[t % 2]"],
    ),
    "an atomic maximum that takes the minimum": (
        lambda patch: patch.setitem(atomics.PLAIN, "max", atomics.PLAIN["min"]),
        [*HEAD, "s = cuda.shared.array(1, int64)", "if t == 0: s[0] = 2", "cuda.syncthreads()",
         "cuda.atomic.max(s, 0, int64(t))", "cuda.syncthreads()", "out[g] = s[0]"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DELIBERATE)
def test_a_deliberate_fault_is_found(name, monkeypatch):
    break_engine, lines = DELIBERATE[name]
    assert check.check(program(*lines)) is None
    break_engine(monkeypatch)
    assert "CPython says" in check.check(program(*lines)).what


def test_what_is_found_is_made_small(monkeypatch):
    break_engine, lines = DELIBERATE["an atomic maximum that takes the minimum"]
    break_engine(monkeypatch)
    whole = program(*lines[:-1], "y = t * 3", "c_int32[0] = 3", lines[-1], "y += 1")
    small, fault = check.smallest(whole, check.check(whole))
    assert [line.text for line in small.lines] == lines
    assert "cuda.atomic.max" in check.report(small, fault)


@pytest.mark.parametrize(
    ("why", "lines"),
    [
        ("race", ["s = cuda.shared.array(8, int64)", "s[0] = t"]),
        ("deadlock", ["while flags[0, 0] == 0: pass"]),
        ("nobody has written", ["a = cuda.local.array(3, int64)", "out[t] = a[1]"]),
        ("nobody has written", ["s = cuda.shared.array(9, int64)", "out[t] = s[t]"]),
        ("Unbound", ["if t > 9: y = 1", "out[t] = y"]),
        ("deadlock", ["if t: cuda.syncthreads()", "else: cuda.syncwarp(3)"]),
    ],
)
def test_what_cuda_leaves_open_is_no_test(why, lines):
    with pytest.raises(reference.Rejected, match=why):
        check.check(program("t = cuda.threadIdx.x", *lines))
