"""How far something has come: on terminals, and nowhere else."""

import signal
import subprocess
import sys

import pytest

from gpushmem import code_store, progress
from tests.conftest import PLAIN, ROOT
from tests.launch.test_local import within
from tests.terminal import on_a_terminal

STEPS = """
import sys, threading, time
from gpushmem.progress import progress
with progress("cooking", 3) as bar:
    for k in bar.each(range(3), lambda k: f"[red]pot {k}"):
        bar.print("stirred", k)
        while k == 1 and "wait" in sys.argv:
            time.sleep(0.01)
with progress("unseen", 3, shown=False) as bar:
    bar.advance()
print(threading.active_count(), "rich" in sys.modules)
"""
HIDE, WIPE = "\x1b[?25l", "\x1b[1A\x1b[2K"


@pytest.fixture
def steps(tmp_path):
    path = tmp_path / "steps.py"
    path.write_text(STEPS)
    return path


def test_a_terminal_shows_steps_and_is_clean_afterwards(steps, tmp_path):
    with (
        open(tmp_path / "out", "w") as out,
        on_a_terminal(steps, raw=True, stdout=out) as (process, printed),
    ):
        assert process.wait(timeout=30) == 0
        shown = printed()
    for k in range(3):
        assert f"{k}/3" in shown
        assert f"[red]pot {k}" in shown
    assert "3/3" in shown
    assert "unseen" not in shown
    assert shown.endswith(WIPE)
    # Standard output has what was printed; no thread draws.
    assert (tmp_path / "out").read_text() == "stirred 0\nstirred 1\nstirred 2\n1 True\n"


WATCHED = """
import sys, time
from gpushmem.progress import watched
began = time.monotonic() - float(sys.argv[1])
assert list(watched("reading", range(20_000), 20_000, began)) == list(range(20_000))
"""


@pytest.mark.parametrize(("seconds", "shown"), [(0, False), (2, True)])
def test_what_takes_long_is_shown(tmp_path, seconds, shown):
    path = tmp_path / "watched.py"
    path.write_text(WATCHED)
    with on_a_terminal(path, seconds) as (process, printed):
        assert process.wait(timeout=30) == 0
        assert ("reading" in printed() and "16384/20000" in printed()) == shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_what_is_interrupted_leaves_the_cursor(steps, number):
    with on_a_terminal(steps, "wait", raw=True) as (process, printed):
        within(30, lambda: "pot 1" in printed().partition("stirred 1")[2])
        process.send_signal(number)
        process.wait(timeout=10)
        shown = printed()
    assert HIDE not in shown
    if number == signal.SIGINT:
        assert shown.rfind("Traceback") > shown.rfind(WIPE) > shown.rfind("pot 1"), "wiped before"


DRAWING = """
import os, signal, sys
from gpushmem.progress import progress
signal.signal(signal.SIGINT, lambda *_: os._exit(7))
with progress("cooking", 3) as bar:
    bar.advance()
    update = bar._line.update
    def update_and_interrupt(*args, **named):
        os.kill(os.getpid(), signal.SIGINT)
        update(*args, **named)
        sys.stderr.write("drawn")
    bar._line.update = update_and_interrupt
    bar.advance()
"""


def test_an_interrupt_waits_until_the_line_is_drawn(tmp_path):
    """Else it would wipe the line while that is being written, which Python refuses."""
    path = tmp_path / "drawing.py"
    path.write_text(DRAWING)
    with on_a_terminal(path, raw=True) as (process, printed):
        assert process.wait(timeout=30) == 7
        shown = printed()
    assert shown.endswith(WIPE)
    assert "drawn" in shown


def test_what_is_piped_shows_nothing(steps):
    done = subprocess.run(
        [sys.executable, steps], capture_output=True, text=True, check=True,
        env={**PLAIN, "PYTHONPATH": str(ROOT), "FORCE_COLOR": "1", "TTY_INTERACTIVE": "1"},
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout == "stirred 0\nstirred 1\nstirred 2\n1 False\n"


def test_a_program_without_standard_error_shows_nothing(steps):
    code = f"import sys; sys.stderr = None; exec(open({str(steps)!r}).read())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.endswith("1 False\n")


def test_the_first_job_of_a_machine_says_what_it_does(tmp_path):
    """Ctrl-C ends `gpushmem run` at once, also in the middle of that."""
    script = tmp_path / "nothing.py"
    script.write_text("")
    run = ("-m", "gpushmem", "run", "--backend", "cpu", script)
    with on_a_terminal(*run, raw=True, GPUSHMEM_CACHE_DIR=str(tmp_path)) as (process, printed):
        within(30, lambda: "compiling what kernels need, 2 s" in printed())
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=10) == 128 + signal.SIGINT


LONG = """
import os, time
from gpushmem import progress
progress.SHOWN = progress.EVERY = progress.SAID = 0.01
with progress.compiling("kernel a (1 of 2)"), progress.compiling("what it needs"):
    time.sleep(1.2)
with progress.compiling("kernel b", "check+trace"):
    time.sleep(0.2)
os.close(2)  # nobody listens
with progress.compiling("kernel c"):
    time.sleep(0.2)
"""


def test_what_takes_long_to_compile_is_said_with_its_seconds():
    with on_a_terminal("-c", LONG, raw=True) as (process, printed):
        assert process.wait(timeout=30) == 0
        lines = printed().split(progress.WIPE)
    told = list(dict.fromkeys(filter(None, lines)))
    assert told == [
        "gpushmem: compiling kernel a (1 of 2), 0 s", "gpushmem: compiling kernel a (1 of 2), 1 s",
        "gpushmem: compiling kernel b once more, for --check --trace, 0 s",
    ]  # fmt: skip
    assert lines[-1] == "", "the last one is wiped, too"


@pytest.mark.parametrize("shown", ["0", "1"])
def test_what_takes_long_to_compile_is_a_line_where_it_is_piped(shown):
    done = subprocess.run(
        [sys.executable, "-c", LONG], capture_output=True, text=True, check=True,
        env={**PLAIN, "PYTHONPATH": str(ROOT), "GPUSHMEM_PROGRESS": shown},
    )  # fmt: skip
    told = ["kernel a (1 of 2)", "kernel b once more, for --check --trace"]
    wanted = [f"gpushmem: compiling {what}: 0 s so far" for what in told]
    assert done.stderr.splitlines() == (wanted if shown == "1" else [])


def test_who_asks_is_told_of_what_is_built_only(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUSHMEM_CACHE_DIR", str(tmp_path))
    told = []
    for name in ("a", "b", "a"):
        with code_store.telling(lambda name=name: told.append(name)):
            code_store.get_or_build(code_store.key("told", name), lambda: b"x", bytes, bytes)
    code_store.get_or_build(code_store.key("told", "c"), lambda: b"x", bytes, bytes)
    assert told == ["a", "b"]


def test_one_pe_shows_the_steps_of_an_example():
    with on_a_terminal("-m", "gpushmem", "run", "-n", 2, "examples/jacobi.py") as (job, printed):
        assert job.wait(timeout=120) == 0
        shown = printed()
    assert shown.count("steps 200 the last changes a cell by") == 1
    assert "2 PEs as (1, 2): 400 steps" in shown


def test_compiling_is_shown():
    pytest.importorskip("nvshmem")
    compiling = ("-m", "gpushmem", "compile", "examples/ring.py")
    with on_a_terminal(*compiling) as (process, printed):
        assert process.wait(timeout=150) == 0
        shown = printed()
    assert shown.count("0/1 --:-- shift, sm_90") == 1, "by one PE"
    assert "1/1 " in shown
