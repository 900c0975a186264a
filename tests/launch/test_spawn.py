"""PEs from inside a program."""

import io
import os
import subprocess
import sys
import threading

import pytest

import gpushmem as shmem
from tests.files import open_files


def total(scale):
    shmem.init(heap_size="1M")
    x = shmem.full(1, scale * (shmem.my_pe() + 1), dtype="int64")
    shmem.reduce(shmem.TEAM_WORLD, x, x, "sum")
    value = int(x.numpy()[0])
    shmem.finalize()
    return shmem.is_initialized(), value


@pytest.mark.parametrize("n", [1, 3])
def test_results_by_pe(n):
    assert shmem.spawn(total, n_pes=n, args=(10,)) == [(False, 10 * n * (n + 1) // 2)] * n


def test_closures_and_many_times():
    base = [5]

    def body(k):
        shmem.init()
        return base[0] + k + shmem.my_pe()

    before = open_files()
    for k in range(3):
        assert shmem.spawn(body, 2, (k,)) == [5 + k, 6 + k]
    assert not open_files() - before


def test_a_pe_that_fails():
    def body():
        shmem.init()
        if shmem.my_pe() == 1:
            raise KeyError("lost")
        shmem.barrier_all()

    with pytest.raises(shmem.PeerFailed, match=r"PE 1 failed: KeyError: 'lost' \(.*test_spawn.py"):
        shmem.spawn(body, 2)


def test_a_deadlock_has_its_report_once(capfd):
    def body():
        shmem.init()
        shmem.wait_until(shmem.zeros(1, "int32"), shmem.CMP_EQ, shmem.my_pe() + 1)

    with pytest.raises(shmem.Deadlock, match=r"no PE can go on\n\nPE 0: host, in wait_until.*== 1"):
        shmem.spawn(body, 2)
    assert "wait_until" not in capfd.readouterr().err


def test_a_timeout_has_its_report():
    def body():
        shmem.init()
        if shmem.my_pe() == 0:
            shmem.barrier_all()
        threading.Event().wait(20)

    with pytest.raises(shmem.WaitTimeout, match=r"waited for 0.5 s in barrier_all\n\nPE 0"):
        shmem.spawn(body, 2, timeout=0.5)


MEMORIES = """
import numpy as np
import gpushmem as shmem


def late(n):
    shmem.init(heap_size="1M")
    me, x = shmem.my_pe(), shmem.zeros(n, "int32")
    for k in range(n):
        shmem.p(x[k : k + 1], 1, 1 - me)
    shmem.sync_all()  # which completes nothing
    arrived = int(np.asarray(x).sum())
    shmem.barrier_all()
    return n - arrived


weak = {"memory": "weak", "seed": 1}
for how in (weak, {}, weak, {"memory": "native"}):
    print(sum(shmem.spawn(late, 2, (20,), **how)) > 0)
"""


def test_memory_is_as_asked_for_in_each_job():
    """In a process of its own: kernels of other tests are compiled here, without weak memory."""
    outcome = subprocess.run(
        [sys.executable, "-c", MEMORIES], check=True, capture_output=True, text=True, timeout=120
    )
    assert outcome.stdout.split() == ["True", "False", "True", "False"]


def test_output_goes_where_python_writes(monkeypatch):
    """In a notebook `sys.stdout` is not the process's standard output."""

    def body():
        shmem.init()
        print("this is PE", shmem.my_pe())
        os.write(2, b"straight\n")
        shmem.barrier_all()

    streams = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    shmem.spawn(body, 2)
    assert sorted(streams[0].getvalue().splitlines()) == ["this is PE 0", "this is PE 1"]
    assert streams[1].getvalue() == "straight\n" * 2


def test_from_another_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(shmem.spawn(total, 2, (1,))))
    thread.start()
    thread.join()
    assert found == [[(False, 3)] * 2]


def test_what_is_refused(alone):
    with pytest.raises(shmem.ArgumentError, match="is initialised in this process"):
        shmem.spawn(total, 2, (1,))
    with pytest.raises(shmem.ArgumentError, match="n_pes must be a whole number from 1 to 65536"):
        shmem.spawn(total, 0, (1,))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"n_pes": 100_000}, "n_pes must be a whole number from 1 to 65536, not 100000"),
        ({"n_pes": 10**5000}, "n_pes must be .*, not an integer of more than 64 bits"),
        ({"n_pes": 1e20}, "n_pes must be"), ({"n_pes": None}, "n_pes must be"),
        ({"timeout": float("nan")}, "timeout must be a number of seconds above 0, at most 1e+"),
        ({"timeout": float("inf")}, "timeout must be"), ({"timeout": 1e300}, "timeout must be"),
        ({"timeout": 0}, "timeout must be"), ({"timeout": "1"}, "timeout must be"),
        ({"threads_per_pe": 0}, "threads_per_pe must be"), ({"args": 5}, "args must be a tuple"),
        ({"function": 3}, "function must be something to call, not 3"),
        ({"heap_size": "lots"}, "'lots' is not a size"),
        ({"memory": "week"}, "memory must be 'native', 'weak' or None, not 'week'"),
        ({"memory": "weak", "backend": "null"}, "null backend performs no operation late"),
        ({"seed": -1}, "seed must be a whole number from 0 to 65536, or None, not -1"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_by_name(options, said):
    with pytest.raises(shmem.ArgumentError, match=said.replace("+", r"\+")):
        shmem.spawn(**{"function": print, **options})


def test_after_a_job_of_one_pe(tmp_path):
    script = tmp_path / "both.py"
    script.write_text(
        "import gpushmem as shmem\n"
        "shmem.init(heap_size='1M')\nshmem.barrier_all()\nshmem.finalize()\n"
        "def body():\n    shmem.init(heap_size='1M')\n    shmem.barrier_all()\n"
        "    return shmem.my_pe(), shmem.n_pes()\n"
        "print(shmem.spawn(body, 3))\n"
        "shmem.init(heap_size='1M')\nprint(shmem.n_pes())\n"
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "[(0, 3), (1, 3), (2, 3)]\n1\n", done.stderr


class CannotBeMade(Exception):
    def __reduce__(self):
        return int, ("no number",)


def test_a_result_that_cannot_be_sent_is_named():
    def body(value):
        shmem.init()
        return value() if shmem.my_pe() else 3

    with pytest.raises(shmem.PeerFailed, match="the result of PE 1, of type lock, cannot be sent"):
        shmem.spawn(body, 2, (threading.Lock,))
    with pytest.raises(shmem.ArgumentError, match=r"result of PE 1 cannot be read here .*int"):
        shmem.spawn(body, 2, (CannotBeMade,))
