"""`session`: init and finalize in one, and what becomes of errors; programs without an end."""

import sys
import time
import warnings

import numpy as np
import pytest
from numba import cuda

import gpushmem as shmem
from gpushmem.errors import CollectiveMismatch, ShmemError, SymmetryError

HEAP = "1M"


@shmem.jit
def wait_for(signal, value):
    shmem.signal_wait_until(signal, shmem.CMP_EQ, value)


@shmem.jit
def late(y):
    cuda.nanosleep(50_000_000)
    y[0] = 1


def test_a_session_is_init_and_finalize(run_pes):
    def body():
        found = []
        for _ in range(2):
            with shmem.session() as world:
                assert shmem.is_initialized()
                x = shmem.full(1, 1000 + world.my_pe)
                shmem.barrier_all()
                found.append((world.my_pe, world.n_pes, float(x.numpy()[0])))
            assert not shmem.is_initialized()
            with pytest.raises(SymmetryError, match="after finalize"):
                x.numpy()
        return found

    assert run_pes(body, 3) == [[(pe, 3, 1000.0 + pe)] * 2 for pe in range(3)]


def test_what_init_takes_and_finalize_reports():
    with pytest.raises(shmem.ArgumentError, match="is not a size"), shmem.session(heap_size="much"):
        pass
    with pytest.raises(shmem.ArgumentError, match="heap"):
        shmem.session(heap="1M")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with shmem.session("cpu", heap_size=HEAP, bootstrap="local"):
            assert shmem.heap_stats().total == 1 << 20
            shmem.zeros(3)
    assert [(w.category, w.filename) for w in caught] == [(ResourceWarning, __file__)]


def test_finalize_within_a_session():
    with shmem.session(heap_size=HEAP):
        shmem.finalize()
    with pytest.raises(KeyError), shmem.session(heap_size=HEAP):
        shmem.finalize()
        raise KeyError


def test_leaving_by_sys_exit_is_no_error():
    """What has been launched is done."""
    y = np.zeros(1)
    with pytest.raises(SystemExit), shmem.session(heap_size=HEAP):
        copy = shmem.register(y)
        late[1, 1](copy)
        sys.exit()
    assert y[0] == 1
    assert not shmem.is_initialized()


def test_the_only_pe_can_begin_again_after_an_error():
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"), shmem.session(heap_size=HEAP):
            x = shmem.zeros(1, "uint64")
            wait_for[1, 1](x, 1)  # which nobody sets: the block's error is the one that is seen
            raise KeyError("mine")
        assert not shmem.is_initialized()
        with pytest.raises(SymmetryError):
            x.numpy()


def test_an_error_that_is_caught_is_told_to_those_who_wait(run_pes):
    """The PE that leaves does not wait; the others hear of it when it has ended."""

    def body():
        try:
            with shmem.session() as world:
                x = shmem.zeros(1, "uint64")
                if world.my_pe == 1:
                    raise KeyError("mine")
                shmem.barrier_all()
        except KeyError:
            with pytest.raises(ShmemError, match="PE 1 of 3, which no longer takes part"):
                shmem.init()
            with pytest.raises(SymmetryError, match="an error ended its session"):
                x.numpy()
            return "left"
        except CollectiveMismatch as error:
            return str(error)

    first, left, last = run_pes(body, 3)
    assert left == "left"
    for text in (first, last):
        assert "barrier_all waits for PE 1, which ended without making this call" in text


WAYS = {
    "in a barrier": "shmem.barrier_all()",
    "in a kernel": "wait[1, 1](x)\n        shmem.synchronize()",
    "at the end": "pass",
}
PROGRAM = """
import gpushmem as shmem

@shmem.jit
def wait(x):
    shmem.signal_wait_until(x, shmem.CMP_EQ, 1)

with shmem.session() as world:
    x = shmem.zeros(1, "uint64")
    if world.my_pe == 1:
        wait[1, 1](x)
        raise RuntimeError("no good")
    else:
        {waits}
"""


@pytest.mark.parametrize("way", WAYS)
def test_an_error_ends_the_job(tmp_path, run_cli, way):
    script = tmp_path / "half.py"
    script.write_text(PROGRAM.format(waits=WAYS[way]))
    began = time.monotonic()
    done = run_cli("run", "-n", "3", script, code=1)
    assert "PE 1 failed" in done.stderr
    assert "RuntimeError: no good" in done.stderr
    assert "Deadlock" not in done.stderr
    assert time.monotonic() - began < 30


WITHOUT_END = """
import sys
import gpushmem as shmem

@shmem.jit
def add(x, pe):
    shmem.atomic_add(x, 1, pe)

shmem.init()
x = shmem.zeros(1, "int64")
add[1, 1](x, (shmem.my_pe() + 1) % shmem.n_pes())
{end}
"""


@pytest.mark.parametrize(
    ("end", "code"), [("", 0), ("sys.exit()", 0), ("sys.exit(3)", 3), ("raise ValueError('x')", 1)]
)
def test_programs_that_do_not_finalize_end(tmp_path, run_cli, end, code):
    script = tmp_path / "open.py"
    script.write_text(WITHOUT_END.format(end=end))
    done = run_cli("run", "-n", "2", script, code=code)
    assert "ignored" not in done.stderr
    assert ("ValueError: x" in done.stderr) == ("ValueError" in end)


def test_a_session_within_another(alone):
    with pytest.raises(shmem.ArgumentError, match="already initialised"), shmem.session():
        pass
    assert shmem.is_initialized()
