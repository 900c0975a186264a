"""bench/rodinia: each program's kernels, and its C, compute what NumPy does."""

import sys
from pathlib import Path

import pytest

from gpushmem.simt.numba_cuda import patch_numba_cuda

FOLDER = Path(__file__).parents[2] / "bench/rodinia"
QUICK = "bfs", "pathfinder"  # the others' kernels take longer to compile

sys.path.insert(0, str(FOLDER))
try:
    from program import NAMES, Case, has_compiler
finally:
    sys.path.remove(str(FOLDER))


@pytest.mark.filterwarnings("ignore::numba.cuda.core.errors.NumbaPerformanceWarning")
@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.sweep) for name in NAMES],
)
def test_both_sides_compute_what_numpy_does(name, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    with patch_numba_cuda():
        case = Case(name, "tiny")
        expected = case.of_reference()
        for _ in range(2):  # the second begins with the same data
            case.run_engine()
            case.check(case.of_engine(), expected)
    if has_compiler():
        case.run_c()
        case.check(case.of_c(), expected)
