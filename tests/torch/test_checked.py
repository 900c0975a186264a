"""What `gpushmem run --check` sees of torch.distributed."""

import json
import re

from tests.later import later

torch = later("torch")

HEAD = """
import torch, torch.distributed as dist, gpushmem.torch
import torch.distributed._functional_collectives as funcol

dist.init_process_group("gpushmem")
me, kept = dist.get_rank(), []
"""
TENSORS = """
x, y = torch.arange(8) + 10.0 * me, torch.zeros(8)
kept.append((x, y))
"""
SENT = """
if me == 0:
    work = dist.isend(x, 1)
    {early}
    work.wait()
    x[3] = 5
else:
    dist.recv(y, 0)
"""
RECEIVED = """
if me == 0:
    dist.send(x[:4], 1)
else:
    work = dist.irecv(y[::2])
    {early}
    work.wait()
    y.sum()
"""
EXCHANGED = """
ops = [dist.P2POp(dist.isend, x, 1 - me), dist.P2POp(dist.irecv, y, 1 - me)]
works = dist.batch_isend_irecv(ops)
x.sum()
{early}
for work in works:
    work.wait()
y.sum()
"""
SUMMED = """
work = dist.all_reduce(x, async_op=True)
{early}
work.wait()
x.sum()
"""
BROADCAST = """
work = dist.broadcast(x, 0, async_op=True)
if me == 0:
    x.sum()  # is sent, and may be read
{early}
work.wait()
x.sum()
"""
TWICE = """
work = dist.all_reduce(x, async_op=True)
{early}
work.wait()
"""
EARLY = {
    "send": (SENT, "x[3] = 5"), "recv": (RECEIVED, "y.sum()"), "exchange": (EXCHANGED, "y.sum()"),
    "all_reduce": (SUMMED, "x.max()"), "broadcast": (BROADCAST, "if me: x.sum()"),
    "sent meanwhile": (TWICE, "dist.send(x, 1) if me == 0 else dist.recv(y, 0)"),
}  # fmt: skip


ORDERED = """
import gpushmem as shmem

@shmem.jit
def kernel(a, b):
    b[0] = a[1]

a, b = shmem.zeros(4), shmem.zeros(4)
shmem.put(a, shmem.ones(4), 1 - me)
{order}
for _ in range(3):
    dist.send(x, 1 - me) if me == 0 else dist.recv(y)
    dist.send(x, 1 - me) if me == 1 else dist.recv(y)
kernel[1, 1](a, b)
shmem.synchronize()
"""
OTHERS = """
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)))
step = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    step.zero_grad()
    model(torch.randn(5, 8)).square().sum().backward()
    step.step()
print((funcol.all_reduce(x, "sum", dist.group.WORLD) + 1).sum())
future = dist.all_reduce(x, async_op=True).get_future()
future.wait()
work = dist.all_reduce(x, async_op=True)
while not work.is_completed():
    pass
x.sum()
works = [dist.all_reduce(x, async_op=True) for _ in range(5)]  # a group's calls are in order
dist.all_reduce(y)
x.sum()
dist.send(x, 1) if me == 0 else dist.recv(torch.zeros(16)[::2])
"""


def check(run_cli, path, parts):
    """What is found in a job of all of them, as each loads PyTorch."""
    path.write_text(TENSORS.join([HEAD, *parts, "dist.destroy_process_group()\n"]))
    done = run_cli(
        "run", "--backend", "cpu", "--check", "--check-format", "json", "-n", 2, path, timeout=170
    )
    assert done.returncode in (0, 66), done.stderr
    return json.loads(re.search(r"^\[.*", done.stdout, re.MULTILINE | re.DOTALL)[0])


def test_tensors_that_are_used_too_early_and_what_messages_do_not_order(run_cli, tmp_path):
    path = tmp_path / "program.py"
    parts = [body.format(early=f"{early}  # {name}") for name, (body, early) in EARLY.items()]
    found = check(run_cli, path, [*parts, ORDERED.format(order="pass")])
    assert [problem["kind"] for problem in found].count("ordering") == 1
    lines, named = path.read_text().splitlines(), set()
    for problem in found:
        numbers = [re.search(r"program\.py:(\d+)", one["line"]) for one in problem["accesses"]]
        names = {lines[int(k[1]) - 1].partition("  # ")[2] for k in numbers if k} & EARLY.keys()
        if problem["kind"] != "ordering":
            assert (problem["kind"], len(names)) == ("race", 1)
            assert problem["cure"].startswith("missing: wait() of the call at program.py:")
            named |= names
    assert named == EARLY.keys()


def test_ways_to_wait_and_what_messages_order(run_cli, tmp_path):
    parts = [body.format(early="pass") for body, _ in EARLY.values()]
    parts += [ORDERED.format(order="shmem.quiet()"), OTHERS]
    assert check(run_cli, tmp_path / "program.py", parts) == []
