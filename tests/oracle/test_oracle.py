"""numba-cuda's own tests, on the engine: every one that can apply passes."""

import json
import os
from pathlib import Path

import pytest

from tests.oracle.__main__ import Runners, judge, modules

ROOT = Path(__file__).parent.parent.parent
# Seconds to minutes each: the same few kernels with every function and every dtype, of which
# tests/simt has its own, or what hardly touches the engine.
SLOW = (
    "ufuncs", "array_alignment", "cache_hints", "array_reductions", "math", "operator", "gufunc",
    "libdevice", "complex", "debuginfo", "print", "caching", "vector_type", "transpose",
    "vectorize", "dispatcher", "casting", "extending", "random", "atomics", "warp_ops",
    "intrinsics", "alignment", "errors", "montecarlo", "bfloat16", "bfloat16_bindings",
    "fp8_bindings", "laplace", "warning", "multithreads", "vectorize_decor", "fastmath", "inspect",
    "minmax", "powi", "gufunc_scalar", "vectorize_scalar_arg", "analysis", "ssa", "record_dtype",
    "make_function_to_jit_function", "cupy_bfloat16_interop", "debuginfo_types", "array",
    "device_array_capture", "reduction", "cuda_array_interface", "array_args",
)  # fmt: skip
NAMES = [
    pytest.param(name, marks=[pytest.mark.sweep] * (name.partition(".test_")[2] in SLOW))
    for name in modules()
]


@pytest.fixture(scope="module")
def outcomes(request):
    """Futures of the outcomes of the modules that are to be tested; they run on all cores.

    A worker of xdist takes one.
    """
    calls = (getattr(item, "callspec", None) for item in request.session.items)
    names = {call.params["name"] for call in calls if call and "name" in call.params}
    workers = "PYTEST_XDIST_WORKER" in os.environ
    with Runners(1 if workers else len(os.sched_getaffinity(0))) as runners:
        yield {name: runners.submit(name) for name in modules() if name in names}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", NAMES)
def test_numba_cudas_tests_pass_on_the_engine(outcomes, name):
    judged = judge(outcomes[name].result())
    failed = {test: why for test, (verdict, why) in judged.items() if verdict == "failed"}
    assert not failed, "\n\n".join(f"{test}\n{why[-3000:]}" for test, why in failed.items())


def test_the_documented_counts_are_the_ones_kept():
    page = (ROOT / "docs/numba-cuda.md").read_text()
    rows = {}
    for on in ("engine", "simulator"):
        kept = json.loads((ROOT / f"tests/oracle/{on}.json").read_text())
        assert kept["numba-cuda"] in page
        rows[on] = kept["counts"]
    for verdict in ("passed", "failed", "skipped", "not applicable"):
        numbers = (rows[on].get(verdict, 0) for on in ("engine", "simulator"))
        assert f"| {verdict} | {' | '.join(map(str, numbers))} |" in page
    assert rows["engine"]["passed"] > rows["simulator"]["passed"]
    interpreter = json.loads((ROOT / "tests/oracle/interpreter.json").read_text())["counts"]
    said = "{passed} pass, {failed} fail, {not applicable} do not apply".format(
        **{"failed": 0, **interpreter}
    )
    assert said in (ROOT / "docs/debugger.md").read_text()
