"""SGLang's groups and Dynamo's protocol, of the real packages; neither's engine runs here."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.integrations.environments import environment, without_repository

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(600)]

PROGRAMS = Path(__file__).parent / "programs"
PROTOCOL = """
import dynamo.vllm
from types import SimpleNamespace
from vllm.plugins import load_general_plugins
from dynamo.vllm.kv_connector_protocols import make_kv_connector_protocol
load_general_plugins()
config = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector="GpushmemConnector"))
protocol = make_kv_connector_protocol(config)
answer = SimpleNamespace(kv_transfer_params={"transfer": "a", "prefill": 0})
print(protocol.prefill_request_kv_transfer_params()["do_remote_decode"])
print(protocol.decode_request_kv_transfer_params(answer))
"""


def run(*command, **more):
    """The output."""
    done = subprocess.run(
        command, env=without_repository() | more, capture_output=True, text=True, timeout=400,
        check=False, cwd=PROGRAMS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("ranks", [2, 3])
def test_groups_of_sglang(ranks):
    python = environment("SGLang")
    out = run(
        python, "-m", "gpushmem", "run", "-n", str(ranks), "sglang_groups.py",
        SGLANG_PLATFORM="gpushmem",
    )  # fmt: skip
    said = json.loads(next(line for line in out.splitlines() if line.startswith("{")))
    assert said["platform"] == "GpushmemPlatform"
    assert said["backend"] == "gpushmem"
    rows = [[k + rank for k in range(4)] for rank in range(ranks)]
    assert said["all"] == rows
    assert said["sum"] == [sum(column) for column in zip(*rows, strict=True)]


def test_sglang_stays_as_it_is_without_the_variable():
    out = run(
        environment("SGLang"), "-c",
        "from sglang.srt.platforms import current_platform as p; print(type(p).__name__)",
        SGLANG_USE_CPU_ENGINE="1",
    )  # fmt: skip
    assert out.split()[-1] == "CpuSRTPlatform"


def test_requests_of_dynamo_go_as_for_nixl():
    lines = run(environment("Dynamo"), "-c", PROTOCOL).splitlines()
    assert lines[-2:] == ["True", "{'transfer': 'a', 'prefill': 0}"]
