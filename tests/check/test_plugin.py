"""The plugin for pytest, in sessions of their own: tests of users, with real PEs."""

import re

import pytest

from gpushmem.trace import load
from tests.test_project import ROOT

pytest_plugins = ["pytester"]

TESTS = """
import pytest
from numba import cuda

import gpushmem as shmem


@shmem.jit
def exchange(dst, src, flag, fenced):
    other = 1 - shmem.my_pe()
    if cuda.threadIdx.x == 0:
        shmem.put(dst, src, other)
        if fenced:
            shmem.fence()
        shmem.signal_op(flag, 1, shmem.SIGNAL_SET, other)
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        src[0] = dst[0]


def body(fenced):
    shmem.init(heap_size="1M")
    src, dst = shmem.full(4, 10 + shmem.my_pe(), "int32"), shmem.zeros(4, "int32")
    exchange[1, 32](dst, src, shmem.zeros(1, "uint64"), fenced)
    return src.numpy().tolist()


def test_off(run_pes):
    assert run_pes(body, 2, False) == [[11, 10, 10, 10], [10, 11, 11, 11]]


@pytest.mark.gpushmem_check
def test_marked(run_pes):
    run_pes(body, 2, False)


@pytest.mark.gpushmem_check(False)
def test_never(run_pes):
    run_pes(body, 2, False)


@pytest.mark.gpushmem_check
def test_fixed(run_pes):
    assert run_pes(body, 2, True) == [[11, 10, 10, 10], [10, 11, 11, 11]]
"""
MORE = """

@pytest.mark.gpushmem_check
def test_a_bug_and_an_error(run_pes):
    def both():
        body(False)
        raise KeyError("lost")

    run_pes(both, n_pes=2)
"""
FAILING = """
import pytest, threading
import gpushmem as shmem


def test_a_pe_fails(run_pes):
    expected = 5

    def body():
        shmem.init(heap_size="1M")
        assert shmem.my_pe() == 0, f"not {expected}"
        shmem.barrier_all()

    run_pes(body, 2)


def test_it_can_be_expected(run_pes):
    def body():
        raise KeyError("lost")

    with pytest.raises(shmem.PeerFailed, match="KeyError: 'lost'"):
        run_pes(body)


def test_deadlock(run_pes):
    def body():
        shmem.init(heap_size="1M")
        shmem.wait_until(shmem.zeros(1, "int32"), shmem.CMP_EQ, 1)

    run_pes(body, 2)


def test_endless(run_pes):
    run_pes(threading.Event().wait, 1, timeout=0.5)
"""
NUMBERS = """
import pytest
import gpushmem as shmem


def body(*args):
    shmem.init(heap_size="1M")
    return (shmem.my_pe(), shmem.n_pes(), *args)


@pytest.mark.gpushmem_pes(1, 2, 5)
def test_each(run_pes, n_pes):
    assert run_pes(body) == [(pe, n_pes) for pe in range(n_pes)]


@pytest.mark.gpushmem_pes(2)
@pytest.mark.parametrize("other", ["mark"])
def test_another_number(run_pes, other):
    assert len(run_pes(body)) == 2
    assert run_pes(body, 3, other) == [(pe, 3, "mark") for pe in range(3)]
    assert run_pes(body, None, other) == [(pe, 2, "mark") for pe in range(2)]


def test_without_the_mark(run_pes, n_pes):
    assert run_pes(body) == [(0, 1)] == [(0, n_pes)]


@pytest.mark.parametrize("n_pes", [3])
def test_a_parameter(run_pes, n_pes):
    assert len(run_pes(body)) == 3


@pytest.mark.gpushmem_pes(2, 3)
def test_that_has_no_pes():
    pass
"""
UNFENCED = """
import pytest
import gpushmem as shmem


@shmem.jit
def exchange(dst, src, flags, seen):
    other = 1 - shmem.my_pe()
    for k in range(16):
        shmem.put(dst[k : k + 1], src, other)
        shmem.signal_op(flags[k : k + 1], 1, shmem.SIGNAL_SET, other)
        shmem.signal_wait_until(flags[k : k + 1], shmem.CMP_EQ, 1)
        seen[k] = dst[k]


def body():
    shmem.init(heap_size="1M")
    src, dst, seen = shmem.ones(1, "int32"), shmem.zeros(16, "int32"), shmem.zeros(16, "int32")
    exchange[1, 1](dst, src, shmem.zeros(16, "uint64"), seen)
    return int(seen.numpy().sum())


def test_unfenced(run_pes):
    assert run_pes(body, 2) == [16, 16]


@pytest.mark.gpushmem_check
def test_checked(run_pes):
    run_pes(int, 2)
"""
SEED = """
import os


def seed():
    return [os.environ.get(f"GPUSHMEM_{name}") for name in ("MEMORY", "SEED")]


def test_passes(run_pes):
    assert run_pes(seed) == run_pes(seed) == [["weak", "7"]]


def test_fails(run_pes):
    run_pes(seed)
    raise KeyError
"""
TRACED = """
import pytest
import gpushmem as shmem


def body():
    shmem.init(heap_size="1M")
    shmem.barrier_all()


def test_passes(run_pes):
    run_pes(body)


@pytest.mark.gpushmem_pes(2)
def test_fails(run_pes):
    run_pes(body)
    run_pes(body)
    assert False
"""


@pytest.fixture
def session(pytester, monkeypatch):
    """`session(text, *options)`: run pytest on a module; what the plugin is if it is installed."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(text, *options):
        pytester.makepyfile(test_users=text)  # one name: kernels compiled once for all
        plugin = ("-p", "gpushmem.pytest_plugin", "-v")
        return pytester.runpytest_subprocess(*plugin, *options, timeout=150)

    return run


def test_a_test_with_a_bug_fails_with_the_report(session):
    done = session(TESTS + MORE)
    done.assert_outcomes(passed=3, failed=2)
    done.stdout.fnmatch_lines(
        [
            "* test_marked *",
            "gpushmem check: 1 problem found",
            "ordering: what put writes may arrive after it is read",
            "  PE ?, kernel exchange, block 0, thread 0, reads it at *.py:16 in exchange",
            "      src[[]0[]] = dst[[]0[]]",
            "  missing: fence() before signal_op at *.py:14, or put_signal instead of*",
            "* test_a_bug_and_an_error *",
            "gpushmem check: 1 problem found",
            "PE ? failed: KeyError: 'lost' *",
            "KeyError: 'lost'",
            "FAILED *::test_marked - *",
        ]
    )


def test_the_option_is_for_all_tests_and_workers(session, pytester):
    known = pytester.makefile(".txt", known="race *\n")
    options = ("-k", "off or never", "--gpushmem-check", "--gpushmem-check-ignore", known)
    done = session(TESTS, *options, "-p", "xdist.plugin", "-n", "2")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["gpushmem check: 1 problem found", "FAILED *test_off*"])
    known.write_text("ordering *.py:16 in exchange\n")
    session(TESTS, *options).assert_outcomes(passed=2)


def test_what_is_wrong_with_pes_is_told(session):
    done = session(FAILING)
    done.assert_outcomes(passed=1, failed=3)
    done.stdout.fnmatch_lines(
        [
            ">       run_pes(body, 2)",
            "E       gpushmem.errors.PeerFailed: PE 1 failed: AssertionError: not 5*",
            "E       Traceback (most recent call last):",
            "E           assert shmem.my_pe() == 0, f*",
            "E       gpushmem.errors.Deadlock: deadlock: no PE can go on",
            "E       PE* 0*: host, in wait_until: array[[]0[]] == 1, sees 0*",
            "E       gpushmem.errors.WaitTimeout: the job exceeded its limit of 0.5 s",
        ]
    )
    done.stdout.no_fnmatch_line("*def spawn*")


def test_a_mark_runs_a_test_with_several_numbers_of_pes(session):
    done = session(NUMBERS)
    done.assert_outcomes(passed=7)
    done.stdout.fnmatch_lines([f"*test_each[[]{n}pes[]] PASSED*" for n in (1, 2, 5)])


@pytest.mark.parametrize("numbers", ["()", "(2, 0)", "(True)", "(n=2)"])
def test_what_is_no_number_of_pes_is_refused(session, numbers):
    done = session(
        f"import pytest\n@pytest.mark.gpushmem_pes{numbers}\ndef test_it(run_pes): run_pes(int)"
    )
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(
        ["the mark gpushmem_pes takes one or more whole numbers from 1 to 65536, such as *"]
    )


def test_a_test_that_fails_with_weak_memory_says_how_to_repeat_it(session, monkeypatch):
    session(UNFENCED).assert_outcomes(passed=2)
    done = session(UNFENCED, "--gpushmem-memory", "weak")
    done.assert_outcomes(passed=1, failed=1)  # with a mark for the checker memory is native
    again = r"^to repeat this order of operations: --gpushmem-memory weak --gpushmem-seed (\d+)$"
    assert len(re.findall(again, done.stdout.str(), re.MULTILINE)) == 1
    monkeypatch.setenv("GPUSHMEM_MEMORY", "weak")
    session(UNFENCED, "--gpushmem-memory", "native", "-k", "unfenced").assert_outcomes(passed=1)


def test_a_seed_is_that_of_all_jobs(session):
    options = ("--gpushmem-memory", "weak", "--gpushmem-seed", "7")
    done = session(SEED, *options)
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*order of operations: --gpushmem-memory weak --gpushmem-seed 7"])


def test_each_test_has_folders_for_its_traces(session, pytester):
    session(TRACED, "--gpushmem-trace", "of it").assert_outcomes(passed=1, failed=1)
    done = session(TRACED, "--gpushmem-trace", "of it")  # in the place of those
    name = "of it/test_users.py-test_fails-2pes"
    seen = "see what the PEs did: gpushmem trace open"
    done.stdout.fnmatch_lines(
        ["*- gpushmem -*", f"{seen} '{name}'", f"{seen} '{name}+2'", "*1 failed, 1 passed*"]
    )
    done.stdout.no_fnmatch_line("*test_passes*trace open*")
    for folder in (name, f"{name}+2", "of it/test_users.py-test_passes"):
        trace = load(pytester.path / folder)
        assert "barrier_all" in {trace.label(event) for event in trace.events}
    assert len(list((pytester.path / "of it").iterdir())) == 3


def test_the_examples_of_the_page(session):
    page = (ROOT / "docs" / "testing.md").read_text()
    text = "".join(re.findall(r"<!-- a test -->\n```python\n(.*?)```", page, re.DOTALL))
    session(text, "--gpushmem-check").assert_outcomes(passed=4)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--gpushmem-check-ignore nowhere", "--gpushmem-check-ignore: there is no file nowhere"),
        ("--gpushmem-seed -1", "--gpushmem-seed: '-1' is not a whole number from 0 to 65536"),
        ("--gpushmem-memory weak --gpushmem-check", "*allowed: leave --gpushmem-memory weak out"),
        ("--gpushmem-trace test_users.py", "*no folder can be made at test_users.py: File exists"),
    ],
)
def test_options_that_make_no_sense_are_refused(session, options, said):
    done = session("", *options.split())
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([f"ERROR: {said}"])


def test_sessions_that_do_not_use_it_import_nothing(session):
    heavy = ("numba", "numpy", "llvmlite", "gpushmem.simt", "gpushmem.check", "gpushmem.start")
    text = f"""
        import sys

        def test_nothing():
            assert "gpushmem.pytest_plugin" in sys.modules
            assert [name for name in sys.modules if name.startswith({heavy})] == []
    """
    session(text).assert_outcomes(passed=1)


def test_the_entry_point_is_the_plugin():
    text = (ROOT / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\ngpushmem = "gpushmem.pytest_plugin"\n' in text


def test_kernels_that_are_compiled_already_cannot_be_checked(session):
    alone = """
        import pytest
        import gpushmem as shmem

        @shmem.jit
        def one(a):
            a[0] = 1

        def body():
            shmem.init(heap_size="1M")
            one[1, 1](shmem.zeros(1))

        def test_here():
            body()
            shmem.finalize()

        def test_in_a_pe(run_pes):
            run_pes(body)

        @pytest.mark.gpushmem_check
        def test_checked(run_pes):
            run_pes(body)
    """
    done = session(alone)
    done.assert_outcomes(passed=2, failed=1)
    done.stdout.fnmatch_lines(["*ShmemError: kernels have been compiled without the checker*"])


ORDERS = """
import pytest

import gpushmem as shmem


def tickets(pe, fixed):
    shmem.init(heap_size="1M")
    word = shmem.zeros(1, "int64")
    ticket = shmem.atomic_fetch_inc(word, 0)
    if shmem.my_pe() == pe and not fixed:
        assert ticket == 1, "came first"
    return ticket


@pytest.mark.gpushmem_check(runs="all", budget=30)
@pytest.mark.parametrize("pe", [0, 1])
def test_marked(run_pes, pe):
    run_pes(tickets, 2, pe, False)


@pytest.mark.gpushmem_check(runs="some")
def test_wrong(run_pes):
    run_pes(tickets, 2, 0, True)


def test_fixed(run_pes):
    assert sorted(run_pes(tickets, 2, 0, True)) == [0, 1]
"""


def test_a_mark_and_an_option_run_jobs_in_every_order(session):
    """Each PE comes first in some order: also one that the first run does not show."""
    done = session(ORDERS, "--gpushmem-check", "--gpushmem-check-runs", "all")
    done.assert_outcomes(passed=1, failed=2, errors=1)
    done.stdout.fnmatch_lines_random(
        [
            "*AssertionError: came first*",
            "gpushmem check: *the job fails*",
            "*repeat it with --gpushmem-check-schedule *",
            "E *ArgumentError: the mark gpushmem_check: runs is 'all', or left out, not 'some'",
        ]
    )
    name = re.search(r"repeat it with .*-schedule (\w+)$", done.stdout.str(), re.MULTILINE)[1]
    again = session(ORDERS, "-k", "marked", "--gpushmem-check-schedule", name)
    again.assert_outcomes(failed=1, passed=1)
