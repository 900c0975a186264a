"""Exchange without known sizes, and sorting, as operators of PyTorch."""

import pytest

from tests.later import later
from tests.torch.test_group import world

torch = later("torch")
dist = later("torch.distributed")
pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.sweep)])
def test_rows_go_to_whom_their_senders_say_and_gradients_come_back(run_pes, tmp_path, dtype):
    """As all_to_all_single does, with both sides' sizes; ranks have more rows than they send."""
    n, most = 3, 20

    def body():
        with world(tmp_path) as me:
            group, kind = dist.group.WORLD.group_name, getattr(torch, dtype)
            made = torch.Generator().manual_seed(1)
            counts = torch.randint(0, 6, (n, n), generator=made)
            counts[1] = 0
            to, come = counts[me].tolist(), counts[:, me].tolist()
            x = torch.randn(sum(to) + me, 4, dtype=kind, requires_grad=True)
            rows, received = torch.ops.gpushmem.all_to_all_v(x, counts[me].int(), most, group)
            assert received.tolist() == come
            assert not rows[sum(come) :].any()
            wanted = torch.empty(sum(come), 4, dtype=kind)
            dist.all_to_all_single(wanted, x[: sum(to)].detach().contiguous(), come, to)
            assert torch.equal(rows[: sum(come)], wanted)
            grad = 1000 * me + torch.arange(most * 4).view(most, 4).to(kind)
            rows.backward(grad)
            back = torch.empty(sum(to), 4, dtype=kind)
            dist.all_to_all_single(back, grad[: sum(come)].contiguous(), to, come)
            assert torch.equal(x.grad[: sum(to)], back)
            assert not x.grad[sum(to) :].any()

    run_pes(body, n, timeout=300)


def test_rows_are_gathered_and_gradients_are_this_ranks(run_pes, tmp_path):
    """Ranks have 4, 0 and 2 rows; of these 7, 6 or 3 have room."""

    def body():
        with world(tmp_path) as me:
            each, group = (4, 0, 2), dist.group.WORLD.group_name
            every = [1000.0 * pe + torch.arange(3 * k).view(k, 3) for pe, k in enumerate(each)]
            for most in (7, 6, 3):
                x = every[me].clone().requires_grad_()
                rows, received = torch.ops.gpushmem.all_gather_v(x, most, group)
                assert received.tolist() == list(each)
                wanted = torch.cat(every)[:most]
                assert torch.equal(rows[:6], wanted)
                assert not rows[6:].any()
                grad = 1.0 + torch.arange(most * 3).view(most, 3)
                rows.backward(grad)
                wanted = torch.cat([grad, torch.zeros(6, 3)])[:6].split(each)[me]
                assert torch.equal(x.grad, wanted)

    run_pes(body, 3, timeout=300)


def test_ranks_sort_their_keys_and_values(run_pes, tmp_path):
    n, most = 3, 50

    def body():
        with world(tmp_path) as me:
            made, group = torch.Generator().manual_seed(1), dist.group.WORLD.group_name
            keys = torch.randint(-9, 9, (n, most), generator=made)
            mine, numbers = keys[me, : most - me], 1000 * me + torch.arange(most - me)
            for values in (numbers, None):
                result = torch.ops.gpushmem.sample_sort(mine, values, most, group)
                *got, received = result
                everything = [None] * n
                dist.all_gather_object(everything, [x[: received.sum()] for x in got])
                got = [torch.cat(parts) for parts in zip(*everything, strict=True)]
                wanted = torch.cat([keys[pe, : most - pe] for pe in range(n)])
                wanted, order = wanted.sort(stable=True)
                assert torch.equal(got[0], wanted)
                places = torch.cat([1000 * pe + torch.arange(most - pe) for pe in range(n)])
                assert torch.equal(got[1], places[order] if values is not None else got[1][:0])
                assert not any(x[received.sum() :].any() for x in result[:2])

    run_pes(body, n, timeout=300)


def test_what_pytorch_asks_of_operators(run_pes, tmp_path):
    def body():
        with world(tmp_path):
            group, ops = dist.group.WORLD.group_name, torch.ops.gpushmem
            x, counts = torch.randn(5, 3, requires_grad=True), torch.tensor([3, 2])
            keys = torch.arange(4)
            for packet, args in (
                (ops.all_to_all_v, (x, counts, 6)),
                (ops.all_to_all_v_backward, (x.detach(), counts, 7, 6)),
                (ops.all_gather_v, (x, 9)),
                (ops.sample_sort, (keys, keys.float(), 4)),
                (ops.sample_sort, (keys, None, 4)),
            ):
                found = torch.library.opcheck(packet.default, (*args, group))
                assert set(found.values()) == {"SUCCESS"}, (packet, found)

    run_pes(body, 2, timeout=300)
