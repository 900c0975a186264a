"""torchtitan trains its small Llama by gpushmem as it does by Gloo: FSDP 2, tensor parallelism."""

import pytest

from tests.integrations.ranks import printed

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(900)]

OPTIONS = (
    "--module llama3 --config llama3_debugmodel --training.steps 4 --training.seq_len 64 "
    "--training.local_batch_size 2 --training.disable-cuda-graphs --validator.no-enable "
    "--checkpoint.no-enable --metrics.log_freq 1 --debug.seed 1 "
    "--parallelism.spmd-backend partial_dtensor"
)
DIVIDED = {
    "fsdp": "--parallelism.data_parallel_shard_degree 2",
    "tp": "--parallelism.data_parallel_shard_degree 1 --parallelism.tensor-parallel-degree 2",
}


@pytest.mark.parametrize("how", DIVIDED)
def test_losses_are_those_of_gloo(how, tmp_path):
    steps = {}
    for backend in ("gloo", "gpushmem"):
        folder = tmp_path / backend
        folder.mkdir()
        (line,) = printed(
            "torchtitan", "titan.py", backend, *OPTIONS.split(), *DIVIDED[how].split(),
            cwd=folder, TORCHDYNAMO_DISABLE="1",
        )  # fmt: skip
        assert line["backends"] == [backend]
        steps[backend] = line["steps"]
    assert len(steps["gloo"]) == 4
    assert steps["gloo"][-1][0] < steps["gloo"][0][0] - 1
    for ours, gloo in zip(steps["gpushmem"], steps["gloo"], strict=True):
        assert ours == pytest.approx(gloo, rel=1e-4)  # as many digits as are printed
