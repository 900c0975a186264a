"""A plugin of pytest that runs numba-cuda-mlir's tests on the engine and writes their outcomes.

Each test's line says whether it used the engine: it launched a kernel, or had device memory.
"""

import json
import os

import pytest

patches, used = [], [0]


def counted(function):
    def count(*args, **kwargs):
        used[0] += 1
        return function(*args, **kwargs)

    return count


def pytest_configure(config):
    from gpushmem.simt.numba_cuda import driver, patch_numba_cuda

    for name in ("launch", "_allocate"):
        setattr(driver.Driver, name, counted(getattr(driver.Driver, name)))
    patches.append(patch_numba_cuda())
    patches[-1].__enter__()


def pytest_unconfigure(config):
    patches.pop().__exit__(None, None, None)


def pytest_collection_modifyitems(config, items):
    items[:] = items[:: int(os.environ["GPUSHMEM_ORACLE_EVERY"])]


@pytest.fixture
def initialize_from_pytest_config(request):
    request.cls._dump_failed_filechecks = False


@pytest.fixture(autouse=True)
def engine_is_used(request):
    before = used[0]
    yield
    request.node.user_properties.append(("engine", used[0] > before))


def pytest_runtest_logreport(report):
    if "PYTEST_XDIST_WORKER" in os.environ or (report.passed and report.when != "teardown"):
        return
    line = {
        "test": report.nodeid, "outcome": report.outcome, "detail": report.longreprtext[-6000:],
        "engine": dict(report.user_properties).get("engine", False),
    }  # fmt: skip
    if hasattr(report, "wasxfail"):
        line["outcome"] = "passed" if report.skipped else "failed"
    if report.skipped and isinstance(report.longrepr, tuple):
        line["detail"] = report.longrepr[2]
    with open(os.environ["GPUSHMEM_ORACLE_OUT"], "a") as out:
        print(json.dumps(line), file=out)
