"""What goes wrong between ranks is said by all of them."""

import re
import time

import pytest

import gpushmem as shmem
from tests.later import later
from tests.launch.test_forks import said_by_a_child
from tests.torch.test_group import world

torch = later("torch")
dist = later("torch.distributed")


def test_different_collectives(run_pes, tmp_path):
    def body():
        with world(tmp_path) as me, pytest.raises(dist.DistBackendError) as error:
            if me:
                dist.broadcast(torch.ones(4), 0)
            else:
                dist.all_reduce(torch.ones(4))
        return str(error.value)

    one, other = run_pes(body, 2)
    assert "PE 1: broadcast of 16 bytes from 0; this PE: all_reduce(sum) of 16 bytes" in one
    assert "PE 0: all_reduce(sum) of 16 bytes; this PE: broadcast of 16 bytes" in other


def test_different_lengths_and_dtypes(run_pes, tmp_path):
    def body():
        with world(tmp_path) as me:
            x = torch.ones(4, dtype=torch.float64) if me else torch.ones(4, dtype=torch.int32)
            with pytest.raises(dist.DistBackendError) as error:
                dist.all_reduce(x)
            with pytest.raises(dist.DistBackendError, match="an earlier call has failed"):
                dist.all_reduce(x)
            return str(error.value)

    one, _ = run_pes(body, 2)
    assert "all_reduce(sum) of 32 bytes of float64; this PE: all_reduce(sum) of 16 bytes" in one


def test_a_rank_that_does_not_come_in_time(run_pes, tmp_path):
    """When it comes, it does not believe that the others have made the call, either."""

    def body():
        with world(tmp_path, timeout=0.5) as me:
            if me == 1:
                time.sleep(3)
                with pytest.raises(dist.DistBackendError, match=r"late: PE [02] has given up"):
                    dist.barrier()
                return ""
            with pytest.raises(dist.DistBackendError) as error:
                dist.barrier()
            return str(error.value)

    said = run_pes(body, 3)  # one of the others may be late, too
    for k in (0, 2):
        assert re.fullmatch(
            r"barrier has waited 0.5 s for PEs? [-, \d]*1[-, \d]*, its limit \(the timeout of .*\)",
            said[k],
        )


@pytest.mark.parametrize("asynchronous", [False, True])
def test_ranks_that_wait_for_each_other(run_pes, tmp_path, asynchronous):
    """A deadlock is found long before the time limit, also if threads of the group wait."""

    def body():
        with world(tmp_path) as me:
            group = dist.new_group([0, 1])
            if me:
                dist.recv(torch.ones(4), 0)
            else:
                dist.all_reduce(torch.ones(4), group=group, async_op=asynchronous).wait()

    with pytest.raises(shmem.Deadlock) as failed:
        run_pes(body, 2, timeout=100)
    report = str(failed.value)
    assert re.search(r"PE 0: host, in all_reduce at test_failures.py:\d+, waits for PE 1", report)
    assert re.search(r"PE 1: host, in recv at test_failures.py:\d+, waits for PE 0", report)


def test_a_rank_that_ends(run_pes, tmp_path):
    def body():
        with world(tmp_path) as me:
            if me == 0:
                for call in (lambda x: dist.recv(x, 1), dist.all_reduce):
                    with pytest.raises(dist.DistBackendError, match="PE 1, which ended without"):
                        call(torch.ones(4))

    run_pes(body, 2)


def test_a_forked_child_takes_no_place_of_its_rank(run_pes, tmp_path):
    def body():
        with world(tmp_path) as me:
            dist.all_reduce(torch.ones(4))
            if me == 1:
                x = torch.full((4,), 100.0)
                other = 1 - me
                calls = {
                    "all_reduce": lambda: dist.all_reduce(x),
                    "async": lambda: dist.all_reduce(x, async_op=True),
                    "send": lambda: dist.send(x, other),
                    "destroy": dist.destroy_process_group,
                }
                for name, said in said_by_a_child(calls).items():
                    assert "was forked from PE 1 of 2, and is not a PE itself" in said, name
                loader = torch.utils.data.DataLoader(range(8), batch_size=4, num_workers=2)
                assert [int(batch.sum()) for batch in loader] == [6, 22]
            x = torch.ones(4)
            dist.all_reduce(x)
        return x.tolist()

    assert run_pes(body, 2) == [[2.0] * 4] * 2


def test_a_mean_that_pytorch_cannot_divide_changes_nothing(run_pes, tmp_path):
    def body():
        with world(tmp_path) as me:
            for dtype in (torch.bool, torch.uint16, torch.float8_e5m2):
                x = torch.full((3,), me).to(dtype)
                with pytest.raises(
                    shmem.ArgumentError, match=f"^all_reduce: op is AVG, and .* not divide {dtype}"
                ):
                    dist.all_reduce(x, dist.ReduceOp.AVG)
                assert torch.equal(x, torch.full((3,), me).to(dtype))
            x = torch.full((3,), me + 1)
            dist.all_reduce(x, dist.ReduceOp.AVG)
        return x.tolist()

    assert run_pes(body, 2) == [[1, 1, 1]] * 2
