"""Which tests a change needs."""

import pytest

from tests.affected import ROOT, affected, below, changed, rooms

ENGINE = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests/simt").glob("test_*.py"))


def found_for(*names):
    return {str(path.relative_to(ROOT)) for path in affected(names)}


@pytest.mark.parametrize(
    ("changes", "runs", "leaves"),
    [
        ("kernels/halo.py", "kernels/test_halo.py torch/test_fusion.py", "simt conformance weak"),
        ("gpushmem/torch/async_work.py", "torch/test_group.py", "simt kernels conformance"),
        ("gpushmem/simt/run/queue.py", "simt/test_queue.py conformance/test_rma.py", "job"),
        ("gpushmem/simt/launch.py", "torch/test_fusion.py launch/test_deadlocks.py", "job"),
        ("gpushmem/simt/numba_cuda/driver.py", "simt/test_patch.py oracle/test_oracle.py", "job"),
        ("gpushmem/doctor/__init__.py", "doctor/test_checks.py", "simt torch"),
        (
            "gpushmem/backends/cpu/operations/waits.py",
            "conformance/test_waits.py weak/test_pending.py",
            "job",
        ),
        ("gpushmem/errors.py", "simt/test_queue.py kernels/test_halo.py", ""),
        ("docs/kernels.md", "docs/test_pages.py kernels/test_memory.py", "simt torch"),
        ("tests/weak/test_pending.py", "weak/test_pending.py", "simt weak/test_programs.py"),
        ("tests/weak/outcomes.py", "weak/test_pending.py weak/test_programs.py", "simt"),
        ("pyproject.toml", "simt/test_queue.py test_lines.py", ""),
        ("tests/pes.py", "simt/test_queue.py test_lines.py", ""),
    ],
)
def test_a_change_needs_the_tests_of_its_room_and_those_above(changes, runs, leaves):
    found = found_for(changes)
    for test in runs.split():
        assert (ROOT / "tests" / test).exists()
        assert f"tests/{test}" in found
    assert [test for test in found if test.startswith(tuple(f"tests/{n}" for n in leaves.split()))
            ] == []  # fmt: skip
    assert "tests/test_project.py" in found


def test_nothing_above_the_engine_needs_all_of_its_tests():
    above = found_for(
        "gpushmem/backends/cpu/operations/waits.py",
        "kernels/halo.py",
        "gpushmem/torch/async_work.py",
    )
    assert len(above & set(ENGINE)) < len(ENGINE) / 3


def test_every_room_is_in_the_graph_and_below_the_public_names():
    assert all(names <= rooms().keys() for names in rooms().values())
    assert {"simt/blocks", "backends", "native", "waiting_threads", "memory"} <= below(["gpushmem"])


def test_what_differs_is_asked_of_git():
    assert changed("HEAD") == sorted(set(changed("HEAD")))
    with pytest.raises(SystemExit, match="git knows no no-such-branch: name what to compare with"):
        changed("no-such-branch")
