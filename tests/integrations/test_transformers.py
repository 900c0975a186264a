"""Hugging Face's transformers and accelerate, by gpushmem."""

import pytest

from tests.integrations.ranks import printed

pytestmark = pytest.mark.timeout(600)


@pytest.mark.sweep
def test_logits_of_a_divided_model_are_those_of_the_whole(tmp_path):
    for backend in ("gloo", "gpushmem"):
        (line,) = printed("transformers", "logits.py", tmp_path, backend, HF_HUB_OFFLINE="1")
        assert line["backend"] == backend
        assert line["part"] == [64, 128]  # of (128, 128)
        assert line["distance"] < 1e-4
        assert line["size"] > 1


@pytest.mark.slow  # a sample: its environment is made in seconds
def test_accelerate_trains_as_by_gloo():
    (gloo,), (ours,) = (
        printed("accelerate", "accelerated.py", backend) for backend in ("gloo", "gpushmem")
    )
    assert (gloo["backend"], ours["backend"]) == ("gloo", "gpushmem")
    assert ours["model"] == "DistributedDataParallel"
    assert ours["gathered"] == [10, 11]
    assert ours["losses"] == gloo["losses"]
    assert ours["losses"][-1] < 0.9 * ours["losses"][0]
