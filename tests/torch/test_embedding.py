"""Embedding bags over ranks as operators of PyTorch: results and gradients are PyTorch's own."""

import pytest
from gpushmem.kernels.parts import share_of

import gpushmem as shmem
from tests.later import later
from tests.torch.test_group import world

torch = later("torch")
dist = later("torch.distributed")
pytestmark = pytest.mark.timeout(300)

ROWS, DIM, BAGS, MOST = 23, 10, 5, 4


def drawn(n, parts, dtype):
    """The whole table, the numbers of all ranks' bags, and factors of their results."""
    made = torch.Generator().manual_seed(n + parts)
    table = torch.randn(ROWS, DIM, generator=made, dtype=torch.float64).to(dtype)
    numbers = torch.randint(-1, ROWS, (n, BAGS, MOST), generator=made)
    numbers[:, 1], numbers[:, 2] = -1, 7  # nothing, and the same row four times, on all ranks
    return table, numbers, torch.randn(n, BAGS, DIM, generator=made, dtype=torch.float64).to(dtype)


def bags_of(table, numbers, mode):
    """Those of PyTorch, in one process: a row of zeros behind the last stands for none."""
    padded = torch.cat([table, table.new_zeros(1, DIM)])
    numbers = numbers.masked_fill(numbers < 0, ROWS)
    return torch.nn.functional.embedding_bag(numbers, padded, mode=mode, padding_idx=ROWS)


def part(me, n, parts):
    rows = slice(*share_of(ROWS, n // parts, me // parts))
    return rows, slice(*share_of(DIM, parts, me % parts))


@pytest.mark.parametrize(
    ("n", "dtype", "off"),
    [
        (1, "float32", 1e-5),
        (4, "float32", 1e-5),
        pytest.param(4, "float64", 1e-12, marks=pytest.mark.sweep),
        pytest.param(6, "bfloat16", 6e-2, marks=pytest.mark.sweep),
        pytest.param(3, "float16", 6e-3, marks=pytest.mark.sweep),
    ],
)
def test_bags_and_gradients_are_pytorchs(run_pes, tmp_path, n, dtype, off):
    def body():
        with world(tmp_path) as me:
            group, kind = dist.group.WORLD.group_name, getattr(torch, dtype)
            for parts in (k for k in range(1, n + 1) if n % k == 0):
                table, numbers, weights = drawn(n, parts, kind)
                for mode in ("sum", "mean"):
                    mine = table[part(me, n, parts)].clone().requires_grad_()
                    cut = ROWS, DIM, parts, mode, group
                    given = numbers[me].int() if parts == 1 else numbers[me]
                    out = torch.ops.gpushmem.embedding_bag(mine, given, *cut)
                    (out * weights[me]).sum().backward()
                    whole = table.double().clone().requires_grad_()
                    every = bags_of(whole, numbers.view(-1, MOST), mode).view(n, BAGS, DIM)
                    (every * weights).sum().backward()
                    close = {"atol": off, "rtol": off, "check_dtype": False}
                    torch.testing.assert_close(out, every[me], **close)
                    torch.testing.assert_close(mine.grad, whole.grad[part(me, n, parts)], **close)

    run_pes(body, n, timeout=200)


def test_what_pytorch_asks_of_operators(run_pes, tmp_path):
    def body():
        with world(tmp_path):
            ops, cut = torch.ops.gpushmem, (ROWS, DIM, 1, "mean", dist.group.WORLD.group_name)
            table, (numbers,), (grad,) = drawn(1, 1, torch.float32)
            for packet, args in (
                (ops.embedding_bag, (table.requires_grad_(), numbers, *cut)),
                (ops.embedding_bag_backward, (grad, numbers, ROWS, DIM, *cut)),
            ):
                found = torch.library.opcheck(packet.default, args)
                assert set(found.values()) == {"SUCCESS"}, (packet, found)
            with pytest.raises(shmem.ArgumentError, match=r"mode is 'max'.* there is sum and mean"):
                ops.embedding_bag(table, numbers, *cut[:3], "max", cut[4])

    run_pes(body, 1, timeout=200)
