"""Attention over ranks as operators of PyTorch: results and gradients are PyTorch's own."""

import pytest
from gpushmem.kernels.attention_parts import positions

from tests.later import later
from tests.torch.test_group import world

torch = later("torch")
dist = later("torch.distributed")
pytestmark = pytest.mark.timeout(400)  # many kernels are compiled

TOKENS, HEADS, SHARED, SIZE = 4, 6, 3, 4


def attention(q, k, v, causal):
    """Of whole sequences (batch, tokens, heads, size)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(HEADS // SHARED, 1) for x in (k, v))
    made = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return made.transpose(1, 2)


def leaves(n, *shapes):
    """The same random tensors on all ranks."""
    made = torch.Generator().manual_seed(n)
    return [torch.randn(*shape, generator=made).requires_grad_() for shape in shapes]


def test_a_ring_gives_pytorchs_results_and_gradients(run_pes, tmp_path):
    def body():
        with world(tmp_path) as me:
            n, group = dist.get_world_size(), dist.group.WORLD.group_name
            for causal, batch in ((True, 2), (False, 1)):
                shapes = [(batch, n * TOKENS, of, SIZE) for of in (HEADS, SHARED, SHARED)]
                whole = leaves(n, *shapes)
                weights = leaves(n + 1, shapes[0])[0].detach()
                at = torch.from_numpy(positions(TOKENS, me, n, 1 + causal))
                mine = [x.detach()[:, at].requires_grad_() for x in whole]
                mask = None, causal, None, None, causal, group
                out, lse = torch.ops.gpushmem.ring_attention(*mine, *mask)
                assert lse.shape == (batch, HEADS, TOKENS)
                (out * weights[:, at]).sum().backward()
                wanted = attention(*whole, causal)
                (wanted * weights).sum().backward()
                torch.testing.assert_close(out, wanted[:, at])
                for got, want in zip(mine, whole, strict=True):
                    torch.testing.assert_close(got.grad, want.grad[:, at], atol=1e-4, rtol=1e-4)

    run_pes(body, 2, timeout=300)


def test_heads_for_tokens_and_back_with_gradients(run_pes, tmp_path):
    """A function of all tokens of one head at a time gives what it gives in one process."""

    def body():
        with world(tmp_path) as me:
            n, group, ops = dist.get_world_size(), dist.group.WORLD.group_name, torch.ops.gpushmem
            (qkv,) = leaves(n, (n * TOKENS, 4 * n, SIZE))
            angles = torch.arange(n * TOKENS)[:, None] * torch.tensor([1.0, 0.1])
            at = slice(me * TOKENS, (me + 1) * TOKENS)
            mine = qkv.detach()[at].requires_grad_()
            q, k, v = ops.ulysses_split(mine, n, angles[at].cos(), angles[at].sin(), group)
            made = ops.ulysses_join(q.cumsum(0) * k.flip(0) + v, group)
            made.square().sum().backward()

            def rotated(x):
                (low, high), cos, sin = x.chunk(2, -1), angles[:, None].cos(), angles[:, None].sin()
                return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)

            q, k, v = qkv.split([2 * n, n, n], 1)
            k, v = (x.repeat_interleave(2, 1) for x in (rotated(k), v))
            wanted = rotated(q).cumsum(0) * k.flip(0) + v
            wanted.square().sum().backward()
            torch.testing.assert_close(made, wanted[at])
            torch.testing.assert_close(mine.grad, qkv.grad[at], atol=1e-4, rtol=1e-4)

    run_pes(body, 2, timeout=300)


def test_what_pytorch_asks_of_operators(run_pes, tmp_path):
    def body():
        with world(tmp_path):
            group, ops = dist.group.WORLD.group_name, torch.ops.gpushmem
            q, k, v = leaves(1, (4, 2, 4), (4, 1, 4), (4, 1, 4))
            mask = None, True, None, None, True, group
            out, lse = (x.detach() for x in ops.ring_attention(q, k, v, *mask))
            plain = [x.detach() for x in (q, k, v)]
            qkv = torch.cat(plain, 1).requires_grad_()
            for packet, args in (
                (ops.ring_attention, (q, k, v, *mask)),
                (ops.ring_attention_backward, (out, *plain, out, lse, *mask)),
                (ops.ulysses_split, (qkv, 1, None, None, group)),
                (ops.ulysses_split_backward, (*plain, None, None, group)),
                (ops.ulysses_join, (q, group)),
                (ops.ulysses_join_backward, (plain[0], group)),
            ):
                found = torch.library.opcheck(packet.default, args)
                assert set(found.values()) == {"SUCCESS"}, (packet, found)

    run_pes(body, 1, timeout=300)
