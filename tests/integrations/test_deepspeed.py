"""DeepSpeed trains by gpushmem as it does by Gloo, and by gpushmem's optimizer."""

import pytest

from tests.integrations.ranks import printed

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(1200)]


def test_losses_are_those_of_gloo():
    gloo, ours = (
        {
            line["case"]: line
            for line in printed(
                "DeepSpeed", "zero.py", backend, limit=600, DS_ACCELERATOR="cpu"
            )  # the first run compiles DeepSpeed's all-reduce in shared memory
        }
        for backend in ("gloo", "gpushmem")
    )
    assert [*gloo] == ["zero1", "zero2", "zero3", "moe"]
    assert [*ours] == [*gloo, "kernel"]
    assert {line["backend"] for line in ours.values()} == {"gpushmem"}
    assert gloo["moe"]["experts"] == ["gloo"]
    assert ours["moe"]["experts"] == ["gpushmem"]
    for case, line in gloo.items():
        assert line["losses"][-1] < 0.7 * line["losses"][0]  # it has learned something
        assert ours[case]["losses"] == line["losses"], case
    # gpushmem's step: gradients averaged, clipped, AdamW and parameters gathered in one kernel
    assert ours["kernel"]["losses"] == pytest.approx(gloo["zero1"]["losses"], abs=1e-6)
