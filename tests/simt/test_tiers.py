"""Kernels that are compiled quickly first, and optimised in the background."""

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from numba.cuda import types

from gpushmem import background, cache_files, code_store
from gpushmem.artifacts.launch_shape import shape_of
from gpushmem.simt.grid import entry as entries
from gpushmem.simt.grid import kernel_cache
from gpushmem.simt.run.kernel import Kernel
from tests.conftest import PLAIN, ROOT

SCALE = 4


def scaled(a):
    for i in range(a.size):
        a[i] *= SCALE


@pytest.fixture(autouse=True)
def auto(monkeypatch, tmp_path):
    monkeypatch.setenv("GPUSHMEM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("GPUSHMEM_TIER", "auto")
    monkeypatch.setattr(code_store, "_objects", {})
    monkeypatch.setattr("gpushmem.simt.run.kernel.PATIENCE", 0.1)
    monkeypatch.setattr(kernel_cache, "NICE", 0)  # other workers would hold it up for a minute


def kernel(function=scaled):
    return Kernel(function, cache=True)


def launch(kernel, a):
    running = kernel.prepare(shape_of(1, 1), (a,))
    running()
    return running.entry


def launch_until_optimised(kernel, a):
    """Launch until the code is optimised; returns how often that was."""
    limit = time.monotonic() + 60
    n = 1
    while launch(kernel, a).quick:
        assert time.monotonic() < limit
        time.sleep(0.01)
        n += 1
    return n


def test_a_launch_a_while_later_has_it_optimised_and_a_later_one_takes_that():
    scale, a = kernel(), np.ones(5)
    assert launch(scale, a).quick
    time.sleep(0.3)  # for one launch nothing is done
    assert not any(name.endswith(".lock") for name in os.listdir(cache_files.folder()))
    n = launch_until_optimised(scale, a)
    assert n > 1
    assert (a == 4.0 ** (n + 1)).all()
    assert not launch(kernel(), a).quick  # so does another kernel, as in the next run


def test_settings_choose_one(monkeypatch):
    for tier, quick in (("full", False), ("fast", True)):
        monkeypatch.setenv("GPUSHMEM_TIER", tier)
        monkeypatch.setattr(code_store, "_objects", {})
        scale = kernel()
        assert [launch(scale, np.ones(1)).quick for _ in range(3)] == [quick] * 3
    monkeypatch.setenv("GPUSHMEM_TIER", "auto")
    assert not launch(kernel(), np.ones(1)).quick  # it has been optimised


def test_a_global_that_changes_meanwhile_is_not_in_what_is_kept(monkeypatch):
    scale, a = kernel(), np.ones(1)
    launch(scale, a)
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 5)
    for _ in range(30):
        launch(scale, a)
        time.sleep(0.01)
    assert a[0] == 4.0**31
    quick = code_store.key(
        "quick", kernel_cache.name_for(scaled, (types.Array(types.float64, 1, "C"),), {})[0]
    )
    assert not cache_files.has(quick)  # its name is of the new value
    records = [
        name for name in os.listdir(cache_files.folder()) if cache_files.RECORD.fullmatch(name)
    ]
    assert len([name for name in records if not name.endswith(code_store.ENGINE)]) == 1


def test_what_cannot_be_kept_is_optimised_at_once(monkeypatch):
    monkeypatch.setattr(cache_files, "save", lambda name, data: False)
    assert not launch(kernel(), np.ones(1)).quick


def test_a_kernel_that_earlier_jobs_have_launched_once_each_is_optimised(monkeypatch):
    launch(kernel(), np.ones(1))
    for name in os.listdir(cache_files.folder()):
        os.utime(cache_files.folder() / name, (1, time.time() - 2 * kernel_cache.AGE))
    monkeypatch.setattr(code_store, "_objects", {})
    monkeypatch.setattr(cache_files, "MINUTE", np.inf)  # reading it does not make it new
    assert launch(kernel(), np.ones(1)).overdue
    limit = time.monotonic() + 60
    while launch(kernel(), np.ones(1)).quick:
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_lasting_launches_are_optimised_at_once():
    scale = kernel()
    assert launch(scale, np.ones(1)).quick
    running = scale.prepare(shape_of(1, 1), (np.ones(1),), lasting=True)
    assert not running.entry.quick


def test_bound_launches_and_graphs_take_it(run_pes):
    def body():
        import gpushmem as shmem

        @shmem.jit
        def add(a):
            a[0] += 1

        shmem.init()
        a = shmem.zeros(1, np.int64)
        go = add[1, 1].bind(a)
        limit, n = time.monotonic() + 60, 0
        while go._launch.entry.quick:
            assert time.monotonic() < limit
            go()
            shmem.synchronize()
            time.sleep(0.01)
            n += 1
        return n > 1 and a[0] == n

    assert run_pes(body, 1) == [True]


def test_the_same_bits():
    def sums(a, b):
        total = np.float32(0)
        for i in range(a.size):
            total += a[i] * b[i]
            b[i] = total / np.float32(3) - a[i]

    rng, results = np.random.default_rng(1), []
    a, b = rng.random((2, 999), np.float32)
    argtypes = (types.Array(types.float32, 1, "C"),) * 2
    for quick in (True, False):
        _, entry = entries.build(sums, argtypes, quick=quick)
        assert entry.quick == quick
        copy, made = b.copy(), kernel(sums)
        made._entries[argtypes, entries.ONE] = entry
        made.prepare(shape_of(1, 1), (a, copy))()
        results.append(copy.tobytes())
    assert results[0] == results[1]


def test_work_beside_ends_with_the_process(tmp_path):
    code = f"""
import os, time
from pathlib import Path
from gpushmem.background import beside
said = Path({str(tmp_path / "pid")!r})
def work():
    said.write_text(str(os.getpid()))
    time.sleep(60)
beside(work)
try:
    os.waitpid(-1, 0)
except ChildProcessError:
    print("no child")
while not (said.exists() and said.read_text()):
    time.sleep(0.01)
"""
    environ = PLAIN | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=50,
        check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr, done.returncode) == ("no child\n", "", 0)
    pid, limit = int((tmp_path / "pid").read_text()), time.monotonic() + 10
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_where_no_process_can_be_made_nothing_is_done(monkeypatch):
    def none():
        raise BlockingIOError("too many")

    monkeypatch.setattr(background, "fork", none)
    background.beside(lambda: None)


def test_records_that_came_with_the_package_are_taken_and_others_built(monkeypatch, tmp_path):
    monkeypatch.setattr(cache_files, "SHIPPED", tmp_path)
    name = code_store.key("a function") + code_store.ENGINE

    def found():
        monkeypatch.setattr(code_store, "_objects", {})
        return code_store.get_or_build(name, lambda: "built", pickle.dumps, pickle.loads, keep=True)

    path, whole = (
        tmp_path / name,
        cache_files._head(name, pickle.dumps("came")) + pickle.dumps("came"),
    )
    path.write_bytes(whole)
    assert found() == "came"
    for damaged in (whole[:-1], b"", whole.replace(b"came", b"cane"), whole + b"."):
        path.write_bytes(damaged)
        assert found() == "built"
    path.unlink()
    path.mkdir()
    assert found() == "built"
