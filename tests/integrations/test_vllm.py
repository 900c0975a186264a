"""vLLM, started for real, on CPUs: its tokens with gpushmem are those of one process without.

Each start takes half a minute.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.integrations.environments import environment, without_repository
from tests.integrations.programs.vllm_tokens import PROMPTS

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(900)]

PROGRAMS = Path(__file__).parent / "programs"
TOKENS = PROGRAMS / "vllm_tokens.py"
CARRIES = "gpushmem carries the collectives of"
PLUGIN = {"VLLM_PLUGINS": "gpushmem"}
QUICK = "enforce_eager=true"
LENGTHS = [len(prompt) for prompt in PROMPTS]  # tokens, which are bytes


@pytest.fixture(scope="module")
def python():
    return environment("vLLM")


@pytest.fixture(scope="module")
def models(python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for kind in ("llama", "moe"):
        command = [python, PROGRAMS / "tiny_model.py", folder / kind, kind]
        subprocess.run(command, check=True, capture_output=True, env=environ())
    return folder


def environ(ranks=1, **more):
    """Each rank on a core of its own, of which there may be fewer than ranks."""
    cores = os.cpu_count()
    return {
        **without_repository(), "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1", "VLLM_CACHE_ROOT": os.environ["GPUSHMEM_CACHE_DIR"],
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(str(rank % cores) for rank in range(ranks)), **more,
    }  # fmt: skip


def tokens_of(text):
    return [json.loads(line)["tokens"] for line in text.splitlines() if line.startswith("{")]


def errors_of(said):
    return "\n".join([line for line in said.splitlines() if "ERROR" in line][:60]) or said[-6000:]


def run(python, model, *options, ranks=1, **more):
    """The tokens, and what vLLM logged."""
    done = subprocess.run(
        [python, TOKENS, model, *options], env=environ(ranks, **more), capture_output=True,
        text=True, timeout=400, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, errors_of(said)
    return tokens_of(done.stdout), said


@pytest.fixture(scope="module")
def alone(python, models):
    """The tokens of one process, by kind of model."""
    return {kind: run(python, models / kind, QUICK)[0] for kind in ("llama", "moe")}


@pytest.mark.parametrize(
    ("kind", "options", "groups"),
    [
        ("llama", ["tensor_parallel_size=2", QUICK], ["tp:0"]),
        ("llama", ["tensor_parallel_size=2"], ["tp:0"]),
        ("llama", ["tensor_parallel_size=4", QUICK], ["tp:0"]),
        ("llama", ["pipeline_parallel_size=2"], ["pp:0"]),  # vLLM's has no eager one on CPUs
        ("llama", ["pipeline_parallel_size=2", "tensor_parallel_size=2"], ["pp:0", "tp:0"]),
        ("moe", ["tensor_parallel_size=2", QUICK], ["tp:0", "ep:0"]),
        # vLLM's own kernel reads beyond a rank's experts here, with any backend.
        ("moe", ["tensor_parallel_size=2", "enable_expert_parallel=true", QUICK], ["tp:0", "ep:0"]),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_tokens_are_those_of_one_process(python, models, alone, kind, options, groups):
    ranks = 1
    for option in options:
        ranks *= int(option.split("=")[1]) if "parallel_size" in option else 1
    tokens, said = run(python, models / kind, *options, ranks=ranks, **PLUGIN)
    assert tokens == alone[kind]
    assert set(re.findall(f"{CARRIES} ([a-z]+:[0-9])", said)) == set(groups)
    assert "SHM communicator disabled" in said  # vLLM's own shared memory


def test_sums_and_norms_are_one_operator_in_compiled_graphs(python, models, alone):
    tokens, said = run(
        python, models / "llama", "tensor_parallel_size=2", ranks=2, **PLUGIN,
        GPUSHMEM_TORCH_FUSE="1",
    )  # fmt: skip
    assert tokens == alone["llama"]
    assert re.search(
        r"fused in a graph of \d+ nodes:.* (all_reduce_rms_norm|gemm_all_reduce)", said
    )


def test_without_the_variable_vllm_stays_as_it_is(python, models, alone):
    tokens, said = run(python, models / "llama", "tensor_parallel_size=2", QUICK, ranks=2)
    assert tokens == alone["llama"]
    assert "gpushmem carries" not in said


# --- prefill in one engine, decode in another


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextlib.contextmanager
def started(command, log, **options):
    """A process and all that it starts, which end with this."""
    with open(log, "w") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, text=True,
            start_new_session=True, cwd=log.parent, **options,
        )  # fmt: skip
    try:
        yield process
    finally:
        kill_all(process)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def kill_all(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(process.pid)
        them = [parent, *parent.children(recursive=True)]
        for each in them:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(them, 30)
    process.wait(30)


def until(log, text, seconds=240, number=1):
    """Wait for a text in a log, `number` times."""
    end = time.monotonic() + seconds
    while log.read_text().count(text) < number:
        assert time.monotonic() < end, f"no {text!r}: {errors_of(log.read_text())}"
        time.sleep(0.1)


@pytest.fixture
def engines(python, models, tmp_path):
    """Start engines that know each other; what to call is given by `go`."""
    with contextlib.ExitStack() as stack:
        address = f"127.0.0.1:{free_port()}"

        def start(kind, ranks=1, **extra):
            log = tmp_path / f"{kind}{extra.get('instance', 0)}.log"
            command = [python, TOKENS, models / "llama", QUICK, f"tensor_parallel_size={ranks}"]
            more = {"KV": kind, "ADDRESS": address, "EXTRA": json.dumps(extra)}
            if ranks == 1:  # the two engines do not wait for each other's core
                core = 0 if kind == "prefill" else os.cpu_count() - 1
                more["VLLM_CPU_OMP_THREADS_BIND"] = str(core)
            process = stack.enter_context(started(command, log, env=environ(ranks, **more)))
            return process, log

        yield start


def go(engine, seconds=0.0):
    process, _ = engine
    process.stdin.write(f"{seconds}\n")
    process.stdin.flush()


def results(engine, number=4):
    _, log = engine
    until(log, '"tokens"', number=number)
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


@pytest.mark.parametrize(
    ("ranks", "late"), [(1, "neither"), (1, "prefill"), (1, "decode"), (2, "neither")]
)
def test_pages_come_from_another_engine(engines, alone, ranks, late):
    prefill, decode = engines("prefill", ranks), engines("decode", ranks)
    for name, engine in (("prefill", prefill), ("decode", decode)):
        until(engine[1], "\nready")
        go(engine, 5 if name == late else 0)
    of_decode = results(decode)
    assert [each["tokens"] for each in of_decode] == alone["llama"]
    assert [each["tokens"] for each in results(prefill)] == [each[:1] for each in alone["llama"]]
    assert [each["cached"] for each in of_decode] == LENGTHS  # it came, or was there
    assert "gpushmem carries the KV cache" in decode[1].read_text()


def test_pages_come_from_two_engines(engines, alone):
    two = [engines("prefill", prefill=2, instance=k) for k in range(2)]
    decode = engines("decode", prefill=2)
    for engine in (*two, decode):
        until(engine[1], "\nready")
    for engine in (*two, decode):
        go(engine)
    of_decode = results(decode)
    assert [each["tokens"] for each in of_decode] == alone["llama"]
    assert [each["cached"] for each in of_decode] == LENGTHS
    for k, engine in enumerate(two):
        first = [each[:1] for each in alone["llama"][k::2]]
        assert [each["tokens"] for each in results(engine, 2)] == first


def test_what_never_comes_is_computed_here(engines, alone):
    prefill, decode = engines("prefill", timeout=60), engines("decode", timeout=60)
    until(prefill[1], "\nready")
    until(decode[1], "\nready")
    go(decode)
    until(decode[1], "has not come within 60 s")
    assert [each["tokens"] for each in results(decode)] == alone["llama"]


@pytest.mark.parametrize("when", ["before", "while"])
def test_an_engine_that_dies_leaves_the_other_alone(engines, alone, when):
    prefill, decode = engines("prefill"), engines("decode")
    until(prefill[1], "\nready")
    until(decode[1], "\nready")
    if when == "before":
        kill_all(prefill[0])
    go(decode)
    time.sleep(2)
    kill_all(prefill[0])
    assert [each["tokens"] for each in results(decode)] == alone["llama"]
    assert "gpushmem carries the KV cache no more: PE 0 failed" in decode[1].read_text()


# --- servers


def server(python, model, port, *options):
    return [
        python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--port", str(port),
        "--dtype", "float32", "--max-model-len", "512", "--max-num-seqs", "4", "--block-size", "32",
        "--enforce-eager", *options,
    ]  # fmt: skip


def ask(*args, **more):
    """The tokens with which a server answers."""
    return answer(*args, **more)["choices"][0]["token_ids"]


def answer(port, prompt, most, seconds=100, **more):
    body = {
        "prompt": prompt,
        "max_tokens": most,
        "temperature": 0,
        "return_token_ids": True,
        **more,
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=seconds) as got:
        return json.load(got)


def test_a_server_answers_while_the_one_that_prefills_dies(python, models, alone, tmp_path):
    address, ports = f"127.0.0.1:{free_port()}", {kind: free_port() for kind in ("P", "D")}
    roles, logs = {"P": "kv_producer", "D": "kv_consumer"}, {}
    with contextlib.ExitStack() as stack:
        servers = {}
        for kind, port in ports.items():
            config = {
                "kv_connector": "GpushmemConnector", "kv_role": roles[kind],
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {"address": address},
            }  # fmt: skip
            logs[kind] = tmp_path / f"{kind}.log"
            command = server(python, models / "llama", port)
            command += ["--kv-transfer-config", json.dumps(config)]
            servers[kind] = stack.enter_context(started(command, logs[kind], env=environ()))
        for kind in ports:
            until(logs[kind], "Application startup complete")

        def tokens(kind, number, most, **more):
            named = {"kv_transfer_params": {"transfer": str(number)}}
            return ask(ports[kind], PROMPTS[number], most, **named, **more)

        tokens("P", 0, 1)
        assert tokens("D", 0, 12) == alone["llama"][0]
        with pytest.raises(TimeoutError):  # its client goes away while it waits
            tokens("D", 1, 12, seconds=3)
        params = {"do_remote_decode": True, "do_remote_prefill": False}  # as proxies for NIXL do
        there = answer(ports["P"], PROMPTS[3], 1, kv_transfer_params=params)["kv_transfer_params"]
        got = answer(ports["D"], PROMPTS[3], 12, kv_transfer_params=there)
        assert got["choices"][0]["token_ids"] == alone["llama"][3]
        until(logs["D"], "External prefix cache hit rate", seconds=60)
        kill_all(servers["P"])
        assert tokens("D", 2, 12) == alone["llama"][2]
    assert "no more: PE 0 failed" in logs["D"].read_text()


def test_tokens_go_to_the_ranks_that_have_their_experts(python, models, alone, tmp_path):
    log, port = tmp_path / "log", free_port()
    options = ["--data-parallel-size", "2", "--enable-expert-parallel"]
    command = server(python, models / "moe", port, *options)
    with started(command, log, env=environ(2, **PLUGIN)):
        until(log, "Application startup complete")
        with ThreadPoolExecutor(len(PROMPTS)) as pool:  # both ranks have work
            answers = list(pool.map(lambda prompt: ask(port, prompt, 12), PROMPTS * 2))
    assert answers == alone["moe"] * 2
    assert log.read_text().count("gpushmem carries tokens to 8 experts on 2 ranks") == 2


# --- failures


def test_a_worker_that_is_killed_ends_the_engine(python, models, tmp_path):
    log = tmp_path / "log"
    command = server(python, models / "llama", free_port(), "--tensor-parallel-size", "2")
    with started(command, log, env=environ(2, **PLUGIN)) as served:
        until(log, "Application startup complete")
        assert CARRIES in log.read_text()
        them = psutil.Process(served.pid).children(recursive=True)
        worker = int(re.search(r"Worker_TP1 pid=(\d+)", log.read_text())[1])
        os.kill(worker, signal.SIGKILL)
        served.wait(120)  # instead of waiting for ever in a collective
        assert "died unexpectedly" in log.read_text()
        _, alive = psutil.wait_procs(them, 30)
        assert not alive
