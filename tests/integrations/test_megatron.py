"""Megatron-Core trains a small GPT by gpushmem, and with gpushmem's layers, as it does by Gloo."""

import pytest

from tests.integrations.ranks import printed

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(900)]

LINEAR = ["ColumnParallelLinear", "RowParallelLinear"]
EXPERTS = ["ColumnParallelLinear", "ExpertParallelDispatcher", "MoELayer", "RowParallelLinear"]
ATTENTION = ["ColumnParallelLinear", "ContextParallelAttention", "RowParallelLinear"]
SEQUENCE, RING = ["AllGatherGemm", "GemmReduceScatter"], ["RingAttention", "RingAttentionBackward"]
# Case: ranks, gpushmem's modules and plans, and how far weights may be from Gloo's. Sums of two
# ranks have the same bits however they are made. Attention in parts has not, and Adam's first steps
# move a weight by 0.01 each, however small its gradient is.
CASES = {
    "tp": (2, LINEAR, ["GemmAllReduce"], 0),
    "tp-sp": (2, LINEAR, SEQUENCE, 0),
    "pp": (2, LINEAR, [], 0),
    "ep": (2, EXPERTS, ["ExpertParallel"], 0),
    "ep-tp-sp": (2, EXPERTS, ["AllGatherGemm", "ExpertParallel", "GemmReduceScatter"], 0),
    "cp": (2, ATTENTION, RING, 1e-3),
    "tp-pp": (4, LINEAR, ["GemmAllReduce"], 0),
    "cp-tp": (4, ATTENTION, ["GemmAllReduce", *RING], 1e-3),
}


@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_of_gloo(case, tmp_path):
    ranks, kinds, plans, tolerance = CASES[case]
    gloo, plain, fused = printed(
        "Megatron-Core", "gpt.py", tmp_path, case, ranks=ranks, TORCHDYNAMO_DISABLE="1"
    )  # Megatron-Core compiles small functions, for which it wants a C++ compiler
    assert gloo["backends"] == ["gloo"]
    assert plain["backends"] == fused["backends"] == ["gpushmem"]
    assert gloo["kinds"] == plain["kinds"] == plain["plans"] == []
    assert fused["kinds"] == kinds
    assert fused["plans"] == plans
    assert gloo["losses"][-1] < gloo["losses"][0] - 0.5  # it has learned something
    assert plain["losses"] == gloo["losses"]
    assert plain["distance"] == 0
    assert fused["losses"] == pytest.approx(gloo["losses"], abs=tolerance)
    assert fused["distance"] <= tolerance
    assert ("resumed" in fused) == (kinds == LINEAR)
    assert fused.get("resumed", 0) == 0  # from a checkpoint of megatron.core.dist_checkpointing
