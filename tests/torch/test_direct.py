"""`all_reduce_`: calls that the dispatcher makes without Python, and those that Python makes."""

import os
import threading
import time

import pytest

import gpushmem as shmem
from tests.later import later
from tests.torch.test_group import COUNTS, values, world

torch = later("torch")
dist = later("torch.distributed")


def all_reduce_(x, group=""):
    import gpushmem.torch.operators  # noqa: F401  (it registers the operator)

    torch.ops.gpushmem.all_reduce_(x, group)


def made():
    return dist.group.WORLD.direct().made


@pytest.mark.parametrize("n", [1, 3])
def test_sums_of_all_lengths_and_dtypes(run_pes, tmp_path, n):
    def body():
        with world(tmp_path) as me:
            for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
                for count in (*COUNTS, 64):
                    x = values(me, count, dtype)
                    all_reduce_(x)
                    assert torch.equal(x, sum(values(rank, count, dtype) for rank in range(n)))
            return made()

    for calls in run_pes(body, n):
        assert calls >= 4 * len(COUNTS) / 2  # without Python; the first of a dtype are not


def test_many_rounds_while_ranks_are_late(run_pes, tmp_path):
    """Later than the operator waits, now and then; small and large, in two groups."""

    def body():
        with world(tmp_path) as me:
            pair = dist.new_group([0, 1])
            for k in range(150):
                if k % 50 == 10 * me:
                    time.sleep(0.1)
                x = torch.full((1 << k % 14,), me + k)
                all_reduce_(x)
                assert (x == 3 + 3 * k).all()
                if me < 2:
                    all_reduce_(x, pair.group_name)
                    assert (x == 2 * (3 + 3 * k)).all()
            return made(), pair.direct().made if me < 2 else 75

    for calls in run_pes(body, 3):
        assert min(calls) > 50


def test_calls_of_a_groups_thread_come_before(run_pes, tmp_path):
    def body():
        with world(tmp_path) as me:
            x, y = torch.ones(1 << 16), torch.ones(5)
            for k in range(20):
                all_reduce_(y.fill_(me))
                before = made()
                works = [dist.all_reduce(x, async_op=True) for _ in range(3)]
                all_reduce_(x)
                for work in works:
                    work.wait()
                assert (x == 2.0**4).all()
                x.fill_(1)
                assert made() == before
                dist.broadcast(y, k % 2)
            all_reduce_(y)
            assert made() == before + 1

    run_pes(body, 2)


def test_a_thread_waits_for_the_call_of_another(run_pes, tmp_path):
    """Of one group, while the operator waits for a rank that is late."""

    def body():
        with world(tmp_path) as me:
            x, y = torch.ones(3), torch.ones(3)
            all_reduce_(x)
            thread = threading.Thread(target=all_reduce_, args=(x,))
            if me:
                time.sleep(0.3)
            thread.start()
            time.sleep(0.1)
            dist.all_reduce(y)
            thread.join()
            return x.tolist(), y.tolist()

    assert run_pes(body, 2) == [([4.0] * 3, [2.0] * 3)] * 2


def test_errors_are_raised_where_the_operator_is_called(run_pes, tmp_path):
    def body():
        with world(tmp_path, timeout=2) as me:
            all_reduce_(torch.ones(2))
            with pytest.raises(shmem.ArgumentError, match=r"all_reduce_: x is not contiguous"):
                all_reduce_(torch.ones(4, 4).T[1:])
            with pytest.raises(shmem.ArgumentError, match="of a dtype that it does not add"):
                all_reduce_(torch.ones(4, dtype=torch.complex64))
            with pytest.raises(RuntimeError, match="no_such_group"):
                all_reduce_(torch.ones(4), "no_such_group")
            x = torch.ones(4)
            all_reduce_(x)
            assert (x == 2).all()
            with pytest.raises(dist.DistBackendError) as error:
                all_reduce_(torch.ones(4 + me))
            with pytest.raises(dist.DistBackendError, match="an earlier call has failed"):
                all_reduce_(torch.ones(4))
            return str(error.value)

    one, other = run_pes(body, 2)
    assert "all_reduce(sum) of 20 bytes; this PE: all_reduce(sum) of 16 bytes" in one
    assert "all_reduce(sum) of 16 bytes; this PE: all_reduce(sum) of 20 bytes" in other


def test_a_rank_that_does_not_come(run_pes, tmp_path):
    def body():
        with world(tmp_path, timeout=0.5) as me:
            x = torch.ones(2)
            all_reduce_(x)
            if me:
                time.sleep(2)
                with pytest.raises(dist.DistBackendError, match="late: PE 0 has given up"):
                    all_reduce_(x)
            else:
                with pytest.raises(dist.DistBackendError, match="all_reduce"):
                    all_reduce_(x)

    run_pes(body, 2)


def test_a_group_that_is_gone(run_pes, tmp_path):
    def body():
        with world(tmp_path):
            pair = dist.new_group([0, 1])
            name = pair.group_name
            all_reduce_(torch.ones(2), name)
            dist.destroy_process_group(pair)
            with pytest.raises(RuntimeError, match=r"not registered|not found|Could not resolve"):
                all_reduce_(torch.ones(2), name)

    run_pes(body, 2)


def test_after_finalize_calls_are_errors(run_pes, tmp_path):
    def body():
        with world(tmp_path):
            x = torch.ones(2)
            for _ in range(2):
                all_reduce_(x, dist.group.WORLD.group_name)
            shmem.finalize()
            for call in (lambda: all_reduce_(x, dist.group.WORLD.group_name), dist.barrier):
                with pytest.raises(dist.DistBackendError, match=r"finalize\(\) has ended its PEs"):
                    call()

    run_pes(body, 2)


def test_a_forked_process_is_refused(run_pes, tmp_path):
    def body():
        with world(tmp_path) as me:
            all_reduce_(torch.ones(2))
            x = torch.full((2,), 5.0)
            all_reduce_(x)
            assert made() == 1
            if me == 0:
                pid = os.fork()
                if pid == 0:
                    try:
                        all_reduce_(x)
                    except shmem.ShmemError as error:
                        os._exit(7 if "fork" in str(error) else 8)
                    os._exit(9)
                return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), x.tolist()
            return 7, x.tolist()

    assert run_pes(body, 2) == [(7, [10.0] * 2)] * 2


def test_compiled_programs_have_it(run_pes, tmp_path):
    def body():
        with world(tmp_path) as me:

            def layer(x):
                y = x * 2
                all_reduce_(y)
                return y + 1

            all_reduce_(torch.ones(1))
            compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
            assert (compiled(torch.full((6,), me + 1.0)) == 7).all()

    run_pes(body, 2)
