"""The backend of torch.distributed: what its collectives give, on tensors of all kinds."""

import time
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
import pytest
from numba.cuda import types

import gpushmem.torch
from gpushmem.artifacts.fingerprint import fingerprint, name_of
from gpushmem.backends.cpu import host_collectives
from gpushmem.errors import ArgumentError
from gpushmem.job import job
from tests.later import later

torch = later("torch")
dist = later("torch.distributed")

# The names that programs use; the newest PyTorch has others, too.
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
HALF = 1 << 19  # bytes of a piece that all get


@contextmanager
def world(path, timeout=60):
    """The group of all PEs, and this one's rank."""
    gpushmem.torch.register()
    here = job.current()
    dist.init_process_group(
        "gpushmem", store=dist.FileStore(str(path / "store"), here.n_pes), rank=here.my_pe,
        world_size=here.n_pes, timeout=timedelta(seconds=timeout),
    )  # fmt: skip
    yield here.my_pe
    if dist.is_initialized():
        dist.destroy_process_group()


def test_pes_forked_after_pytorchs_import_know_their_ranks(run_pes, monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):  # of torchrun, if it has started this
        monkeypatch.delenv(name, raising=False)
    assert torch.distributed.is_available()  # it is imported now

    def body():
        dist.init_process_group("gpushmem")
        found = dist.get_rank(), dist.get_world_size()
        dist.destroy_process_group()
        return found

    assert run_pes(body, 3) == [(0, 3), (1, 3), (2, 3)]


def values(rank, count, dtype):
    """Small numbers, different on each rank, whose sums and products are exact."""
    numbers = (torch.arange(count) * (rank + 3) + rank) % 3
    return (numbers > 0) if dtype == torch.bool else numbers.to(dtype)


DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64"]
FULLY = "float32", "bfloat16", "int64"  # with which all operations are tried
# Elements of 4 bytes: nothing, one, a piece and a bit of several.
COUNTS = 0, 1, 7, HALF // 4, 3 * HALF // 4 + 13


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_all_reduce_of_all_lengths(run_pes, tmp_path, n):
    def body():
        with world(tmp_path) as me:
            for count in COUNTS:
                x = values(me, count, torch.float32)
                dist.all_reduce(x)
                assert torch.equal(x, sum(values(rank, count, torch.float32) for rank in range(n)))

    run_pes(body, n)


def test_all_reduce_of_all_dtypes_and_operations(run_pes, tmp_path):
    n, count = 3, 1000
    combined = {
        "SUM": lambda all_: all_.sum(0), "PRODUCT": lambda all_: all_.prod(0),
        "MIN": lambda all_: all_.min(0).values, "MAX": lambda all_: all_.max(0).values,
        "AVG": lambda all_: all_.sum(0) / n,
        "BAND": lambda all_: all_[0] & all_[1] & all_[2],
        "BOR": lambda all_: all_[0] | all_[1] | all_[2],
        "BXOR": lambda all_: all_[0] ^ all_[1] ^ all_[2],
    }  # fmt: skip

    def body():
        with world(tmp_path) as me:
            for named in DTYPES:
                dtype = getattr(torch, named)
                for name, expected in combined.items():
                    if name != "SUM" and named not in FULLY:
                        continue
                    if name[0] == "B" and dtype.is_floating_point:
                        continue
                    x = values(me, count, dtype)
                    dist.all_reduce(x, getattr(dist.ReduceOp, name))
                    whole = torch.stack([values(rank, count, dtype) for rank in range(n)])
                    exact = whole.to(torch.float64) if name == "AVG" else whole
                    assert torch.equal(x, expected(exact).to(dtype)), (dtype, name)
            for name, any_ in (("SUM", True), ("MAX", True), ("BOR", True), ("MIN", False)):
                x = torch.tensor([me == 1, True, False])
                dist.all_reduce(x, getattr(dist.ReduceOp, name))
                assert x.tolist() == [any_, True, False]
            z = torch.full((5,), complex(me, 1), dtype=torch.complex64)
            dist.all_reduce(z)
            assert torch.equal(z, torch.full((5,), complex(3, 3), dtype=torch.complex64))
            with pytest.raises(RuntimeError, match=r"^all_reduce: tensor is of float32; a bitw"):
                dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND)
            dist.barrier()  # the group goes on

    run_pes(body, n)


@pytest.mark.parametrize("n", [1, 3])
def test_premul_sum_multiplies_what_each_rank_gives(run_pes, tmp_path, n):
    """As NCCL has it: of all calls that add up, and inputs stay as they are."""
    half = 0.5  # exact, and 0.25, too

    def of(rank, dtype, rows=4):
        """Other numbers for each rank, and each row's rank, with a second axis of 6."""
        return (torch.arange(rows * 6).reshape(rows, 6) % 5 + 16 * rank).to(dtype)

    def body():
        with world(tmp_path) as me:
            group = dist.distributed_c10d._get_default_group()
            for named in ("float64", "float32", "bfloat16", "float16"):
                dtype = getattr(torch, named)
                for factor in (half, torch.tensor([half], dtype=dtype), torch.tensor(half)):
                    op = dist._make_nccl_premul_sum(factor)
                    total = half * sum(of(rank, dtype) for rank in range(n))

                    x = of(me, dtype)
                    dist.all_reduce(x, op)
                    assert torch.equal(x, total)
                    x = of(me, dtype).T.contiguous().T  # not contiguous
                    dist.all_reduce(x, op)
                    assert torch.equal(x, total)
                    x = of(me, dtype)
                    work = dist.all_reduce(x, op, async_op=True)
                    work.wait()
                    assert torch.equal(x, total)
                    several = [of(me, dtype), of(me, dtype) + 1]
                    dist.all_reduce_coalesced(several, op)
                    assert torch.equal(several[0], total)
                    assert torch.equal(several[1], total + half * n)

                    x = of(me, dtype)
                    dist.reduce(x, n - 1, op)
                    assert torch.equal(x, total if me == n - 1 else of(me, dtype))

                    whole = of(me, dtype, 4 * n)
                    kept = whole.clone()
                    mine = half * sum(of(rank, dtype, 4 * n) for rank in range(n))
                    mine = mine[4 * me : 4 * (me + 1)]
                    out = torch.empty(4, 6, dtype=dtype)
                    for call in (
                        lambda: dist.reduce_scatter(out, list(whole.chunk(n)), op),  # noqa: B023
                        lambda: dist.reduce_scatter_tensor(out, whole, op),  # noqa: B023
                        lambda: together(group, out, whole, op),  # noqa: B023
                    ):
                        out.fill_(-1)
                        call()
                        assert torch.equal(out, mine)
                        assert torch.equal(whole, kept)
            z = torch.full((2,), complex(me, 2))
            dist.all_reduce(z, dist._make_nccl_premul_sum(half))
            assert torch.equal(z, torch.full((2,), half * complex(n * (n - 1) // 2, 2 * n)))
            sparse = torch.eye(3).to_sparse() * (me + 1)
            dist.all_reduce(sparse, dist._make_nccl_premul_sum(half))
            assert torch.equal(sparse.to_dense(), torch.eye(3) * half * (n * (n + 1) // 2))

    def together(group, out, whole, op):
        others = torch.empty_like(out)
        with dist.distributed_c10d._coalescing_manager(group):
            dist.reduce_scatter_tensor(out, whole, op)
            dist.reduce_scatter_tensor(others, whole, op)
        assert torch.equal(others, out)

    run_pes(body, n)


def test_premul_sum_of_what_it_cannot_multiply_changes_nothing(run_pes, tmp_path):
    def body():
        with world(tmp_path) as me:
            op = dist._make_nccl_premul_sum(0.5)
            for dtype in (torch.int64, torch.bool, torch.float8_e5m2):
                x = torch.full((2,), me).to(dtype)
                wanted = f"PREMUL_SUM, for float16, .* tensor is of {dtype}: use SUM"
                for call in (
                    lambda: dist.all_reduce(x, op),  # noqa: B023
                    lambda: dist.reduce(x, 0, op),  # noqa: B023
                    lambda: dist.reduce_scatter(x, [x, x], op),  # noqa: B023
                    lambda: dist.reduce_scatter_tensor(x, torch.cat([x, x]), op),  # noqa: B023
                ):
                    with pytest.raises(ArgumentError, match=rf"^(all_)?reduce\w*: op is {wanted}"):
                        call()
                assert torch.equal(x, torch.full((2,), me).to(dtype))
            x = torch.ones(2)
            dist.all_reduce(x, op)  # the group goes on
            assert x.tolist() == [1.0, 1.0]

    run_pes(body, 2)


def test_what_combines_is_compiled_once():
    """By one process, for all others and later runs."""
    for op, kernel in host_collectives._kernels.items():
        array = types.Array(types.float32, 1, "C"), types.Array(types.int64, 1, "C")
        key = fingerprint(kernel.py_func, array, {}, "machine")
        assert key is not None, op
        assert name_of(key)[1]


def test_sums_are_the_same_bits_on_all_ranks(run_pes, tmp_path):
    def body():
        with world(tmp_path) as me:
            torch.manual_seed(me)
            x = torch.randn(200_003)
            dist.all_reduce(x)
            return x.numpy().tobytes()

    assert len(set(run_pes(body, 5))) == 1


def fillers(rank, n, count):
    return [torch.full((count,), 100.0 * rank + peer) for peer in range(n)]


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("count", [0, 3, HALF // 4 + 5])
def test_what_goes_from_each_to_each(run_pes, tmp_path, n, count):
    def one(rank):
        return torch.arange(count) + 1000.0 * rank

    def body():
        with world(tmp_path) as me:
            whole = torch.cat([one(rank) for rank in range(n)])
            out = torch.empty(n * count)
            dist.all_gather_into_tensor(out, one(me))
            assert torch.equal(out, whole)
            parts = [torch.empty(count) for _ in range(n)]
            dist.all_gather(parts, one(me))
            assert torch.equal(torch.cat(parts), whole)

            for root in {0, n - 1}:
                x = one(me)
                dist.broadcast(x, root)
                assert torch.equal(x, one(root))
                gathered = [torch.empty(count) for _ in range(n)] if me == root else None
                dist.gather(one(me), gathered, root)
                assert me != root or torch.equal(torch.cat(gathered), whole)
                x = torch.empty(count)
                dist.scatter(x, fillers(root, n, count) if me == root else None, root)
                assert torch.equal(x, fillers(root, n, count)[me])
                x = one(me)
                dist.reduce(x, root)
                assert torch.equal(x, sum(map(one, range(n))) if me == root else one(me))

            out = torch.empty(count)
            dist.reduce_scatter(out, fillers(me, n, count))
            total = sum(fillers(rank, n, count)[me] for rank in range(n))
            assert torch.equal(out, total)
            dist.reduce_scatter_tensor(out, torch.cat(fillers(me, n, count)))
            assert torch.equal(out, total)

            theirs = torch.cat([fillers(rank, n, count)[me] for rank in range(n)])
            out = torch.empty(n * count)
            dist.all_to_all_single(out, torch.cat(fillers(me, n, count)))
            assert torch.equal(out, theirs)
            parts = [torch.empty(count) for _ in range(n)]
            dist.all_to_all(parts, fillers(me, n, count))
            assert torch.equal(torch.cat(parts), theirs)

    run_pes(body, n)


def test_pieces_of_different_lengths(run_pes, tmp_path):
    """Also such that only one pair of ranks has more than fits a stage."""
    n = 3
    lengths = np.array([[0, 2, 50_000], [1, 0, 3], [300_000, 5, 0]])  # from, to

    def body():
        with world(tmp_path) as me:
            sent = [torch.full((k, 2), 10.0 * me + peer) for peer, k in enumerate(lengths[me])]
            came = [torch.full((k, 2), 10.0 * peer + me) for peer, k in enumerate(lengths[:, me])]
            out = torch.empty(sum(lengths[:, me]), 2)
            splits = lengths[:, me].tolist(), lengths[me].tolist()
            dist.all_to_all_single(out, torch.cat(sent), *splits)
            assert torch.equal(out, torch.cat(came))
            of_numpy = lengths[:, me], lengths[me]
            dist.all_to_all_single(out.zero_(), torch.cat(sent), *of_numpy)
            assert torch.equal(out, torch.cat(came))
            tensors = [torch.tensor(each) for each in of_numpy]
            dist.all_to_all_single(out.zero_(), torch.cat(sent), *tensors)
            assert torch.equal(out, torch.cat(came))
            for wrong in (np.ones(n), torch.ones(n), np.ones((n, n), np.int64), ["1"] * n):
                with pytest.raises(
                    ArgumentError,
                    match=r"^all_to_all_single: (?s:input_split_sizes is .* one integer)",
                ):
                    dist.all_to_all_single(torch.empty(n), torch.empty(n), [1] * n, wrong)
            with pytest.raises(ArgumentError, match=r"output_split_sizes is \[4, -2, 1\], which"):
                dist.all_to_all_single(torch.empty(n), torch.empty(n), [4, -2, 1], [1] * n)
            parts = [torch.empty(rank + 1) for rank in range(n)]
            dist.all_gather(parts, torch.full((me + 1,), float(me)))
            assert [p.tolist() for p in parts] == [[0.0], [1.0, 1.0], [2.0, 2.0, 2.0]]
            with pytest.raises(
                RuntimeError, match=r"^all_to_all_single: output_split_sizes is .* 3 ranks"
            ):
                dist.distributed_c10d._get_default_group().alltoall_base(
                    torch.empty(3), torch.empty(3), [1, 1, 2], [1, 1, 1]
                ).wait()
            objects = [None] * n
            dist.all_gather_object(objects, "x" * me)
            assert objects == ["", "x", "xx"]

    run_pes(body, n)


def test_sparse_tensors_are_added_up(run_pes, tmp_path):
    """As gradients of embeddings are: with different rows on each rank, and none on one."""
    n = 3

    def of(rank):
        rows = torch.tensor([[0, rank]] if rank else [], dtype=torch.int64).reshape(1, -1)
        values = torch.full((rows.shape[1], 2), float(rank))
        return torch.sparse_coo_tensor(rows, values, (4, 2), check_invariants=True)

    def body():
        with world(tmp_path) as me:
            for op, share in ((dist.ReduceOp.SUM, 1), (dist.ReduceOp.AVG, n)):
                x = of(me)
                dist.all_reduce(x, op)
                assert x.is_sparse
                total = sum(of(rank).to_dense() for rank in range(n))
                assert torch.equal(x.to_dense(), total / share)
            with pytest.raises(RuntimeError, match=r"^all_reduce: of sparse tensors"):
                dist.all_reduce(of(me), dist.ReduceOp.MAX)

    run_pes(body, n)


def test_several_gathers_at_once(run_pes, tmp_path):
    """The list of tensors that come is one of members, each with all that it sends."""
    n = 3

    def body():
        with world(tmp_path) as me:
            sent = [torch.full((2,), 10.0 * me), torch.full((3, 1), 10.0 * me + 1)]
            came = [[torch.empty(2), torch.empty(3, 1)] for _ in range(n)]
            dist.all_gather_coalesced(came, sent)
            for rank, (one, other) in enumerate(came):
                assert (one == 10 * rank).all(), one
                assert (other == 10 * rank + 1).all(), other

    run_pes(body, n)


def test_calls_of_a_group_without_options_have_results(run_pes, tmp_path):
    """As hooks of DistributedDataParallel make them."""

    def body():
        with world(tmp_path):
            x = torch.ones(2)
            doubled = dist.group.WORLD.allreduce([x]).get_future().then(lambda f: f.value()[0] * 2)
            assert doubled.wait().tolist() == [4.0, 4.0]

    run_pes(body, 2)


def test_groups_that_end_or_are_given_up_can_be_made_again(run_pes, tmp_path):
    def body():
        for k in range(3):
            (here := tmp_path / f"{k}").mkdir(exist_ok=True)
            with world(here):
                dist.barrier(group=dist.new_group([0, 1]))
                x = torch.ones(1)
                dist.all_reduce(x)
                assert x == 2
                if k == 1:
                    dist.distributed_c10d._abort_process_group()

    run_pes(body, 2)


def test_tensors_that_are_not_contiguous(run_pes, tmp_path):
    def body():
        with world(tmp_path) as me:
            x = torch.arange(12.0).reshape(3, 4).T
            dist.all_reduce(x)
            assert torch.equal(x, 2 * torch.arange(12.0).reshape(3, 4).T)
            out = torch.zeros(4, 2).T
            dist.all_gather_into_tensor(out, torch.full((1, 4), float(me)))
            assert out.tolist() == [[0.0] * 4, [1.0] * 4]
            x = torch.zeros(6)[::2]
            (dist.send if me else dist.recv)(x + me if me else x, 1 - me)
            assert x.tolist() == ([0.0] * 3 if me else [1.0] * 3)

    run_pes(body, 2)


def test_calls_that_nobody_waits_for_are_made_in_their_order(run_pes, tmp_path):
    def body():
        with world(tmp_path):
            x = torch.ones(1)
            works = [dist.all_reduce(x, async_op=True) for _ in range(20)]
            future = works[-1].get_future()
            done = []
            future.add_done_callback(lambda f: done.append(f.value()))
            y = torch.ones(3)
            dist.all_reduce(y)  # after them
            assert (x.item(), y.tolist()) == (2.0**20, [2.0] * 3)
            assert all(work.is_completed() for work in works)
            assert (works[0].wait(), works[0].exception()) == (True, None)
            assert future.wait()[0] is x
            assert len(done) == 1
            w = dist.barrier(async_op=True)
            w.wait()

    run_pes(body, 2)


def test_splits_may_change_when_the_call_has_returned(run_pes, tmp_path):
    """Those of an array that is used again, before the group's thread comes to the call."""

    def body():
        with world(tmp_path) as me:
            splits = np.array([1, 1])
            if me:
                time.sleep(0.5)
            before = dist.all_reduce(torch.ones(4), async_op=True)
            out = torch.empty(2)
            work = dist.all_to_all_single(
                out, torch.tensor([10.0 * me, 10.0 * me + 1]), splits, splits, async_op=True
            )
            splits[:] = [2, 0]
            before.wait()
            work.wait()
            assert out.tolist() == [me, 10.0 + me]

    run_pes(body, 2)


def test_a_group_ends_when_its_calls_have_been_made(run_pes, tmp_path):
    def body():
        with world(tmp_path) as me:
            x = torch.ones(1 << 20)
            for _ in range(5):
                last = dist.all_reduce(x, async_op=True)
        assert last.is_completed()
        assert (x == 2.0**5).all(), me

    run_pes(body, 2)


def test_groups_of_some_ranks(run_pes, tmp_path):
    def body():
        with world(tmp_path) as me:
            for _ in range(3):  # more groups than there are at once
                pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
                mine = pairs[me // 2]
                x = torch.tensor([float(me)])
                work = dist.all_reduce(x, group=mine, async_op=True)
                everyone = torch.ones(1)
                dist.all_reduce(everyone)
                work.wait()
                assert (x.item(), everyone.item()) == (1.0 if me < 2 else 5.0, 4)
                assert dist.get_group_rank(mine, me) == me % 2
                y = torch.full((2,), float(me))
                dist.broadcast(y, 3 if me > 1 else 0, group=mine)
                assert y.tolist() == ([3.0] * 2 if me > 1 else [0.0] * 2)
                dist.destroy_process_group(mine)

    run_pes(body, 4)


def test_groups_without_a_rank_do_not_wait_for_it(run_pes, tmp_path):
    def body():
        with world(tmp_path) as me:
            if me == 2:
                time.sleep(1)
                return None
            group = dist.new_group([0, 1], use_local_synchronization=True)
            x = torch.ones(1)
            dist.all_reduce(x, group=group)
            return x.item()

    assert run_pes(body, 3) == [2.0, 2.0, None]


def test_calls_in_all_forms(run_pes, tmp_path):
    """As `ProcessGroup` has them: a tensor instead of a list; a root, an operation, a timeout."""
    n = 3

    def body():
        with world(tmp_path) as me:
            group = dist.distributed_c10d._get_default_group()
            x = torch.tensor(me + 1.0)  # no list
            group.allreduce(x).wait()
            group.allreduce(x, op=dist.ReduceOp.MAX, timeout=timedelta(seconds=30)).wait()
            group.allreduce([x], dist.ReduceOp.SUM).wait()
            assert x == 18
            x = torch.full((2,), float(me))
            group.broadcast(x, root=2).wait()
            group.reduce(x, 1, dist.ReduceOp.PRODUCT).wait()
            assert x.tolist() == ([8, 8] if me == 1 else [2, 2])
            x, gathered = torch.tensor([me]), [torch.zeros(1, dtype=torch.int64) for _ in range(n)]
            work = group.allgather(gathered, x)
            work.wait()
            assert torch.cat(work.result()).tolist() == [0, 1, 2]  # flat, as other backends have it
            assert torch.cat(work.get_future().value()).tolist() == [0, 1, 2]
            work = group.gather(
                [gathered] if me == 1 else [],
                [x + 5],
                opts=root(dist.distributed_c10d.GatherOptions),
            )
            work.wait()
            assert [int(each) for each in work.result()] == ([5, 6, 7] if me == 1 else [])
            group.gather(gathered if me == 1 else [], x + 7, root=1).wait()
            group.scatter(x, gathered if me == 1 else [], root=1).wait()
            assert x == me + 7
            group.reduce_scatter(x, gathered, op=dist.ReduceOp.MAX).wait()
            assert x == me + 7
            group.barrier(timeout=timedelta(seconds=30)).wait()

    def root(options):
        made = options()
        made.rootRank = 1
        return made

    run_pes(body, n)


def test_what_does_not_fit_raises_before_anything_is_sent(run_pes, tmp_path):
    n = 2

    def body():
        with world(tmp_path) as me:
            group = dist.distributed_c10d._get_default_group()
            x, more, whole = torch.ones(4), torch.ones(8), torch.ones(4, dtype=torch.float64)
            wrong = {
                "takes one tensor of each rank, or one list; not 2": [
                    lambda: group.allreduce([x, x]),
                    lambda: group.broadcast([x, x], dist.distributed_c10d.BroadcastOptions()),
                    lambda: group.allgather([[x, x]] * 2, [x, x]),
                ],
                "the root is rank 2; there are ranks 0 to 1": [
                    lambda: group.broadcast(x, root=2),
                    lambda: group.reduce(x, root=2),
                    lambda: group.gather([x, x], x, root=2),
                    lambda: group.scatter(x, [x, x], root=2),
                ],
                r"^\w+: \w+_list has 1 tensors for 2 ranks": [
                    lambda: group.allgather([x], x),
                    lambda: group.gather([x], x, root=me),
                    lambda: group.scatter(x, [x], root=me),
                    lambda: group.reduce_scatter(x, [x]),
                    lambda: dist.all_to_all([x, x], [x]),
                ],
                r"^\w+: \w+ is of float\d\d, and \w+ of float": [
                    lambda: dist.all_gather_into_tensor(torch.ones(8, dtype=torch.float64), x),
                    lambda: dist.reduce_scatter_tensor(x, torch.ones(8, dtype=torch.float64)),
                    lambda: group.alltoall_base(whole, x, [], []),
                ],
                r"^\w+: \w+ has 16 bytes, and this rank's part of [\w\[\]]+ 32": [
                    lambda: group.allgather([more, more], x),
                    lambda: dist.all_gather_into_tensor(torch.ones(16), x),
                    lambda: dist.reduce_scatter_tensor(x, torch.ones(16)),
                ],
            }
            for text, calls in wrong.items():
                for call in calls:
                    with pytest.raises(RuntimeError, match=text) as raised:
                        (call() or dist.Work()).wait()
                    assert isinstance(raised.value, ArgumentError)
            dist.barrier()  # the group goes on

    run_pes(body, n)


def test_wait_tensor_waits_for_calls_in_flight(run_pes, tmp_path):
    """Those whose tensors are arguments of compiled graphs."""
    from torch.distributed import _functional_collectives as functional

    def body():
        with world(tmp_path) as me:
            x = torch.ones(4)
            if me:
                time.sleep(0.5)
            with functional.allow_inflight_collective_as_graph_input_ctx():
                work = dist.all_reduce(x, async_op=True)
                torch.ops._c10d_functional.wait_tensor(x)
            assert work.is_completed()
            assert x.tolist() == [2, 2, 2, 2]

    run_pes(body, 2)
