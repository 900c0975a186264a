"""The conformance tests on GPUs: GPUSHMEM_BACKEND=nvshmem pytest -m gpu.

GPUSHMEM_TEST_PES ("1,2,4") are the numbers of PEs that tests may have, as they may share a GPU. PEs
that share one without MPS may not wait for each other in kernels: NVSHMEM forbids it ("limited
MPG"). Tests that do so are skipped, unless GPUSHMEM_TEST_WAITS=1 lets them try: the GPU then gives
the PEs turns. Without a GPU, `pytest -m gpu --collect-only` shows what would run.
"""

import os
import re
from functools import cache

import pytest

from gpushmem.backends.nvshmem import versions

FOLDERS = ("conformance", "ops", "memory", "kernels")
FILES = ("test_examples.py",)
CPU_ONLY = ("checked", "reports", "host_memory", "unaligned", "backwards", "cpu_backend")
WAITS = "GPUSHMEM_TEST_WAITS"
SHARING = "PEs share a GPU without MPS"  # what an error that says so begins with
FORBIDDEN = f"{SHARING}, and may not wait for each other in kernels: set {WAITS}=1 to try"


def prepare():
    """Set this process's environment: it is the PE of some tests, with heaps of several sizes."""
    os.environ.setdefault("NVSHMEM_SYMMETRIC_SIZE", "2G")


def mark(items, tests):
    """Give the marker `gpu` to the tests that are for every backend."""
    folders = tuple(str(tests / name) + os.sep for name in FOLDERS)
    files = [tests / name for name in FILES]
    for item in items:
        ours = str(item.path).startswith(folders) or item.path in files
        if ours and not any(map(item.get_closest_marker, CPU_ONLY)):
            item.add_marker("gpu")


def need(n_pes=1):
    """Skip the test where it cannot run with so many PEs, and say why."""
    missing = versions.missing()
    if missing:
        pytest.skip(missing)
    allowed = numbers()
    if n_pes not in allowed:
        some = ", ".join(map(str, allowed))
        pytest.skip(f"needs {n_pes} PEs; GPUSHMEM_TEST_PES allows {some}")


def need_one_each(n_pes):
    """As `need`; and skip where the PEs would share a GPU, whose kernels wait for each other."""
    need(n_pes)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = re.compile(r"nvidia\d+").fullmatch
    n_gpus = len(visible.split(",")) if visible else len([*filter(devices, os.listdir("/dev"))])
    if n_pes > n_gpus and os.environ.get(WAITS) != "1":
        pytest.skip(FORBIDDEN.replace(SHARING, f"{n_pes} PEs and {n_gpus} GPUs: {SHARING}"))


@cache
def numbers():
    """The numbers of PEs that tests may have."""
    return tuple(map(int, (os.environ.get("GPUSHMEM_TEST_PES") or "1,2,4").split(",")))


# CUDA then ends the work of all processes that share the GPU, and takes no new ones until they end.
without_mps = pytest.mark.skipif(
    "CUDA_MPS_PIPE_DIRECTORY" in os.environ,
    reason="with MPS, a kernel that fails ends those of all other processes",
)


class Forbidden(RuntimeError):
    """A kernel that waits was to be launched where NVSHMEM forbids it."""


def reduced(op, dtypes):
    """Those of the dtypes that NVSHMEM has a reduction of; skips the test if there is none."""
    if op == "maxloc":
        pytest.skip("NVSHMEM has maxloc of pairs of float64 only, in blocks")
    return [d for d in dtypes if op in (None, "sum") or not str(d).startswith("complex")]


def forbid_waits():
    """In a PE: refuse kernels that wait, where PEs share a GPU without MPS."""
    if os.environ.get(WAITS) == "1":
        return
    from gpushmem import runtime
    from gpushmem.backends.nvshmem.kernels import Loader

    check = Loader.check_resident

    def checked(self, name, *rest):
        if runtime.current().backend.n_pes > 1 and runtime.current().backend.limited:
            raise Forbidden(FORBIDDEN)
        check(self, name, *rest)

    Loader.check_resident = checked  # called for the kernels that wait


def skip_if_forbidden(text):
    """Skip the test if its PEs failed because they may not wait."""
    if SHARING in text and os.environ.get(WAITS) != "1":
        pytest.skip(FORBIDDEN)
