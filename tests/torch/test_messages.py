"""Sends and receives of torch.distributed."""

import time

import pytest

from tests.later import later
from tests.torch.test_group import world

torch = later("torch")
dist = later("torch.distributed")

RING = (1 << 16) - 128  # bytes
LENGTHS = 0, 1, RING // 4 - 16, RING // 4 - 15, RING // 4, 3 * RING // 4 + 1


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_ring_of_ranks(run_pes, tmp_path, n):
    def body():
        with world(tmp_path) as me:
            for count in LENGTHS:
                x, y = torch.arange(count) + 10.0 * me, torch.empty(count)
                ops = [dist.P2POp(dist.isend, x, (me + 1) % n)]
                ops.append(dist.P2POp(dist.irecv, y, (me - 1) % n))
                for work in dist.batch_isend_irecv(ops) if n > 1 else ():
                    work.wait()
                if n > 1:
                    assert torch.equal(y, torch.arange(count) + 10.0 * ((me - 1) % n))

    run_pes(body, n)


def test_tags_and_any_source(run_pes, tmp_path):
    def body():
        with world(tmp_path) as me:
            if me == 1:
                for tag, count in ((1, 1), (2, 50_000), (1, 2), (3, 1)):
                    dist.send(torch.full((count,), float(tag)), 0, tag=tag)
            if me == 0:
                for tag, count in ((2, 50_000), (3, 1), (1, 1), (1, 2)):
                    x = torch.empty(count)
                    assert dist.recv(x, 1, tag=tag) == 1
                    assert (x == tag).all()
            dist.barrier()
            if me:
                dist.send(torch.tensor([me]), 0, tag=7)
            else:
                came = {
                    dist.recv(x := torch.empty(1, dtype=torch.int64), tag=7): x.item()
                    for _ in (1, 2)
                }
                assert came == {1: 1, 2: 2}

    run_pes(body, 3)


def test_a_send_goes_on_while_its_rank_does_other_things(run_pes, tmp_path):
    def body():
        with world(tmp_path) as me:
            x = torch.full((1 << 20,), float(me))
            if me == 0:
                work = dist.isend(x, 1)
                future = work.get_future()
                dist.barrier()  # after the other one has it
                work.wait()
                assert future.wait()[0] is x
            else:
                y = torch.empty(1 << 20)
                dist.recv(y, 0)
                assert (y == 0).all()
                dist.barrier()

    run_pes(body, 2)


def test_both_send_before_they_receive(run_pes, tmp_path):
    def body():
        with world(tmp_path) as me:
            x, y = torch.full((1 << 18,), float(me)), torch.empty(1 << 18)
            works = [dist.isend(x, 1 - me), dist.irecv(y, 1 - me)]
            time.sleep(0.1 * me)
            for work in works:
                work.wait()
            assert (y == 1 - me).all()

    run_pes(body, 2)


def test_a_message_of_another_length_is_an_error(run_pes, tmp_path):
    def body():
        with world(tmp_path) as me:
            if me:
                dist.send(torch.ones(3), 0)
            else:
                with pytest.raises(dist.DistBackendError, match=r"rank 1 sends 12 bytes .* and 8"):
                    dist.recv(torch.empty(2), 1)
            dist.barrier()

    run_pes(body, 2)
