"""`gpushmem explain`, as a user types it, on a machine without a GPU."""

import json
import re
from pathlib import Path

import llvmlite.binding as llvm
import pytest
from click.testing import CliRunner
from numba import cuda
from numba.cuda import types

from gpushmem.cli import explain as command
from gpushmem.cli.commands import group
from gpushmem.explain.launches import Launched
from gpushmem.explain.on_cpu import on_cpu
from gpushmem.simt.run.kernel import Kernel, Source
from tests.conftest import cli

ROOT = Path(__file__).parent.parent.parent
SCRIPT = """
import sys
import numpy as np
from numba import cuda
import gpushmem as shmem

@shmem.jit(device=True)
def twice(x):
    return 2 * x

@shmem.jit
def scale(y, x, a):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = twice(x[i]) * a

@shmem.jit
def count(bins, x):
    cuda.atomic.add(bins, int(x[cuda.grid(1)]) % bins.size, 1)

@shmem.jit
def reverse(y, x):
    fixed = cuda.shared.array(256, np.float32)
    more = cuda.shared.array(0, np.float32)
    t = cuda.threadIdx.x
    fixed[t] = x[t]
    more[t] = -x[t]
    cuda.syncthreads()
    y[t] = fixed[255 - t] + more[255 - t]

@shmem.jit(max_registers=24)
def spill(y, x):
    kept = cuda.local.array(64, np.float64)
    for k in range(64):
        kept[k] = x[k]
    total = 0.0
    for k in range(64):
        for j in range(64):
            total += kept[k] * kept[j]
    y[0] = total

@shmem.jit
def wait(words, status):
    shmem.wait_until_all(words, status, shmem.CMP_EQ, 0)

shmem.init()
x, y = (shmem.zeros(4096, dtype="float32") for _ in range(2))
words = shmem.zeros(4, dtype="int64")
scale[16, 256](y, x, np.float32(2))
scale[16, 256](y, x, np.float32(3))
scale[1, (16, 8)](y, x, np.float32(3))
wait[1, 1](words, shmem.zeros(4, dtype="uint8"))
reverse[1, 256, 0, 65536](y, x)
spill[1, 1](y, x)
if shmem.my_pe() == 0:
    count[1, 256](words, x)
elif shmem.my_pe() == 2:
    scale[1, 32](y, x, 2.5)
print("ran", sys.argv[1:])
"""
KINDS = {
    "scale": "loops",
    "count": "loops",
    "reverse": "lockstep",
    "spill": "loops",
    "wait": "fibers",
}


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def written(folder, text):
    path = folder / "program.py"
    path.write_text(text)
    return path


def line_of(text, part):
    return next(k for k, line in enumerate(text.splitlines(), 1) if part in line)


@pytest.mark.timeout(300)
def test_kernels_of_all_kinds_as_json(run_cli, script):
    archs = "sm_80,sm_90"
    done = run_cli(
        "explain", "-n", 3, "--arch", archs, "--block", 128, "--json", script, "a", "--json",
        timeout=280, code=0,
    )  # fmt: skip
    said = json.loads(done.stdout)
    assert done.stderr.count("ran ['a', '--json']") == 3
    assert said.keys() == {"script", "n_pes", "lacking", "kernels", "of_other_pes"}
    assert (said["script"], said["n_pes"], said["lacking"]) == (str(script), 3, "")
    assert said["of_other_pes"] == [
        {"kernel": "scale", "types": "float32[::1], float32[::1], float64", "pes": [2]}
    ]
    kernels = {k["kernel"]: k for k in said["kernels"]}
    assert list(kernels) == ["scale", "wait", "reverse", "spill", "count"]
    for name, kernel in kernels.items():
        assert kernel.keys() == {"kernel", "types", "file", "line", "launches", "cpu", "gpu"}
        assert kernel["file"] == str(script)
        assert kernel["line"] in (
            line_of(SCRIPT, f"def {name}"),
            line_of(SCRIPT, f"def {name}") - 1,
        )
        cpu = kernel["cpu"]
        assert cpu.keys() == {"kind", "reason", "cores", "vectorised", "not_vectorised"}
        assert cpu["kind"] == KINDS[name]
        assert 1 <= kernel["launches"][0]["cores"] <= cpu["cores"]
        assert [gpu["arch"] for gpu in kernel["gpu"]] == archs.split(",")
        for gpu in kernel["gpu"]:
            assert gpu.keys() == {"arch", "error", "needs", "code_bytes", "blocks"}
            assert (gpu["needs"] is None) == (name == "wait") == bool(gpu["error"])

    assert kernels["scale"]["launches"] == [
        {"grid": [16, 1, 1], "block": [256, 1, 1], "dynamic_shared": 0, "times": 2, "cores": 1},
        {"grid": [1, 1, 1], "block": [16, 8, 1], "dynamic_shared": 0, "times": 1, "cores": 1},
    ]
    assert kernels["scale"]["cpu"]["vectorised"][0]["width"] >= 4
    assert kernels["count"]["cpu"]["vectorised"] == []
    assert "instruction cannot be vectorized" in kernels["count"]["cpu"]["not_vectorised"]
    assert kernels["wait"]["cpu"]["cores"] == 1


@pytest.mark.timeout(300)
def test_needs_of_gpus(run_cli, script):
    done = run_cli(
        "explain", "-k", "reverse", "-k", "spill", "-k", "scale", "--block", 128, "--json", script,
        timeout=280, code=0,
    )  # fmt: skip
    on_gpus = {k["kernel"]: k["gpu"][0] for k in json.loads(done.stdout)["kernels"]}
    assert list(on_gpus) == ["scale", "reverse", "spill"]
    assert on_gpus["reverse"]["needs"]["shared"] == 256 * 4
    fits = {"warps": 24, "most_warps": 64, "limited_by": ["shared memory"]}
    assert on_gpus["reverse"]["blocks"] == [  # 3 * (64 + 1 + 1) KiB of 228 KiB
        {
            "threads": 256, "dynamic_shared": 65536,
            "occupancy": fits | {"blocks_per_multiprocessor": 3},
        },
        {
            "threads": 128, "dynamic_shared": 65536,
            "occupancy": fits | {"blocks_per_multiprocessor": 3, "warps": 12},
        },
    ]  # fmt: skip
    spill = on_gpus["spill"]["needs"]
    assert spill["registers"] <= 24
    assert spill["spill_stores"] > 0 < spill["spill_loads"]
    assert spill["stack"] >= 512
    assert [b["threads"] for b in on_gpus["scale"]["blocks"]] == [256, 128]  # 16 x 8, once
    assert on_gpus["scale"]["needs"]["registers"] <= 32
    assert on_gpus["scale"]["blocks"][0]["occupancy"]["warps"] == 64


@pytest.mark.timeout(300)
def test_the_text(run_cli, script):
    done = run_cli("explain", "-n", 3, script, timeout=280, code=0)
    parts = done.stdout.split("\n\n")
    of = {re.match(r"(?:ran.*\n)*(\w+)", part)[1]: part for part in parts[:-1]}
    assert list(of) == ["scale", "wait", "reverse", "spill", "count"]
    assert "scale(float32[::1], float32[::1], float32)  script.py:" in of["scale"]
    assert "launched  [16, 256] 2 times\n            [1, (16, 8)] once\n" in of["scale"]
    assert "cpu       loops over blocks and threads" in of["scale"]
    assert re.search(r"\n +vectorised: 1 loop, \d+ iterations at a time\n", of["scale"])
    assert "not vectorised (LLVM: " in of["count"]
    assert "a fiber per thread" in of["wait"]
    assert re.search(r"on 1 of (1 core|\d+ cores: there is one block)\n", of["wait"])
    flat = " ".join(of["wait"].split())
    assert "sm_90 cannot be compiled: wait_until_all: status must be an array of int32" in flat
    assert f"not of uint8 (script.py:{line_of(SCRIPT, 'wait_until_all')})" in flat
    assert "from wait to wait" in of["reverse"]
    assert "[1, 256] once, 65536 bytes of dynamic shared memory" in of["reverse"]
    flat = " ".join(of["reverse"].split())
    assert "no spills, 1024 bytes of shared memory" in flat
    assert (
        "blocks of 256 threads and 66560 bytes of shared memory: 3 per multiprocessor, "
        "24 of 64 warps (38 %), limited by shared memory" in flat
    )
    assert re.search(r"24 registers, spills \d+ bytes, loads \d+", of["spill"])
    assert "scale(float32[::1], float32[::1], float64)" in parts[-1]
    assert "launched by PE 2 only" in parts[-1]
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_without_gpus(run_cli, script):
    done = run_cli("explain", "--no-gpu", script, code=0)
    assert "sm_90" not in done.stdout
    assert done.stdout.count("cpu  ") == len(KINDS)


NUMBA_CUDA = """
import numpy as np
from gpushmem.simt.numba_cuda import patch_numba_cuda
from numba import cuda

with patch_numba_cuda():
    @cuda.jit(device=True)
    def deep(x):
        return x + 1

    @cuda.jit(device=True)
    def twice(x):
        return 2 * deep(x)

    @cuda.jit(max_registers=40)
    def double(x):
        i = cuda.grid(1)
        if i < x.size:
            x[i] = twice(x[i])

    @cuda.jit
    def again(x):
        x[cuda.threadIdx.x] = twice(x[0])

    @cuda.jit(cache=True)
    def kept(x):
        x[cuda.threadIdx.x] = 0

    x = cuda.to_device(np.arange(1000.0))
    double[4, 256](x)
    again[1, 32](x)
    kept[1, 64](x)
"""


@pytest.mark.timeout(300)
def test_programs_of_numba_cuda(run_cli, tmp_path):
    script = written(tmp_path, NUMBA_CUDA)
    for known in (True, False):  # the second time Numba's own cache has the code
        done = run_cli("explain", "--json", script, timeout=200, code=0)
        kernels = {k["kernel"]: k for k in json.loads(done.stdout)["kernels"]}
        assert list(kernels) == ["double", "again", "kept"]
        for name in ("double", "again"):
            assert kernels[name]["types"] == "float64[::1]"
            assert kernels[name]["cpu"]["kind"] == "loops"
            assert kernels[name]["gpu"][0]["error"] == ""
            assert 8 <= kernels[name]["gpu"][0]["needs"]["registers"] <= 40
        assert kernels["double"]["launches"][0]["block"] == [256, 1, 1]
        assert (kernels["kept"]["cpu"]["vectorised"] is not None) == known
        assert ("Numba's cache" in kernels["kept"]["gpu"][0]["error"]) == (not known)
    assert "vectorised: not known" in run_cli("explain", "--no-gpu", script, code=0).stdout


@pytest.mark.parametrize(
    ("end", "code", "err"),
    [
        ("raise ValueError('never mind')", 1, "ValueError: never mind"),
        ("sys.exit(3)", 3, ""),
        ("fail[1, 1](x)", 1, "kernel fail, block (0, 0, 0), thread (0, 0, 0)"),
    ],
    ids=["exception", "exit", "kernel"],
)
def test_a_script_that_fails(run_cli, tmp_path, end, code, err):
    text = f"""
import sys
import gpushmem as shmem

@shmem.jit
def fail(x):
    x[0] = 1
    if x[0] == 1:
        raise ValueError("wrong")

shmem.init()
x = shmem.zeros(4)
{end}
"""
    done = run_cli("explain", written(tmp_path, text), code=code)
    assert done.stdout == ""
    assert err in done.stderr
    assert done.stderr.endswith("no report, because %s failed\n" % (tmp_path / "program.py"))
    assert "launches.py" not in done.stderr


def test_a_script_that_leaves_early(run_cli, tmp_path):
    script = written(tmp_path, "import os\nos._exit(0)")
    assert "PE 0 left" in run_cli("explain", script, code=1).stderr


@pytest.mark.parametrize("end", ["", "import sys; sys.exit(0)"], ids=["returns", "exits"])
def test_a_script_without_kernels(run_cli, tmp_path, end):
    script = written(
        tmp_path, f"import gpushmem as shmem\nshmem.init()\nshmem.barrier_all()\n{end}"
    )
    done = run_cli("explain", script, code=0)
    assert done.stdout == f"{script}: PE 0 launches no kernel\n"
    said = json.loads(run_cli("explain", "--json", script, code=0).stdout)
    assert said["kernels"] == said["of_other_pes"] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--arch", "sm_9"], "'sm_9' is not an architecture: write it as sm_90"),
        (["--block", "2000"], "2000 is not in the range 1<=x<=1024"),
    ],
)
def test_wrong_options_are_told_before_anything_runs(script, arguments, said):
    result = CliRunner().invoke(group, ["explain", *arguments, str(script)])
    assert result.exit_code == 2
    assert said in result.output


def shape_of(text):
    """A report without what depends on the machine: numbers, and why a kernel is of its kind."""
    flat = " ".join(text.split())
    flat = re.sub(
        r"(cpu (?:a fiber per thread|loops over [\w ,]+?)): .*? (?=(?:not )?vectorised|on )",
        r"\1 ",
        flat,
    )
    flat = re.sub(r"[\d ]+ and [\d ]+ iterations", "0 iterations", flat)
    return re.sub(r"\d+", "0", flat)


@pytest.mark.timeout(300)
def test_the_page_shows_what_is_printed(tmp_path):
    page = (ROOT / "docs/explain.md").read_text()
    script = page.split("<!-- the script -->\n```python\n")[1].split("```")[0]
    (tmp_path / "sums.py").write_text(script)
    order, _, shown = page.split("<!-- what is printed -->\n```\n$ gpushmem ")[1].partition("\n")
    env = {"GPUSHMEM_THREADS": "2"}
    done = cli(*order.split(), cwd=tmp_path, env=env, timeout=200, code=0)
    assert shape_of(shown.split("```")[0]) == shape_of(done.stdout)


def test_what_is_missing_for_gpus_is_told_once():
    text = "\n".join(command._text("x.py", [], [], ("one", "two"), "nvshmem4py: install it"))
    assert "PE 0 launches no kernel called one or two" in text
    assert text.endswith("Not compiled for GPUs: nvshmem4py: install it")


def scale(y, x):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = 2 * x[i]


def histogram(y, x):
    cuda.atomic.add(y, int(x[cuda.grid(1)]), 1)


FLOATS, WORDS = types.float32[::1], types.int64[::1]


@pytest.mark.parametrize(
    ("function", "argtypes"), [(scale, (FLOATS, FLOATS)), (histogram, (WORDS, FLOATS))]
)
def test_remarks_agree_with_the_code(function, argtypes):
    """What is said to be vectorised is vector code, and vice versa."""
    kernel = Kernel(function)
    entry = kernel.compile(argtypes)
    source = Source(function, argtypes, {}, lambda: kernel._build(argtypes, {}))
    found = on_cpu(Launched(function.__name__, entry, source, {}))
    code = str(llvm.parse_bitcode(entry.bitcode))
    assert ("x float>" in code) == bool(found.vectorised) == (function is scale)
    for loop in found.vectorised:
        assert f"<{loop.width} x float>" in code
    assert (found.not_vectorised != ()) == (function is histogram)
