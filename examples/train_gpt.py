"""Train a small GPT with data, tensor, sequence and expert parallelism: the losses of one process.

    gpushmem run -n 4 examples/train_gpt.py        or: torchrun --nproc-per-node 4 ...

Needs PyTorch. With 4 ranks, two train on half of the sequences each, and each of these two shares
its layers, tokens and experts out to a partner. The layers are Megatron-Core's, by name.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("gpushmem")  # before these layers, which are for ranks
from gpushmem.torch.modules import (  # noqa: E402
    ColumnParallelLinear,
    MoELayer,
    RowParallelLinear,
    VocabParallelEmbedding,
)

SEQUENCE, BATCH, VOCABULARY = 12, 8, 24  # lengths that 2 and 3 divide
HIDDEN, HEADS, INNER, EXPERTS, TOP_K, BLOCKS = 24, 6, 48, 6, 2, 2
STEPS = 15
torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)


class Experts(nn.Module):
    """A mixture of experts on one rank."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.w1 = nn.Parameter(torch.randn(EXPERTS, HIDDEN, INNER) / HIDDEN**0.5)
        self.w2 = nn.Parameter(torch.randn(EXPERTS, INNER, HIDDEN) / INNER**0.5)

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(TOP_K, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for k in range(EXPERTS):
            share = (weights * (chosen == k)).sum(-1, keepdim=True)
            out = out + share * (F.silu(x @ self.w1[k]) @ self.w2[k])
        return out


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.experts = Experts()

    def forward(self, x):
        """(sequence, batch, hidden); the sequence may be a rank's part, the heads, too."""
        qkv = output(self.qkv(self.norm1(x)))
        length, batch, _ = qkv.shape
        q, k, v = qkv.view(length, batch, -1, 3, HIDDEN // HEADS).permute(3, 1, 2, 0, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + output(self.out(mixed.permute(2, 0, 1, 3).reshape(length, batch, -1)))
        return x + self.experts(self.norm2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.places = nn.Parameter(torch.randn(SEQUENCE, 1, HIDDEN))
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.norm, self.head = nn.RMSNorm(HIDDEN), nn.Linear(HIDDEN, VOCABULARY)
        self.part = slice(0, SEQUENCE)  # of the sequence, between the layers

    def forward(self, tokens):
        x = self.embed(tokens) + self.places[self.part]
        return output(self.head(self.norm(self.blocks(x))))


def output(result):
    """What a layer returns; Megatron-Core's return a bias, too."""
    return result[0] if isinstance(result, tuple) else result


def shared_out(model, group):
    """Divide a model over the ranks of a group, with its weights."""

    def put(owner, name, layer):
        layer.load_state_dict(getattr(owner, name).state_dict())
        setattr(owner, name, layer)

    tokens = {"sequence_parallel": True, "tp_group": group}
    put(
        model, "embed",
        VocabParallelEmbedding(
            VOCABULARY, HIDDEN, reduce_scatter_embeddings=True, tp_group=group
        ),
    )  # fmt: skip
    for block in model.blocks:
        put(block, "qkv", ColumnParallelLinear(HIDDEN, 3 * HIDDEN, **tokens))
        put(block, "out", RowParallelLinear(HIDDEN, HIDDEN, **tokens))
        put(block, "experts", MoELayer(HIDDEN, INNER, EXPERTS, TOP_K, ep_group=group))
    put(model, "head", ColumnParallelLinear(HIDDEN, VOCABULARY, gather_output=True, **tokens))
    each = SEQUENCE // group.size()
    model.part = slice(group.rank() * each, (group.rank() + 1) * each)
    return model


def whole_parameters(model):
    """Parameters that all ranks of a layer's group have; each has gradients of its own tokens."""
    divided = {
        id(getattr(layer, name)) for layer in model.modules() for name in getattr(layer, "axes", ())
    }
    return [each for each in model.parameters() if id(each) not in divided]


def train(model, batch, after_backward):
    """Return the losses; the next number of a sequence is to be foreseen."""
    optimizer, losses = torch.optim.Adam(model.parameters(), 0.01), []
    for _ in range(STEPS):
        logits = model(batch[:-1])
        loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), batch[1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        losses.append(after_backward(model, loss.detach()))
        optimizer.step()
    return torch.stack(losses)


ranks = dist.get_world_size()
layers = 2 if ranks % 2 == 0 else ranks  # ranks that share the layers out
mesh = init_device_mesh("cpu", (ranks // layers, layers), mesh_dim_names=("data", "layers"))
data, within = mesh["data"].get_group(), mesh["layers"].get_group()


def add_up(model, loss):
    """Add up what the ranks have found out, and average it over the parts of the batch."""
    for parameter in whole_parameters(model):
        dist.all_reduce(parameter.grad, group=within)
    for tensor in (loss, *(each.grad for each in model.parameters())):
        dist.all_reduce(tensor, dist.ReduceOp.AVG, group=data)
    return loss


torch.manual_seed(0)
start, step = torch.randint(VOCABULARY, (2, BATCH))
batch = (start + step * torch.arange(SEQUENCE + 1)[:, None]) % VOCABULARY
plain = GPT()
torch.manual_seed(0)
model = GPT()
model.load_state_dict(plain.state_dict())
mine = batch.chunk(data.size(), 1)[data.rank()]
losses = train(shared_out(model, within), mine, add_up)
alone = train(plain, batch, lambda model, loss: loss)
torch.testing.assert_close(losses, alone)
assert losses[-1] < losses[0] / 2
if dist.get_rank() == 0:
    print(f"{ranks} ranks, {layers} for each layer: loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    print(f"one process: {alone[0]:.4f} -> {alone[-1]:.4f}")
dist.destroy_process_group()
