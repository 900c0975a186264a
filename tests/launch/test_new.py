"""PEs that are new processes, as the nvshmem backend's are; what they meet needs no GPU."""

import json
import os
import pickle
import re
import subprocess
import sys
import threading
import time

import pytest

import gpushmem as shmem
from gpushmem.backends import selection
from gpushmem.start import bootstrap
from gpushmem.start.launch.spawn import collect
from tests.conftest import PLAIN, ROOT
from tests.files import open_files

NVSHMEM = ("run", "--backend", "nvshmem")
HEAD = """
import os, signal, sys, time
from gpushmem.start import bootstrap
peers = bootstrap.find_peers()
my_pe = peers.my_pe
heard = peers.broadcast(b"%03d" % peers.n_pes if my_pe == 0 else None)
"""


@pytest.fixture
def script(tmp_path):
    """Write a script, which begins with `HEAD`, and return its path."""

    def write(text, head=HEAD):
        path = tmp_path / "job.py"
        path.write_text(head + text)
        return path

    return write


def test_what_a_pe_has(run_cli, script):
    path = script(
        "import json, pickle\ndef f(): return 5\n"
        "assert pickle.loads(pickle.dumps(f))() == 5 and __name__ == '__main__'\n"
        "loaded = [m for m in ('numba', 'gpushmem.backends.cpu') if m in sys.modules]\n"
        "print(json.dumps([my_pe, peers.local_pe, peers.n_local, peers.heap_size, heard.decode(),\n"
        "    loaded, sys.argv, sys.path[0], os.getpgid(0), os.environ['GPUSHMEM_BACKEND'],\n"
        "    os.environ['GPUSHMEM_TRANSPORT'], bool(sys.stdin.read()), peers.bootstrap]))\n"
    )
    done = run_cli(
        *NVSHMEM, "-n", 3, "--heap-size", "4M", "--transport", "p2p", path, "-n", "a b",
        stdin="to zero", code=0,
    )  # fmt: skip
    rows = sorted(json.loads(line) for line in done.stdout.splitlines())
    for pe, row in enumerate(rows):
        assert row[:6] == [pe, pe, 3, 4 << 20, "003", []]
        assert row[6:8] == [[str(path), "-n", "a b"], str(path.parent)]
        assert row[9:12] == ["nvshmem", "p2p", pe == 0]
        assert re.fullmatch(r"started by gpushmem run \(pid \d+\)", row[12])
    assert len({row[8] for row in rows}) == 1, "one process group"


def test_tagged_lines_and_modules(run_cli, script, tmp_path):
    path = script(
        "for k in range(50): print(my_pe, 'y' * 300, k)\nprint('err', my_pe, file=sys.stderr)\n"
        "sys.stdout.buffer.write(b'\\xff\\xfe last')"
    )
    done = run_cli(*NVSHMEM, "-n", 2, "--tag-output", "-m", path.stem, cwd=tmp_path, code=0)
    lines = done.stdout.splitlines()
    for pe in range(2):
        mine = [line for line in lines if line.startswith(f"[{pe}] ")]
        assert mine[:50] == [f"[{pe}] {pe} {'y' * 300} {k}" for k in range(50)]
        assert mine[50:] == [f"[{pe}] \udcff\udcfe last"]
        assert f"[{pe}] err {pe}\n" in done.stderr


# What a PE does, the exit code of the job, and what is said.
ENDS = [
    ("sys.exit(3)", 3, "PE 0 of 2 ended with exit code 3; the other PE was ended"),
    ("raise ValueError('no good')", 1, "PE 0 failed:\nTraceback (most recent call last):\n  File"),
    pytest.param(
        "os.kill(os.getpid(), signal.SIGSEGV)",
        139,
        "PE 0 of 2 was killed by SIGSEGV",
        marks=pytest.mark.sweep,
    ),
    pytest.param("sys.exit('sorry')", 1, "sorry\n", marks=pytest.mark.sweep),
    pytest.param("os._exit(9)", 9, "PE 0 of 2 ended with exit code 9", marks=pytest.mark.sweep),
    pytest.param("sys.exit()", 0, "", marks=pytest.mark.sweep),
]


@pytest.mark.parametrize(("statement", "code", "text"), ENDS)
def test_exit_codes(run_cli, script, statement, code, text):
    path = script(f"if my_pe == 0:\n    {statement}\n" + f"time.sleep({30 * bool(code)})")
    err = run_cli(*NVSHMEM, "-n", 2, path, code=code).stderr
    assert text in err
    assert "gpushmem/start" not in err, "the traceback begins in the script"


def test_who_does_not_come_is_named_at_once(run_cli, script):
    leaves = "from gpushmem.job import job\nif job.current().my_pe == 1:\n    raise SystemExit\n"
    done = run_cli(*NVSHMEM, "-n", 3, script("", leaves + HEAD), code=1)
    assert "BootstrapError: PE 1 of 3 ended without calling init" in done.stderr


@pytest.mark.skipif(selection.unusable("nvshmem") is None, reason="there is a GPU")
def test_init_says_what_is_missing(run_cli, script):
    done = run_cli(*NVSHMEM, script("import gpushmem\ngpushmem.init()\n", ""), code=1)
    *_, error, _page = done.stderr.splitlines()
    assert "BackendUnavailable: backend nvshmem cannot be used here: " in error


@pytest.mark.sweep
def test_children_of_a_pe_are_not_pes(run_cli, script):
    child = "from gpushmem.start import bootstrap; print(bootstrap.find_peers().n_pes)"
    path = script(f"import subprocess\nsubprocess.run([sys.executable, '-c', {child!r}])\n")
    assert run_cli(*NVSHMEM, "-n", 2, path, code=0).stdout == "1\n" * 2


def test_the_launcher_loads_no_compiler(script):
    code = (
        "import sys\nfrom gpushmem.cli import run\n"
        "run.leave = lambda code: print(code, 'numba' in sys.modules)\n"
        f"run.command(['--backend', 'nvshmem', {str(script(''))!r}], standalone_mode=False)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=PLAIN
    )
    assert done.stdout == "0 False\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--backend", "abacus"], "'abacus' is not one of 'cpu', 'nvshmem'"),
        (["--transport", "rope"], "'rope' is not one of 'auto', 'p2p'"),
        (["--hca", "a;b"], "'a;b' is not a list such as mlx5_0:1,mlx5_1:1"),
        (["--nic-map", "a:1"], "'a:1' is not a list such as mlx5_0:1:2,mlx5_1:1:2"),
    ],
)
def test_options_that_make_no_sense(run_cli, options, message):
    done = run_cli("run", *options, "examples/ring.py", code=2)
    assert message in " ".join(done.stderr.split())


@pytest.mark.sweep
def test_a_script_may_choose_the_cpu_backend_all_the_same(run_cli, script):
    path = script(
        "import gpushmem as shmem\nshmem.init(backend='cpu', heap_size='1M')\n"
        "x = shmem.full(1, shmem.my_pe(), dtype='int64')\n"
        "shmem.reduce(shmem.TEAM_WORLD, x, x, 'sum')\nprint(x.numpy())\n", ""
    )  # fmt: skip
    assert run_cli(*NVSHMEM, "-n", 3, path, code=0).stdout == "[3]\n" * 3


# --- spawn


def greet(word):
    """A function of a module, which pickle can take."""
    found = bootstrap.find_peers()
    heard = found.broadcast(word.encode() if found.my_pe == 0 else None)
    return found.my_pe, heard.decode(), os.environ["GPUSHMEM_BACKEND"]


def spawn(function, n, *args):
    return shmem.spawn(function, n, args, backend="nvshmem")


def test_closures_and_their_results():
    base, variant, team = [5], shmem.iput_warp, shmem.TEAM_INVALID
    kernel = shmem.jit(lambda x: variant(x, x, 1, 1, 1, 0))

    def body(k):
        found = bootstrap.find_peers()
        loaded = "numba" in sys.modules
        same = [
            variant is shmem.iput_warp, team is shmem.TEAM_INVALID, callable(shmem.jit),
            kernel.py_func.__closure__[0].cell_contents is variant,
        ]  # fmt: skip
        return base[0] + k + found.my_pe, all(same), team, loaded

    before = open_files()
    rows = spawn(body, 2, 1)
    assert rows == [(pe + 6, True, team, False) for pe in range(2)]
    assert all(row[2] is team for row in rows)
    assert not open_files() - before


WITHOUT = """
import sys
sys.modules["cloudpickle"] = None
import gpushmem as shmem
from tests.launch.test_new import greet
print(shmem.spawn(greet, 2, ("hello",), backend="nvshmem"))
for function in (lambda: 0, type("Defined", (), {}), shmem.my_pe):
    try:
        print(shmem.spawn(function, 0 + 1, backend="nvshmem"))
    except shmem.ShmemError as error:
        print(error)
"""


def test_without_cloudpickle(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True, cwd=ROOT,
        env=PLAIN | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[0] == "[(0, 'hello', 'nvshmem'), (1, 'hello', 'nvshmem')]"
    for line, name in zip(lines[1:3], ("<lambda>", "Defined"), strict=True):
        assert line.startswith(f"spawn: {name} cannot be sent to new processes (it is defined in")
        assert line.endswith("define it in a module, or pip install cloudpickle")
    assert lines[3].startswith("PE 0 failed: gpushmem.errors.NotInitializedError: my_pe")


def test_what_cannot_be_sent():
    with pytest.raises(shmem.ArgumentError, match="cannot pickle '_thread"):
        spawn(print, 1, threading.Lock())


def test_a_pe_that_fails(capfd):
    def body():
        if bootstrap.find_peers().my_pe == 1:
            raise KeyError("lost")
        threading.Event().wait(30)

    with pytest.raises(shmem.PeerFailed, match=r"PE 1 failed: KeyError: 'lost' \(.*test_new.py"):
        spawn(body, 2)
    assert capfd.readouterr().err.count("Traceback") == 1


def test_a_job_has_a_limit():
    outcome, _ = collect(2, lambda: time.sleep(30), backend="nvshmem", limit=1.0)
    assert outcome.code == 124
    assert "the job exceeded its limit of 1 s" in outcome.reason


def test_results_are_what_was_returned():
    value = {"a": bytes(3_000_000), "b": pickle.PicklingError}
    assert spawn(lambda: value, 1) == [value]
