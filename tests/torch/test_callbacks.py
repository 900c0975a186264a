"""Calls that callbacks of futures make, as PyTorch's communication hooks do."""

import random
import time

import pytest

from tests.later import later
from tests.torch.test_group import world

torch = later("torch")
dist = later("torch.distributed")

HALF_MEGABYTE = 1 << 17  # elements: more than fit between two ranks


def call(way, y):
    """Make a call in one of the ways; its result is in `y`."""
    if way == "future":
        dist.all_reduce(y, async_op=True).get_future().wait()
    elif way == "work":
        dist.all_reduce(y, async_op=True).wait()
    elif way == "plain":
        dist.all_reduce(y)
    elif way == "then":
        dist.all_reduce(y, async_op=True).get_future().then(lambda _: dist.barrier()).wait()
    elif way == "message":
        me, n = dist.get_rank(), dist.get_world_size()
        x = torch.full_like(y, float(n))
        works = [dist.isend(x, (me + 1) % n), dist.irecv(y, (me - 1) % n)]
        [work.wait() for work in works]
    return y


@pytest.mark.parametrize("n", [1, 3])
def test_a_callback_may_make_any_call_and_wait_for_it(run_pes, tmp_path, n):
    ways = ["future", "work", "plain", "then", *(["message"] if n > 1 else [])]

    def body():
        with world(tmp_path):
            said = []
            for way in ways:
                future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
                said.append(future.then(lambda _, way=way: call(way, torch.ones(1)).item()).wait())
            return said

    assert run_pes(body, n, timeout=60) == [[float(n)] * len(ways)] * n


def test_ranks_make_calls_of_callbacks_in_the_same_order(run_pes, tmp_path):
    """Each of them is late in turn: calls are queued before and after their callbacks run."""

    def body():
        with world(tmp_path) as me:
            delays, futures = random.Random(me), []
            for k in range(60):
                x, y = torch.full((5,), float(k)), torch.full((7,), float(me))

                def then(_, x=x, y=y):
                    dist.all_reduce(y)
                    return x[0].item(), dist.all_reduce(x, async_op=True).wait(), y[0].item()

                futures.append(dist.all_reduce(x, async_op=True).get_future().then(then))
                time.sleep(delays.choice([0, 0, 0, 2e-3]))
            return [future.wait() for future in futures]

    assert run_pes(body, 3, timeout=90) == [[(3.0 * k, True, 3.0) for k in range(60)]] * 3


def test_a_callback_of_a_message_waits_while_messages_move(run_pes, tmp_path):
    def body():
        with world(tmp_path) as me:
            other, much, little = 1 - me, torch.ones(HALF_MEGABYTE), torch.ones(1)
            if me == 0:
                work = dist.irecv(little, other)
                done = work.get_future().then(lambda _: dist.barrier() or "met")
                sent = dist.isend(much, other)  # goes on while the callback waits
                said = done.wait()
                sent.wait()
                return said
            time.sleep(0.2)
            dist.send(little, other)
            dist.recv(much, other)
            dist.barrier()
            return "came"

    assert run_pes(body, 2, timeout=60) == ["met", "came"]


def test_callbacks_of_messages_may_wait_for_each_other(run_pes, tmp_path):
    """Messages that have come together, to a rank that waits for a third one."""

    def body():
        with world(tmp_path) as me:
            if me == 1:
                time.sleep(0.3)
                for tag in (1, 2, 3):
                    dist.send(torch.full((1,), float(tag)), 0, tag=tag)
                return []
            tensors = [torch.zeros(1) for _ in range(3)]
            one, two = (dist.irecv(x, 1, tag=tag) for tag, x in enumerate(tensors[:2], 1))
            second = two.get_future()
            first = one.get_future().then(lambda _: second.wait())
            dist.recv(tensors[2], 1, tag=3)
            assert one.is_completed()
            assert two.is_completed()
            first.wait()
            return [x.item() for x in tensors]

    assert run_pes(body, 2, timeout=60) == [[1.0, 2.0, 3.0], []]


def hooks():
    """PyTorch's hooks for gradients of DDP, with their states, for a group."""
    from torch.distributed.algorithms.ddp_comm_hooks import (
        debugging_hooks,
        default_hooks,
        post_localSGD_hook,
        powerSGD_hook,
    )

    def power(group, **options):
        return powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=2, **options)

    return {
        "allreduce": (default_hooks.allreduce_hook, lambda group: group),
        "fp16": (default_hooks.fp16_compress_hook, lambda group: group),
        "wrapped": (
            default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook),
            lambda group: power(group, matrix_approximation_rank=1),
        ),
        "power": (
            powerSGD_hook.powerSGD_hook,
            lambda group: power(group, matrix_approximation_rank=2),
        ),
        "local": (
            post_localSGD_hook.post_localSGD_hook,
            lambda group: post_localSGD_hook.PostLocalSGDState(group, group, start_localSGD_iter=2),
        ),
        "none": (debugging_hooks.noop_hook, lambda group: None),
    }


def trained(group, name, megabytes):
    """The weights of a model after four steps, in buckets of so many megabytes."""
    torch.manual_seed(1)
    layers = [torch.nn.Linear(32, 32) for _ in range(4)]
    parallel = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*layers), process_group=group, bucket_cap_mb=megabytes
    )
    hook, state = hooks()[name]
    parallel.register_comm_hook(state(group), hook)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(4):
        optimizer.zero_grad()
        parallel(torch.randn(8, 32)).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in parallel.parameters()])


def test_communication_hooks_give_what_gloo_gives(run_pes, tmp_path):
    """With one bucket: of several, Gloo's ranks make the calls of callbacks in any order."""

    def body():
        with world(tmp_path) as me:
            ours, gloo = dist.group.WORLD, dist.new_group(backend="gloo")
            for name in hooks():
                mine, theirs = (trained(group, name, 1) for group in (ours, gloo))
                torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5, msg=name)
                mine = trained(ours, name, 0.005)
                first = mine.clone()
                dist.broadcast(first, 0)
                assert torch.equal(mine, first) == (name != "none" or me == 0), name
            dist.destroy_process_group(gloo)
        return True

    assert run_pes(body, 2, timeout=90) == [True] * 2
