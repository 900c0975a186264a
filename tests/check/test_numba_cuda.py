"""No false alarms: numba-cuda's own tests, checked on the engine."""

import pytest

from tests.oracle.__main__ import Runner, judge, modules

# Those that take seconds. All: python -m tests.oracle --check
PATTERNS = (
    "alignment", "analysis", "array_args", "array_methods", "atomics", "blackscholes", "caching",
    "constmem", "cooperative_groups", "cpointer", "device_array_capture", "exception", "forall",
    "freevar", "gufunc_scalar", "inline", "iterators", "launch_config_sensitive", "localmem",
    "multithreads", "nondet", "record_dtype", "sessionize", "sm", "sm_creation", "ssa",
    "sync", "vecadd", "vectorize", "vectorize_device", "warning", "warp_ops",
)  # fmt: skip
NAMES = [n for n in modules() if any(n.endswith(f"test_{p}") for p in PATTERNS)]


@pytest.fixture(scope="module")
def runner():
    with Runner(check=True) as runner:
        yield runner


@pytest.mark.sweep
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NAMES)
def test_only_the_problems_that_are_there_are_found(runner, name):
    judged = judge(runner.run(name))
    failed = {test: why for test, (verdict, why) in judged.items() if verdict == "failed"}
    assert not failed, "\n\n".join(f"{test}\n{why[-3000:]}" for test, why in failed.items())
    assert any(verdict == "passed" for verdict, _ in judged.values())
