"""Kernels as plain Python, thread by thread: the same results as compiled, and pdb in a thread."""

import json
import os
import re
import subprocess
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest
from numba import cuda, float32, int32, int64, uint32

from gpushmem.errors import KernelError
from gpushmem.simt.numba_cuda import patch_numba_cuda

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning")
SCALE = 1.5


@cuda.jit(device=True)
def scaled(x):
    return x * SCALE


def block_sum(x, out):
    shared = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    shared[t] = scaled(x[cuda.grid(1)])
    cuda.syncthreads()
    half = cuda.blockDim.x // 2
    while half > 0:
        if t < half:
            shared[t] += shared[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        out[cuda.blockIdx.x] = shared[0]


def warps(x, out):
    i = cuda.grid(1)
    value = x[i]
    offset = 16
    while offset > 0:
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, offset)
        offset //= 2
    bits = cuda.ballot_sync(0xFFFFFFFF, i % 3 == 0)
    same = cuda.match_any_sync(0xFFFFFFFF, int32(i % 5))
    if i % 2:  # lanes with other masks are not waited for
        value += cuda.shfl_xor_sync(0xAAAAAAAA, value, 2)
    cuda.syncwarp()
    out[i] = value + cuda.popc(bits) * 100 + cuda.popc(same) * 1000


def counts(x, out):
    i = cuda.grid(1)
    out[i] = cuda.syncthreads_count(x[i] // 10) * 100 + cuda.syncthreads_or(x[i] // 63)
    if i % 64 == 5:
        return  # those that remain meet without it
    out[i] += cuda.syncthreads_and(x[i] + 1)


def atomics(x, out):
    i = cuda.grid(1)
    cuda.atomic.add(out, 0, x[i])
    cuda.atomic.max(out, 1, x[i])
    cuda.atomic.min(out, 2, x[i])
    cuda.atomic.exch(out, 3 + i % 2, 7)
    cuda.atomic.inc(out, 5, 10)
    while cuda.atomic.cas(out, 6, 0, 1) != 0:
        pass
    out[7] += 2
    cuda.atomic.exch(out, 6, 0)


def types_of_numbers(x, out):
    """Numba computes with integers in 64 bits, and makes a float64 of float32 and a literal."""
    i = cuda.grid(1)
    small = x[i]
    out[i, 0] = small * 1000 + 300
    out[i, 1] = -small
    out[i, 2] = uint32(small - 200) >> 3
    h = uint32(2166136261)
    for _ in range(5):
        h = uint32((h ^ small) * 16777619)
    out[i, 3] = h
    out[i, 4] = float32(small) * 0.1 * 1e9
    out[i, 5] = int32(small * -1e6) // 7
    out[i, 6] = cuda.clz(small) + cuda.brev(uint32(small)) % 1000
    out[i, 7] = (float32(1) / float32(small + 1)) * 1e9
    a = np.uint8(small)
    out[i, 8] = abs(a - np.uint8(200))


def beyond_types(x, out):
    """Floats that do not fit an integer, and shifts by more bits than there are."""
    i = cuda.grid(1)
    small = float32(x[i])
    out[i, 0], out[i, 1], out[i, 2] = int32(x[i]), np.uint8(x[i]), int64(x[i])
    out[i, 3], out[i, 4], out[i, 5] = int32(small), np.int8(small), x[i]
    by = int64(i + 40)
    out[i, 6], out[i, 7] = int64(-9) >> by, uint32(3) << uint32(by)


def order_of_blocks(flags, out):
    """A chain through all blocks, from the last: each waits for the next one."""
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    if t == 0 and b + 1 < cuda.gridDim.x:
        while flags[b + 1] == 0:
            pass
        out[b] = out[b + 1] + 1
    cuda.syncthreads()
    if t == 1:
        flags[b] = 1


def grid_meets(x, out):
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    for k in range(3):
        out[i] = x[(i + k) % x.size]
        grid.sync()
        x[i] = out[i] + 1
        grid.sync()


def records(x, out):
    i = cuda.grid(1)
    x[i].a = i * 3
    x[i].b += 0.5
    local = cuda.local.array(3, int64)
    local[-1] = x[i].a - 1  # from the end, as in Numba
    point = cuda.float32x2(x[i].b, 2)
    out[i] = local[2] + point.x * point.y + cuda.libdevice.rsqrt(4.0)


FLOATS = np.random.default_rng(1).random(128).astype(np.float32)
INTS = np.arange(128, dtype=np.int32)
BYTES = np.arange(200, 264).astype(np.uint8)
BEYOND = np.tile([np.nan, np.inf, -np.inf, 3e9, -3e9, 300, -3.7, 1e19, -1e19, 2e19, 4e4, -4e4, 2.9,
                  128, 1e30, 0], 4)  # fmt: skip
PAIRS = np.zeros(64, np.dtype([("a", "i4"), ("b", "f8")], align=True))


@pytest.mark.parametrize(
    ("function", "x", "out"),
    [
        (block_sum, FLOATS, np.zeros(2, np.float32)),
        (warps, INTS, np.zeros(128, np.int64)),
        (counts, INTS, np.zeros(128, np.int64)),
        (atomics, INTS, np.zeros(8, np.uint32)),
        (types_of_numbers, BYTES, np.zeros((64, 9), np.int64)),
        (types_of_numbers, INTS, np.zeros((128, 9), np.int64)),
        (beyond_types, BEYOND, np.zeros((64, 8), np.int64)),
        (order_of_blocks, np.zeros(6, np.int32), np.zeros(6)),
        (grid_meets, INTS, np.zeros(128, np.int64)),
        (records, PAIRS, np.zeros(64)),
    ],
)
def test_the_results_are_those_of_the_compiled_engine(function, x, out):
    grid, block = (len(x), 2) if function is order_of_blocks else (-(-len(x) // 64), 64)
    results = []
    for interpret in (False, True):
        arrays = x.copy(), out.copy()
        with patch_numba_cuda(interpret=interpret):
            cuda.jit(function)[grid, block](*arrays)
        results.append(arrays)
    for compiled, interpreted in zip(*results, strict=True):
        np.testing.assert_array_equal(interpreted, compiled)
    assert results[0][1].any()


@pytest.fixture
def interpreted():
    with patch_numba_cuda(interpret=True):
        yield


@pytest.mark.usefixtures("interpreted")
def test_an_exception_has_the_traceback_of_the_kernel_and_names_the_thread():
    class OfTheUser(Exception):
        pass

    def fails(x):
        if cuda.grid(1) == 5:
            raise OfTheUser(x[2], "five")

    with pytest.raises(OfTheUser) as raised:
        cuda.jit(fails)[2, 4](np.arange(3.0))
    assert raised.value.args == (2.0, "five")
    last = traceback.extract_tb(raised.tb)[-1]
    assert (last.filename, last.name) == (__file__, "fails")
    assert "raise OfTheUser" in last.line
    if sys.version_info >= (3, 11):
        assert raised.value.__notes__ == ["In kernel fails, thread (1, 0, 0) of block (1, 0, 0)"]
    message = r"line \d+, tid=\[0, 0, 1\] ctaid=\[0, 0, 1\]: division by zero"

    @cuda.jit(debug=True, opt=False)
    def divides(x):
        x[cuda.grid(1)] /= cuda.grid(1) - 5

    with pytest.raises(ZeroDivisionError, match=message):
        divides[2, 4](np.ones(8))


@pytest.mark.usefixtures("interpreted")
def test_an_index_out_of_range_is_an_error_with_its_line():
    @cuda.jit
    def beyond(x):
        x[-1] = 7
        x[cuda.grid(1)] = 1

    with pytest.raises(IndexError, match="index 8 is out of bounds") as raised:
        beyond[1, 9](np.zeros(8))
    assert traceback.extract_tb(raised.tb)[-1].line == "x[cuda.grid(1)] = 1"


@pytest.mark.usefixtures("interpreted")
def test_threads_that_wait_for_each_other_in_vain_are_named_with_their_lines():
    def apart(x):
        if cuda.threadIdx.x < 2:
            cuda.syncwarp()
        elif cuda.threadIdx.x < 5:
            cuda.syncthreads()

    first = apart.__code__.co_firstlineno
    with pytest.raises(KernelError) as raised:
        cuda.jit(apart)[3, 6](np.zeros(1))
    lines = str(raised.value).splitlines()
    assert "no thread of block (0, 0, 0) can go on" in lines[0]
    file = Path(__file__).name
    assert lines[1:4] == [
        f"  2 wait in syncwarp at {file}:{first + 2} in apart: (0, 0, 0), (1, 0, 0)",
        f"  3 wait in syncthreads at {file}:{first + 4} in apart: (2, 0, 0), (3, 0, 0), (4, 0, 0)",
        "  1 returned: (5, 0, 0)",
    ]


@pytest.mark.usefixtures("interpreted")
def test_prints_are_in_the_order_of_threads_and_host_code_keeps_its_names(capsys):
    @cuda.jit
    def prints(x):
        print(cuda.blockIdx.x, cuda.threadIdx.x, x[0], x[0] > 1)
        cuda.syncthreads()
        if cuda.threadIdx.x == 1:
            print("after", 3)

    before = dict(globals())
    prints[2, 2](np.full(1, 1.5, np.float32))
    assert globals() == before
    block = "{0} 0 1.500000 True\n{0} 1 1.500000 True\nafter 3\n"
    assert capsys.readouterr().out == block.format(0) + block.format(1)


def test_the_setting_turns_it_on(monkeypatch):
    monkeypatch.setenv("GPUSHMEM_SIM_INTERPRET", "1")
    seen = []
    with patch_numba_cuda():
        # No compiler would take this function, and no cache its code.
        kernel = cuda.jit(lambda x: seen.append(f"{cuda.threadIdx.x}"), cache=True)
        kernel[1, 3](np.zeros(1))
    assert seen == ["0", "1", "2"]


PROGRAM = """
import helper
import numpy as np
from numba import cuda, float32
from gpushmem.simt.numba_cuda import patch_numba_cuda

with patch_numba_cuda():
    @cuda.jit
    def kernel(x):
        t = cuda.threadIdx.x
        shared = cuda.shared.array(8, float32)
        if t == 3:
            STOP
        shared[t] = helper.twice(x[t])
        cuda.syncthreads()
        y = shared[7 - t]
        x[t] = y + 1
        if t > 8:
            x[t] = 0  # never

    x = np.arange(8.0)
    kernel[1, 8](x)
    print("result", x.tolist())
"""
HELPER = """
from numba import cuda

@cuda.jit(device=True)
def twice(x):
    if x < 0:
        return 0  # never
    cuda.syncthreads()
    return 2 * x
"""


def run(folder, stop, *command, said=""):
    """Run the program in a process of its own, which reads what is `said`."""
    (folder / "program.py").write_text(PROGRAM.replace("STOP", stop))
    (folder / "helper.py").write_text(HELPER)
    env = {**os.environ, "GPUSHMEM_SIM_INTERPRET": "1"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *command, "program.py"], cwd=folder, env=env, text=True,
        input=said, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def line_of(text, program=PROGRAM):
    return 1 + next(k for k, line in enumerate(program.splitlines()) if text in line)


def test_pdb_stops_in_a_thread_and_steps_through_it_alone(tmp_path):
    at = line_of("x[t] = y + 1")
    said = f"n\nn\nn\np ('y', y, cuda.threadIdx)\nb {at}, t == 5\nc\np ('x', x[t], t)\nc\n"
    first = ["STOP"] if sys.version_info >= (3, 13) else []  # which stops in the line itself
    out = run(tmp_path, "breakpoint()", said="n\n" * len(first) + said)
    stops = re.findall(r"kernel kernel, (thread .*)|> .*program.py\((\d+)\)kernel\(\)", out)
    seen = (*first, "helper.twice", "syncthreads", "y = ", "y + 1")
    here = [str(line_of(text)) for text in seen]
    steps = [(f"thread {(3, 0, 0)} of block {(0, 0, 0)}", "")] + [("", line) for line in here]
    assert stops == [*steps, (f"thread {(5, 0, 0)} of block {(0, 0, 0)}", ""), ("", str(at))]
    assert "('y', np.float32(8.0), threadIdx(3, 0, 0))" in out
    assert "('x', np.float64(5.0), 5)" in out
    assert "result [15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0]" in out


def test_pdb_from_outside_stops_where_a_condition_holds(tmp_path):
    at = line_of("x[t] = y + 1")
    said = f"b {at}, cuda.threadIdx.x == 5\nc\np ('y', y, t)\nc\nq\n"
    out = run(tmp_path, "pass", "-m", "pdb", said=said)
    assert out.count(f"program.py({at})kernel()") == 1
    assert "('y', np.float32(4.0), 5)" in out


def test_coverage_counts_the_lines_of_kernels_and_no_others(tmp_path):
    pytest.importorskip("coverage")
    run(tmp_path, "pass", "-m", "coverage", "run", "--source=.", "--branch")
    subprocess.run(
        [sys.executable, "-m", "coverage", "json", "-q"], cwd=tmp_path, check=True, timeout=60
    )
    files = json.loads((tmp_path / "coverage.json").read_text())["files"]
    assert files["program.py"]["missing_lines"] == [line_of("x[t] = 0  # never")]
    assert files["helper.py"]["missing_lines"] == [line_of("return 0  # never", HELPER)]
