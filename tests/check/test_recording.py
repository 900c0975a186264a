"""What is recorded of loads and stores: runs, each by one thread or by consecutive threads."""

import subprocess
import sys

import numpy as np
import pytest

from gpushmem.check import log
from gpushmem.check.accesses import SHARED_MEMORY
from gpushmem.check.pe_memory import Pe
from gpushmem.simt.compiler.observer import LOAD, STORE
from tests.conftest import PLAIN

PROGRAM = """
import numpy as np
from numba import cuda

import gpushmem as shmem


@shmem.jit
def loop(x, y):
    for k in range(1, x.size):
        y[k] = x[k - 1] + 1


@shmem.jit
def blocks(x, y):
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    y[cuda.grid(1)] = 7
    if b == 1:
        y[12 + t] = t
    shared = cuda.shared.array(4, np.int64)
    shared[0] = x[0]  # the next block has another one, at the same address


@shmem.jit
def table(x, y):
    for i in range(1 + cuda.threadIdx.x):  # other lines of other rows, and once more
        for row in range(i, i + 3):
            for k in range(3):
                y[4 * row + k] = x[k] + k
        cuda.syncthreads()


@shmem.jit
def rows_of_threads(x, y):
    for k in range(3):
        y[4 * cuda.grid(1) + k] = x[k] + k


@shmem.jit
def rows_of_zeros(x, y):
    for value in range(2):
        for row in range(4):
            for k in range(3):
                y[4 * row + k] = value


shmem.init()
x, y = shmem.zeros(16, "int64"), shmem.zeros(16, "int64")
{}(x, y)
shmem.finalize()
"""


@pytest.fixture
def accesses(run_cli, tmp_path):
    """`accesses(launch)`: the runs of a job whose PE makes this launch, loads first.

    `written`: as how many records they are in the log.
    """

    def recorded(launch, written=None):
        path = tmp_path / "program.py"
        path.write_text(PROGRAM.format(launch))
        env = {"GPUSHMEM_CHECK": str(tmp_path)}
        run_cli("run", "--backend", "cpu", "-n", 1, path, code=0, env=env)
        (trace,) = log.read(tmp_path)
        rows = Pe(trace).plain
        assert written in (None, np.sum(trace.records["kind"] == log.ACCESS))
        return rows[np.lexsort((rows["stamp"], rows["how"]))]

    return recorded


PLACES = """
import numpy as np
from numba.cuda.typing.typeof import Purpose, typeof

from gpushmem.backends.cpu.observers import observe_kernels
from gpushmem.simt.run.kernel import Kernel


def loop(x, y):
    for k in range(1, x.size):
        y[k] = x[k - 1] + 1


observe_kernels("GPUSHMEM_CHECK")
array = typeof(np.zeros(1), Purpose.argument)
print(Kernel(loop).compile((array, array)).observed)
"""


def test_the_counter_of_a_loop_is_not_looked_at(tmp_path):
    path = tmp_path / "places.py"
    path.write_text(PLACES)
    done = subprocess.run(
        [sys.executable, path],
        check=True,
        capture_output=True,
        text=True,
        env=PLAIN | {"GPUSHMEM_CHECK": str(tmp_path)},
    )
    assert int(done.stdout) == 2  # a load and a store


def test_a_loop_is_two_runs(accesses):
    rows = accesses("loop[1, 1]")
    assert rows["how"].tolist() == [LOAD, STORE]
    assert rows["count"].tolist() == [15, 15]
    assert rows["stride"].tolist() == [8, 8]
    assert rows["step"].tolist() == [0, 0]


def test_threads_of_all_blocks_are_one_run_but_in_shared_memory(accesses):
    rows = accesses("blocks[3, 4]")
    stores = rows[rows["how"] == STORE]
    shared = stores["space"] == SHARED_MEMORY
    everywhere, own = stores[~shared]
    fields = "count", "stride", "step", "thread", "valued", "value"
    assert [everywhere[f] for f in fields] == [12, 8, 1, 0, 1, 7]
    assert [own[f] for f in fields[:-1]] == [4, 8, 1, 4, 0]  # with different values
    assert stores[shared]["count"].tolist() == [4, 4, 4]
    assert stores[shared]["thread"].tolist() == [0, 4, 8]
    assert len(set(stores[shared]["start"].tolist())) == 3
    (loads,) = rows[rows["how"] == LOAD]
    assert [loads[f] for f in fields[:3]] == [12, 0, 1]


def starts(rows):
    return (rows["start"] - rows["start"].min()).tolist()


def test_rows_of_a_table_are_one_record(accesses):
    rows = accesses("table[1, 1]", written=4)  # the last row, of each, is still apart at the end
    loads, stores = rows[rows["how"] == LOAD], rows[rows["how"] == STORE]
    assert starts(loads) == [0, 0]  # the same row, so it counts once
    assert starts(stores) == [0, 32, 64]
    assert stores["count"].tolist() == [3, 3, 3]
    assert stores["thread"].tolist() == [0, 0, 0]


def test_rows_end_at_a_barrier(accesses):
    stores = accesses("table[1, 2]", written=8)
    stores = stores[stores["how"] == STORE]
    assert starts(stores) == [0, 32, 64, 0, 32, 64, 32, 64, 96]
    assert stores["thread"].tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 1]
    assert len(set(stores["clock"].tolist())) == 2


def test_rows_of_consecutive_threads_are_one_record(accesses):
    rows = accesses("rows_of_threads[2, 2]", written=4)
    for how, pitch in (LOAD, 0), (STORE, 32):
        part = rows[rows["how"] == how]
        assert starts(part) == [pitch * k for k in range(4)]
        assert part["thread"].tolist() == [0, 1, 2, 3]
        assert part["count"].tolist() == [3, 3, 3, 3]


def test_rows_of_other_values_are_other_records(accesses):
    rows = accesses("rows_of_zeros[1, 1]", written=3)
    assert rows["value"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert starts(rows) == [0, 32, 64, 96] * 2
    assert rows["valued"].all()
