"""Counters: `gpushmem run --stats`, and `gpushmem.stats()`."""

import re

import numpy as np
import pytest

import gpushmem as shmem
from gpushmem.cli.stats import report
from gpushmem.errors import ShmemError
from gpushmem.size import format_size
from gpushmem.trace import counters

pytestmark = pytest.mark.cpu_backend

PROGRAM = """
import os, signal as signals, sys, time
import numpy as np
import gpushmem as shmem
from numba import cuda

@shmem.jit
def work(x, y, signal, n):
    right = (shmem.my_pe() + 1) % shmem.n_pes()
    shmem.put_signal_block(x, y, signal, n, shmem.SIGNAL_SET, right)
    if cuda.threadIdx.x == 0:
        shmem.signal_wait_until(signal, shmem.CMP_GE, n)
        shmem.p(x[5:], 1.0, right)
    cuda.syncthreads()
    shmem.get(y[cuda.threadIdx.x:cuda.threadIdx.x + 1], x, right)
    shmem.barrier_all_block()

shmem.init()
me, n = shmem.my_pe(), shmem.n_pes()
x, signal = shmem.zeros(100, "float32"), shmem.zeros(1, "uint64")
y = shmem.device_array(100, "float32")
shmem.free(shmem.empty(10000, "uint8"))
before = shmem.stats()
for k in range(1, 11):
    if me == 1:
        time.sleep(0.02)
    work[1, 32](x, y, signal, k)
    shmem.synchronize()
shmem.put(x, y, (me + 1) % n)
spent = shmem.stats() - before
"""
REPORT = """
told = {name: tuple(count)[:2] for name, count in spent.operations.items()}
assert spent.pe == me
assert told == {
    "put_signal_block": (10, 10 * 408), "signal_wait_until": (10, 0), "p": (10, 40),
    "get": (320, 1280), "barrier_all_block": (10, 0), "put": (1, 400),
}, told
expected = [0] * n
expected[(me + 1) % n] = 10 * 408 + 40 + 400
assert list(spent.put) == expected, spent.put
expected[(me + 1) % n] = 1280
assert list(spent.got) == expected, spent.got
assert spent.kernels.calls == 10
assert spent.host_waits.calls >= 10
assert spent.meetings.calls == 0
assert spent.waiting.calls == 20
assert spent.heap_peak == 10408
whole = shmem.stats()
assert whole.meetings.calls >= 5
assert 0 < whole.compiling.calls
assert "put_signal_block: 10 calls, 3.984 KiB" in str(spent), str(spent)
if me == 0:
    print(spent.waiting.seconds, spent.kernels.seconds)
shmem.finalize()
"""


@pytest.fixture
def counted(run_cli, tmp_path):
    """`counted(n, program, *options)`: run a program in n PEs that count."""

    def run(n, program, *options, code=0, env=None):
        (tmp_path / "program.py").write_text(program)
        return run_cli(
            "run", "--stats", "-n", n, *options, tmp_path / "program.py",
            code=code, timeout=200, env=env,
        )  # fmt: skip

    return run


@pytest.mark.parametrize(
    ("n", "options"),
    [(3, ["cpu"]), (2, ["nvshmem-cpu"]), (4, ["cpu", "--nodes", 2])],
)
def test_everything_is_counted_once(counted, n, options):
    program = PROGRAM + REPORT
    if "--nodes" in options:  # a local array of a put to another node has to be registered
        program = program.replace("shmem.device_array(100,", "shmem.zeros(100,")
        program = program.replace("heap_peak == 10408", "heap_peak == 10808")
    done = counted(n, program, "--backend", *options)
    waited, in_kernels = map(float, done.stdout.split())
    assert waited > 0.1  # for PE 1, which sleeps 0.2 s
    assert in_kernels >= waited
    rows = [line.split() for line in done.stderr.splitlines()]
    pes = [row for row in rows if row[:2] in [[str(pe), "10"] for pe in range(n)]]
    assert len(pes) == n, done.stderr
    moved = format_size(10 * 408 + 40 + 400 + 1280)  # by itself and by others, each way
    assert [" ".join(row).count(moved) for row in pes] == [2] * n, pes
    sent = format_size(10 * n * 408).split()
    assert [f"{10 * n}", *sent] in [row[:3] for row in rows if row[-1:] == ["put_signal_block"]]


def test_what_the_host_calls_is_counted_as_in_kernels(counted):
    """A put with a signal is one call, and what is got is not put."""
    program = """
import gpushmem as shmem
with shmem.session():
    x, s = shmem.zeros(10, "int64"), shmem.zeros(1, "uint64")
    before, to = shmem.stats(), (shmem.my_pe() + 1) % 2
    shmem.put_signal(x, x, s, 1, shmem.SIGNAL_SET, to)
    shmem.get(x[:3], x[3:], to)
    spent = shmem.stats() - before
    told = {name: tuple(count)[:2] for name, count in spent.operations.items()}
    assert told == {"put_signal": (1, 88), "get": (1, 24)}, told
    assert (spent.put[to], spent.got[to]) == (88, 24), spent
"""
    counted(2, program, "--backend", "cpu")


def test_a_report_of_some_of_the_pes():
    none = [counters.Count()] * 4
    (_, _, row) = report([counters.Stats(1, {}, *none, (2048, 0), (0, 0), 0)])
    assert row.split()[6:10] == ["2", "KiB", "0", "bytes"]


def test_counters_of_a_killed_pe_are_there(counted):
    end = "\nif me == 1: os.kill(os.getpid(), signals.SIGKILL)\nshmem.barrier_all()"
    done = counted(2, PROGRAM + end, "--backend", "cpu", code=137)
    assert re.search(r"^ 1 +10 ", done.stderr, re.MULTILINE), done.stderr
    assert "PE 1 of 2 was killed" in done.stderr


def test_the_folder_is_gone_afterwards(counted, tmp_path):
    (tmp_path / "t").mkdir()
    program = (
        "import os\nimport gpushmem as shmem\n"
        "with shmem.session():\n    print(shmem.stats().pe, *os.listdir(os.environ['TMPDIR']))\n"
    )
    done = counted(1, program, "--backend", "cpu", env={"TMPDIR": str(tmp_path / "t")})
    assert re.fullmatch(r"0 .*gpushmem-stats-\w+.*\n", done.stdout)
    assert not [path for path in (tmp_path / "t").iterdir() if "stats" in path.name]
    done = counted(1, "print('no init')", "--backend", "cpu")
    assert "no PE has counted anything: none has called init" in done.stderr


def test_options_that_do_not_go_together(counted, tmp_path):
    done = counted(1, "", "--trace", tmp_path / "out", code=2)
    assert "--trace and --stats: choose one of them" in done.stderr
    done = counted(1, "", "--backend", "null", code=2)
    assert "--stats: the null backend records nothing" in done.stderr


def test_without_counters_stats_says_how_to_count(alone):
    with pytest.raises(ShmemError, match=r"^stats: nothing is counted in this job: run it with"):
        shmem.stats()


def test_a_difference_has_what_was_done_between():
    a = counters.Stats(
        0, {"put": counters.Count(2, 16, 0.5)}, *[counters.Count()] * 4, (8,), (0,), 9
    )
    b = counters.Stats(
        0, {"put": counters.Count(5, 40, 1.5), "g": counters.Count(1, 8, 0.25)},
        *[counters.Count(1, 0, 2.0)] * 4, (20,), (8,), 11,
    )  # fmt: skip
    spent = b - a
    assert spent.operations == {"put": (3, 24, 1.0), "g": (1, 8, 0.25)}
    assert spent.kernels == (1, 0, 2.0)
    assert (spent.put, spent.got, spent.heap_peak) == ((12,), (8,), 11)
    assert (a - a).operations == {}


def test_bytes_of_many_threads_are_all_there(run_cli, tmp_path):
    """Eight PEs on few cores, with several cores of each, add to the same counters."""
    (tmp_path / "program.py").write_text("""
import gpushmem as shmem

@shmem.jit
def many(x):
    for k in range(100):
        shmem.atomic_add(x, 1, (shmem.my_pe() + k) % shmem.n_pes())

with shmem.session():
    x = shmem.zeros(1, "int64")
    many[32, 32](x)
    shmem.barrier_all()
    assert x.numpy()[0] == 32 * 32 * 100, x.numpy()
    stats = shmem.stats()
    assert stats.operations["atomic_add"][:2] == (32 * 32 * 100, 32 * 32 * 800), stats
    assert sum(stats.put) == 32 * 32 * 800
""")
    run_cli(
        "run", "--stats", "-n", 8, "--threads-per-pe", 2, "--backend", "cpu",
        tmp_path / "program.py", timeout=200,
    )  # fmt: skip


def test_pes_of_a_process_that_counts_have_counters_of_their_own(run_cli, tmp_path):
    (tmp_path / "program.py").write_text("""
import gpushmem as shmem

def pe():
    shmem.init()
    for _ in range(3):
        shmem.barrier_all()
    return shmem.stats().pe, shmem.stats().operations["barrier_all"].calls

shmem.init(heap_size="1M")  # in this process, which is a job of one PE
shmem.finalize()
print(shmem.spawn(pe, 1), shmem.spawn(pe, 2))
""")
    done = run_cli(
        "run", "--stats", "--backend", "cpu", tmp_path / "program.py", code=0, timeout=100
    )
    assert done.stdout == "[(0, 3)] [(0, 3), (1, 3)]\n"


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ShmemError, match=r"^no counters can be kept in /.*/file: File exists$"):
        counters.Counters(tmp_path / "file", 0, 1)


def test_what_is_read_is_what_was_counted(tmp_path):
    made = counters.Counters(tmp_path, 1, 2)
    for facts in (
        {"array": 0, "bytes": 100},
        {"array": 256, "bytes": 50},
        {"freed": 0},
        {"end": 3},
    ):
        made.describe(**facts)
    assert (made.stats().heap_peak, int(made.header["held"][0])) == (150, 50)
    (tmp_path / "pe0.counters").write_bytes(bytes(8192))  # one that was never begun
    (found,) = counters.read(tmp_path)
    assert found == made.stats()
    assert np.array(found.put).tolist() == [0, 0]
