"""Programs for torch.distributed, as they are, with another backend."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PLAIN, ROOT
from tests.later import later

torch = later("torch")

PROGRAMS = Path(__file__).parent / "programs"
TORCHRUN = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"


def printed(*command, **settings):
    env = {**PLAIN, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **settings}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *command], env=env, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.timeout(400)
def test_training_gives_the_losses_of_one_process(tmp_path):
    lines = [line.split() for line in printed(*TORCHRUN, PROGRAMS / "train.py", "gpushmem")]
    names = ["one", "ddp", "fsdp", "by3", "fsdp3", "tp", "checkpoint"]
    assert [line[0] for line in lines] == names
    losses = {line[0]: [float(text) for text in line[1:]] for line in lines[:-1]}
    for name, expected in {"ddp": "one", "fsdp": "one", "fsdp3": "by3", "tp": "one"}.items():
        assert losses[name] == pytest.approx(losses[expected], abs=2e-6), name
    assert losses["by3"] != pytest.approx(losses["one"], abs=1e-3)
    assert lines[-1] == ["checkpoint", "True", "columns", "1"]


@pytest.mark.timeout(400)
def test_products_are_fused_where_it_pays(tmp_path):
    """By default on CPUs: large ones, if PyTorch has no more cores for them than a kernel."""
    cache = str(tmp_path)  # of graphs that have been compiled
    program = "-m", "gpushmem", "run", "-n", "1", PROGRAMS / "limits.py"
    lines = printed(*program, TORCHINDUCTOR_CACHE_DIR=cache)
    assert [line.partition(": ")[2] for line in lines] == ["nothing", "gemm_all_reduce"]


SLOW_EXIT = """
import atexit
import time

atexit.register(time.sleep, 1)  # called after what was registered later
import torch
import torch.distributed as dist

dist.init_process_group("gpushmem")
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""


def test_a_rank_that_takes_its_time_to_exit_is_no_deadlock(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SLOW_EXIT)
    done = subprocess.run(
        [sys.executable, *TORCHRUN[:-1], "2", script], env={**PLAIN, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "deadlock" not in done.stderr


WRONG = """
import torch
import torch.distributed as dist

dist.init_process_group("gpushmem")
group = dist.new_group([0, 1])
x = torch.ones(4)
if dist.get_rank():
    dist.recv(x, 0)
else:
    dist.all_reduce(x)
"""


def test_gpushmem_run_explains_a_hang(tmp_path, run_cli):
    script = tmp_path / "train.py"
    script.write_text(WRONG)
    done = run_cli("run", "-n", "2", script)
    assert "PE 0: host, in all_reduce at train.py:11, waits for PE 1" in done.stderr
    assert "PE 1: host, in recv at train.py:9, waits for PE 0" in done.stderr
    assert "Wait cycle: PE 0 -> PE 1 -> PE 0" in done.stderr


WAITING = """
import torch
import torch.distributed as dist
from torch.futures import wait_all

dist.init_process_group("gpushmem")
x = torch.ones(4)
if dist.get_rank():
    dist.recv(x, 0)
else:
    future = dist.all_reduce(x, async_op=True).get_future().then(lambda _: 1)
    wait_all([future])
"""


def test_waits_of_pytorch_s_own_are_explained(tmp_path, run_cli):
    script = tmp_path / "train.py"
    script.write_text(WAITING)
    done = run_cli("run", "-n", "2", script, code=1)
    assert "PE 0: host, in all_reduce at train.py:11, waits for PE 1" in done.stderr
    assert "PE 0: host, in a wait for another thread at train.py:12" in done.stderr
    assert "PE 1: host, in recv at train.py:9, waits for PE 0" in done.stderr


ANEW = """
import sys
import time
import torch
import torch.distributed as dist

dist.init_process_group("gpushmem")
rank = dist.get_rank()
try:
    dist.recv(torch.ones(4), 1 - rank)
except dist.DistBackendError as error:
    print("caught:", error)
    if rank == 1 and "late" in sys.argv:
        time.sleep(30)
dist.destroy_process_group()
for _ in range(3):
    dist.init_process_group("gpushmem")
    x = torch.ones(4)
    time.sleep(0.3 * rank)
    dist.all_reduce(x)
    dist.destroy_process_group()
print("anew:", x[0].item())
"""


def test_a_deadlock_that_all_ranks_handle_does_not_end_the_job(tmp_path, run_cli):
    script = tmp_path / "train.py"
    script.write_text(ANEW)
    done = run_cli("run", "-n", "2", script)
    assert done.stdout.count("anew: 2.0") == done.stdout.count("caught: recv: deadlock: no PE") == 2
    assert done.stderr.count("gpushmem: deadlock: no PE can go on\n") == 1
    assert "Wait cycle" in done.stderr
    assert "PEs were ended" not in done.stderr


def test_a_deadlock_that_one_rank_does_not_handle_ends_the_job(tmp_path, run_cli):
    script = tmp_path / "train.py"
    script.write_text(ANEW)
    done = run_cli("run", "-n", "2", script, "late", code=1)
    assert "anew" not in done.stdout
    assert done.stderr.endswith("gpushmem: deadlock: no PE can go on; all PEs were ended\n")
