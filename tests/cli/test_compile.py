"""`gpushmem compile`, as a user types it, on a machine without a GPU."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpushmem.cli.commands import group

pytest.importorskip("nvshmem")

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
ARCHS = ("sm_80", "sm_90", "sm_100")
SCRIPT = """
from numba import cuda
import gpushmem as shmem

@shmem.jit(device=True)
def twice(x):
    return 2 * x

@shmem.jit(shared_memory_carveout="MaxShared")
def double(dst, src, factor):
    i = cuda.grid(1)
    if i < dst.size:
        dst[i] = twice(src[i]) * factor

@shmem.jit(collective=True, max_registers=32)
def everywhere(dst, value):
    for pe in range(shmem.n_pes()):
        shmem.p(dst, value, pe)
    shmem.barrier_all()

@shmem.jit
def wrong(dst, src):
    shmem.put(dst, src, 0)

if __name__ == "__main__":
    shmem.init()
    x = shmem.zeros(4, dtype="float32")
    double[1, 4](x, x, 1.5)
    everywhere[1, 1](x, 1.0)
    double[1, 4](x, x, 2)
    print("ran", shmem.n_pes())
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def rows_of(done):
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


# Ready kernels are compiled by tests/nvshmem/test_kernels.py, reductions by test_rows.py.
SAMPLE = [p for p in EXAMPLES if p.stem == "ring"]
ALONE = "own_plan", "queens"  # examples that take parts of these, no plan
# Bytes: products and softmax beside what travels (tests/nvshmem/machine/test_kernels.py has more).
SPILLS = {"flash_decode": 396, "ring_attention": 1732, "ring_attention_backward": 2836}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("path", "archs"),
    [(path, ("sm_90",)) for path in SAMPLE]
    + [pytest.param(path, ARCHS, marks=pytest.mark.sweep) for path in EXAMPLES],
    ids=lambda value: getattr(value, "stem", "all"),
)
def test_the_kernels_of_every_example_compile(run_cli, path, archs):
    few = ("--", "--steps", 2, "--write", 2) if path.stem == "llm" else ()
    given = path, "--arch", ",".join(archs), "--json", *few
    done = run_cli("compile", *given, timeout=580, code=0)
    rows = rows_of(done)
    kernels = {row["kernel"] for row in rows}
    own = set(re.findall(r"@shmem.jit(?!\(device)[^\n]*\ndef (\w+)", path.read_text()))
    assert own <= kernels
    assert kernels - own or path.stem in ALONE or "gpushmem.kernels" not in path.read_text()
    for arch in archs:
        assert {row["kernel"] for row in rows if row["arch"] == arch} == kernels
    for row in rows:
        assert row["cubin_bytes"] > 1000
        assert 8 <= row["registers"] <= 255
        assert max(row["spill_stores"], row["spill_loads"]) <= SPILLS.get(row["kernel"], 0)


def test_it_compiles_what_the_script_launches(run_cli, script, tmp_path):
    out = tmp_path / "out"
    done = run_cli(  # `sm_90a`, as launches: NVSHMEM's functions are compiled for it once
        "compile", script, "-n", 3, "--arch", "sm_90a", "-o", out, "--emit", "cubin,ptx", code=0,
    )  # fmt: skip
    assert done.stdout.count("ran 3") == 3
    table = [line.split("  ")[0] for line in done.stdout.splitlines() if "sm_90a" in line]
    assert sorted(table) == [
        "double(float32[::1], float32[::1], float64)",
        "double(float32[::1], float32[::1], int64)",
        "everywhere(float32[::1], float64)",
    ]
    written = sorted(path.name for path in out.iterdir())
    assert written == [
        "double-2.sm_90a.cubin", "double-2.sm_90a.ptx", "double.sm_90a.cubin",
        "double.sm_90a.ptx", "everywhere.sm_90a.cubin", "everywhere.sm_90a.ptx",
    ]  # fmt: skip
    assert (out / "double.sm_90a.cubin").read_bytes()[:4] == b"\x7fELF"
    assert ".target sm_90a" in (out / "everywhere.sm_90a.ptx").read_text()


def test_signatures_are_compiled_without_running(run_cli, script):
    done = run_cli(
        "compile", script, "--json", "-s", "double(float64[:], float64[::1], int64)",
        "-s", "everywhere(uint64[::1], uint64)", code=0,
    )  # fmt: skip
    rows = rows_of(done)
    assert [(row["kernel"], row["types"]) for row in rows] == [
        ("double", "float64[:], float64[::1], int64"), ("everywhere", "uint64[::1], uint64"),
    ]  # fmt: skip
    assert "ran" not in done.stdout
    assert rows[1]["registers"] <= 32


@pytest.mark.parametrize("package", ["numba", "numba_cuda_mlir"])
def test_kernels_of_either_package_as_they_are(run_cli, tmp_path, package):
    """What its `cuda.jit` makes, without a line of gpushmem's."""
    if package != "numba":
        pytest.importorskip(package)
    file = tmp_path / "kernels.py"
    file.write_text(
        f"from {package} import cuda\n"
        "@cuda.jit(device=True)\ndef twice(x):\n    return 2 * x\n"
        "@cuda.jit(max_registers=24)\ndef add(x, y):\n    i = cuda.grid(1)\n"
        "    if i < x.size:\n        y[i] += twice(x[i])\n"
    )
    done = run_cli("compile", file, "--json", "-s", "add(float32[::1], float32[::1])", code=0)
    (row,) = rows_of(done)
    compiler = "numba-cuda" if package == "numba" else "numba-cuda-mlir"
    assert (row["kernel"], row["compiler"]) == ("add", compiler)
    assert 0 < row["registers"] <= 24
    assert row["cubin_bytes"] > 500
    done = run_cli("compile", file, "-s", "twice(float32)", code=1)
    assert "the kernels of" in done.stderr
    assert " are add\n" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-s", "triple(int64)"], "kernels of {script} are double, everywhere, wrong"),
        (["-s", "wrong(float32[::1], float64[::1])"], "dst is an array of float32, src of"),
    ],
    ids=["name", "types"],
)
def test_wrong_signatures_are_told(run_cli, script, arguments, said):
    done = run_cli("compile", script, *arguments, code=1)
    assert said.format(script=script) in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--arch", "sm_9"], "'sm_9' is not an architecture: write it as sm_90"),
        (["--emit", "sass"], "--emit sass: supported formats are cubin, ptx, ltoir"),
        (["--arch", "sm_35"], "'sm_35': NVSHMEM 3 has device functions for sm_75 and newer"),
    ],
    ids=["architecture", "kind", "old architecture"],
)
def test_wrong_options_are_told_before_anything_runs(script, arguments, said):
    result = CliRunner().invoke(group, ["compile", str(script), *arguments])
    assert result.exit_code == 2
    assert said in result.output
