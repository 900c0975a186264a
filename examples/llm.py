"""Train a small transformer in all parallel ways at once, then let it write, as a service would.

    gpushmem run -n 8 examples/llm.py        or: torchrun --nproc-per-node 8 ...

Needs PyTorch. The model learns this project's README, byte by byte. Of 8 ranks

    2 stages   have blocks each, and pass activations on         Pipeline
    2 halves   of the batch have a copy of these each; they      ZeroAdamW
               divide the optimizer
    2 partners have the tokens of one half between them: keys    ring_attention
               travel; matrices, experts, and a table of rows    ColumnParallelLinear, MoELayer
               for groups of bytes are divided                   ParallelEmbeddingBag
    all        shuffle the pieces of the text for each epoch,    sample_sort, all_gather_v
               and send them to who trains on them; then they    all_to_all_v
               take pieces of unseen text from a queue           push, pop

and the losses are those of one process. Then two ranks read a prompt, two others write: keys go to
these layer by layer (KVTransfer), and each has half of them (flash_decode). Again, it is the text
of one process. With --checkpoint DIR a job that was killed goes on where it was.
"""

import argparse
import os
import signal
import time
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("gpushmem")  # before these layers, which are for ranks
from gpushmem.kernels import pop, push  # noqa: E402
from gpushmem.kernels.attention_parts import positions  # noqa: E402

import gpushmem as shmem  # noqa: E402
from gpushmem.progress import progress  # noqa: E402
from gpushmem.torch.kv import KVTransfer  # noqa: E402
from gpushmem.torch.modules import (  # noqa: E402
    ColumnParallelLinear,
    MoELayer,
    ParallelEmbeddingBag,
    RowParallelLinear,
    VocabParallelEmbedding,
)
from gpushmem.torch.optim import ZeroAdamW  # noqa: E402
from gpushmem.torch.pipeline import Pipeline  # noqa: E402

SEQUENCE, BATCH, MICROBATCHES, VOCABULARY = 128, 24, 4, 128
APART = 16  # bytes from one piece of the text to the next
HIDDEN, HEADS, INNER, EXPERTS, TOP_K, BLOCKS = 64, 4, 128, 4, 2, 4
GRAMS, LONGEST = 2048, 4  # rows; bytes
PROMPT, PAGE = 32, 8  # tokens
RULES = {"lr": 3e-3, "betas": (0.9, 0.95), "weight_decay": 0.01}
KEEP_EVERY = 10  # steps
torch.set_num_threads(1)
ops = torch.ops.gpushmem

# --- the model


def grams_of(text):
    """For each place of a text (batch, sequence), rows for the 2, 3 and 4 bytes that end there.

    Which row is for which bytes is left to chance: a hash. Byte Latent Transformer does so.
    """
    ending = F.pad(text, (LONGEST - 1, 0)).unfold(-1, LONGEST, 1).flip(-1)
    numbers = (ending * VOCABULARY ** torch.arange(LONGEST)).cumsum(-1)[..., 1:]
    return numbers * 2654435761 % 2**32 * GRAMS >> 32


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, INNER), nn.Linear(INNER, HIDDEN)

    def forward(self, x):
        return output(self.down(F.silu(output(self.up(x)))))


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
    def __init__(self, number):
        super().__init__()
        self.number, self.attention = number, attention
        self.norm1, self.norm2 = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.feed = Experts() if number % 2 else Mlp()

    def forward(self, x):
        """(sequence, batch, hidden); the sequence may be a rank's part, the heads, too."""
        qkv = output(self.qkv(self.norm1(x)))
        q, k, v = qkv.view(*qkv.shape[:2], -1, 3, HIDDEN // HEADS).unbind(3)
        x = x + output(self.out(self.attention(q, k, v, self.number).flatten(2)))
        return x + self.feed(self.norm2(x))


class GPT(nn.Module):
    """All blocks, or those of a stage of the pipeline."""

    def __init__(self, stage=0, stages=1):
        super().__init__()
        self.first, self.last = stage == 0, stage == stages - 1
        each = BLOCKS // stages
        torch.manual_seed(0)
        if self.first:
            self.embed = nn.Embedding(VOCABULARY, HIDDEN)
            self.grams = nn.EmbeddingBag(GRAMS, HIDDEN, mode="sum")
            self.places = nn.Parameter(torch.randn(SEQUENCE, 1, HIDDEN) / 4)
        self.blocks = nn.ModuleDict()
        for k in range(stage * each, (stage + 1) * each):
            torch.manual_seed(k + 1)
            self.blocks[str(k)] = Block(k)
        if self.last:
            torch.manual_seed(BLOCKS + 1)
            self.norm, self.head = nn.RMSNorm(HIDDEN), nn.Linear(HIDDEN, VOCABULARY)
        self.order = self.at = torch.arange(SEQUENCE)  # where tokens are: all; this rank's

    def forward(self, x):
        if self.first:  # a text (batch, sequence)
            bags = grams_of(x)[:, self.at].transpose(0, 1)
            grams = self.grams(bags.flatten(0, 1)).unflatten(0, bags.shape[:2])
            x = self.embed(x[:, self.order].T) + grams + self.places[self.at]
        for block in self.blocks.values():
            x = block(x)
        return output(self.head(self.norm(x))) if self.last else x


def output(result):
    """What a layer returns; Megatron-Core's return a bias, too."""
    return result[0] if isinstance(result, tuple) else result


def attention(q, k, v, layer):
    """Causal; all are (sequence, batch, heads, size), as everywhere below."""
    of_batch = [x.permute(1, 2, 0, 3) for x in (q, k, v)]
    return F.scaled_dot_product_attention(*of_batch, is_causal=True).permute(2, 0, 1, 3)


def ring(q, k, v, layer):
    """The same, of tokens that are divided over the partners."""
    of_batch = [x.transpose(0, 1).contiguous() for x in (q, k, v)]
    out, _ = ops.ring_attention(*of_batch, None, True, None, None, True, partners.group_name)
    return out.transpose(0, 1)


# --- dividing it


def shared_out(model, group, order, attend=None):
    """Divide a model over the ranks of a group: tokens, and either attention's tokens or heads."""
    model.order, model.at = order, order.chunk(group.size())[group.rank()]

    def put(owner, name, layer):
        layer.load_state_dict(getattr(owner, name).state_dict())
        setattr(owner, name, layer)

    tokens = {"sequence_parallel": True, "tp_group": group}
    if model.first:
        sums = {"reduce_scatter_embeddings": True, "tp_group": group}
        put(model, "embed", VocabParallelEmbedding(VOCABULARY, HIDDEN, **sums))
        put(model, "grams", ParallelEmbeddingBag(GRAMS, HIDDEN, mode="sum", group=group))
    for block in model.blocks.values():
        if attend:
            block.attention = attend
        else:
            put(block, "qkv", ColumnParallelLinear(HIDDEN, 3 * HIDDEN, **tokens))
            put(block, "out", RowParallelLinear(HIDDEN, HIDDEN, **tokens))
        if isinstance(block.feed, Mlp):
            put(block.feed, "up", ColumnParallelLinear(HIDDEN, INNER, **tokens))
            put(block.feed, "down", RowParallelLinear(INNER, HIDDEN, **tokens))
        else:
            put(block, "feed", MoELayer(HIDDEN, INNER, EXPERTS, TOP_K, ep_group=group))
    if model.last:
        put(model, "head", ColumnParallelLinear(HIDDEN, VOCABULARY, gather_output=True, **tokens))
    return model


def axes_of(model):
    """The axis along which a parameter is divided, by name; others are not there."""
    return {
        f"{name}.{each}".lstrip("."): axis
        for name, layer in model.named_modules()
        for each, axis in getattr(layer, "axes", {}).items()
    }


def order_of_tokens(n):
    """Where the tokens of `n` partners are, one partner behind the other: each has early and late
    ones, since these have more to attend to."""
    return torch.cat([torch.from_numpy(positions(SEQUENCE // n, k, n, 2)) for k in range(n)])


def whole_weights(model):
    """The state of the whole model, of the parts that ranks have; on all ranks."""
    state, axes = {}, axes_of(model)
    for name, value in model.state_dict().items():
        if name in axes:
            parts = [torch.empty_like(value) for _ in range(partners.size())]
            dist.all_gather(parts, value, group=partners)
            state[name] = torch.cat(parts, axes[name])
        else:
            state[name] = value
    of_stages = [None] * pipe.size()
    dist.all_gather_object(of_stages, state, group=pipe)
    return {name: value for each in of_stages for name, value in each.items()}


# --- pieces of the text


def keys_of(epoch):
    """A number by chance for each piece; the epoch's order is that of these."""
    return torch.randint(1 << 62, (len(pieces),), generator=torch.Generator().manual_seed(epoch))


@cache
def shuffled(epoch):
    """What this rank trains on in each step of an epoch; each rank has every `ranks`-th piece.

    They sort keys with the pieces' numbers, and tell each other the order. Then pieces go, with
    their places in it, to the ranks of the half that trains on them.
    """
    numbers, most = torch.arange(rank, len(pieces), ranks), -(-len(pieces) // ranks)
    _, order, come = ops.sample_sort(keys_of(epoch)[numbers], numbers, most, "")
    order, _ = ops.all_gather_v(order[: come.sum()], len(pieces), "")
    places = order.argsort()[numbers]
    rows, half = torch.cat([places[:, None], pieces[numbers]], 1), places % BATCH // OF_HALF
    for_rank = [rows[half == pe // of_each % halves.size()] for pe in range(ranks)]
    counts = torch.tensor([len(each) for each in for_rank])
    rows, come = ops.all_to_all_v(torch.cat(for_rank), counts, len(pieces), "")
    rows = rows[: come.sum()]
    return rows[rows[:, 0].argsort(), 1:].chunk(STEPS)


def loss_of(logits, wanted):
    return F.cross_entropy(logits.reshape(-1, VOCABULARY), wanted.T.reshape(-1))


# --- training and evaluation


def train_alone(steps):
    """Losses, and the model, of one process."""
    model = GPT()
    optimizer, losses = torch.optim.AdamW(model.parameters(), **RULES), []
    for step in range(steps):
        batch = pieces[keys_of(step // STEPS).argsort().chunk(STEPS)[step % STEPS]]
        loss = loss_of(model(batch[:, :-1]), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


def optimizers_of(model):
    """For parameters that are divided over partners, and for those that all of them have."""
    divided = axes_of(model)
    mine = [p for name, p in model.named_parameters() if name in divided]
    common = [p for name, p in model.named_parameters() if name not in divided]
    for each in common:  # gradients are of this rank's tokens: the sum is wanted, not the average
        each.register_hook(lambda grad: grad * partners.size())
    return ZeroAdamW(mine, group=halves, **RULES), ZeroAdamW(common, group=copies, **RULES)


class Checkpoints:
    """What each rank has after some steps, in a folder; a step counts if all ranks have it."""

    def __init__(self, folder, model, optimizers):
        self.folder, self.kept = folder and Path(folder), [model, *optimizers]

    def path(self, step):
        return self.folder / f"{step}-{rank}.pt"

    def load(self):
        """Go on from the last step: losses until then."""
        if not self.folder:
            return []
        self.folder.mkdir(parents=True, exist_ok=True)
        mine = [int(p.name.split("-")[0]) for p in self.folder.glob(f"*-{rank}.pt")]
        step = torch.tensor(max(mine, default=0))
        dist.all_reduce(step, dist.ReduceOp.MIN)
        if not step:
            return []
        losses, *states = torch.load(self.path(int(step)))
        for each, state in zip(self.kept, states, strict=True):
            each.load_state_dict(state)
        return losses

    def save(self, losses):
        if self.folder and len(losses) % KEEP_EVERY == 0:
            new = self.path(len(losses)).with_suffix(".new")
            torch.save([losses, *(each.state_dict() for each in self.kept)], new)
            new.replace(self.path(len(losses)))  # whole, or not there


def train(steps, folder, die_at):
    """Losses, and this rank's part of the model."""
    order = order_of_tokens(partners.size())
    model = shared_out(GPT(pipe.rank(), pipe.size()), partners, order, ring)
    optimizers = optimizers_of(model)
    kept = Checkpoints(folder, model, optimizers)
    losses = kept.load()
    began = len(losses)
    stages = Pipeline(
        model, schedule="1f1b", microbatches=MICROBATCHES, group=pipe,
        shape=(SEQUENCE // partners.size(), OF_HALF // MICROBATCHES, HIDDEN),
    )  # fmt: skip
    with progress(f"training on {ranks} ranks", steps, shown=leads) as bar:
        bar.reach(began)
        for step in bar.each(range(began, steps), lambda step: f"step {step}"):
            if began == 0 and step == die_at and rank == ranks - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            batch = shuffled(step // STEPS)[step % STEPS]
            for each in optimizers:
                each.zero_grad()
            loss = stages.step(batch[:, :-1], batch[:, 1:][:, order], loss_of)
            for each in optimizers:
                each.step()
            loss = torch.zeros(()) if loss is None else loss  # the last stage has it
            dist.broadcast(loss, dist.get_global_rank(pipe, pipe.size() - 1), pipe)
            dist.all_reduce(loss, dist.ReduceOp.AVG, group=halves)
            losses.append(loss.item())
            kept.save(losses)
            if leads and (step + 1) % 20 == 0:
                bar.print(f"step {step + 1:3}  loss {losses[-1]:.4f}")
    for each in (stages, *optimizers):
        each.free()
    return losses, model


@shmem.jit
def fill(words, cells, numbers):
    """Put numbers into a queue on rank 0."""
    for k in range(numbers.shape[0]):
        push(words, cells, numbers[k], 0)


@shmem.jit
def take(words, cells, out):
    """Take one out of it."""
    pop(words, cells, out, 0)


def evaluate(state):
    """The mean loss of unseen text, and how many pieces of it each rank has taken from a queue.

    A rank that is faster takes more. The last ones are a -1 for each.
    """
    model, losses = GPT(), torch.zeros(ranks, len(unseen))
    model.load_state_dict(state)
    numbers = np.array([*range(len(unseen)), *[-1] * ranks])[:, None]
    words, cells = shmem.zeros(2 + len(numbers), "uint64"), shmem.zeros(numbers.shape, "int64")
    number = shmem.zeros(1, "int64")  # symmetric: it may come over a network
    if leads:
        fill[1, 1](words, cells, shmem.to_device(numbers))

    def taken():
        take[1, 32](words, cells, number)  # a whole warp: what crosses a network needs it
        return number.numpy().item()

    with torch.no_grad():
        for k in iter(taken, -1):
            losses[rank, k] = loss_of(model(unseen[k : k + 1, :-1]), unseen[k : k + 1, 1:])
    dist.all_reduce(losses)
    return losses.sum(0).mean(), losses.count_nonzero(1).tolist()


# --- serving


class Reader:
    """Attention of a rank that reads the prompt: this rank's heads, whose keys it sends."""

    def __init__(self, kv):
        self.kv = kv

    def __call__(self, q, k, v, layer):
        for half, x in enumerate((k, v)):
            self.kv.cache[layer][: PROMPT // PAGE, half] = x[:, 0].unflatten(0, (-1, PAGE))
        for request in range(len(WRITERS)):
            self.kv.send(request, layer)  # while the next layer is computed
        return attention(q, k, v, layer)


class Writer:
    """Attention of a rank that writes: of the keys so far, each writer has its own pages."""

    def __init__(self, kv, pages, group):
        self.kv, self.group = kv, group
        self.tables, self.length = torch.tensor([pages], dtype=torch.int32), 0
        self.waited = [False] * BLOCKS

    def receive(self, request):
        own = PROMPT // len(WRITERS)
        self.kv.receive(request, self.tables[0, : own // PAGE])
        self.request, self.length = request, own

    def at(self, position):
        """Go to a position, whose keys are the next of one of the writers."""
        self.mine = position // PAGE % len(WRITERS) == self.group.rank()
        self.length += self.mine

    def __call__(self, q, k, v, layer):
        if not self.waited[layer]:
            self.kv.wait(self.request, layer)  # the next one is on its way
            self.waited[layer] = True
        cache, last = self.kv.cache[layer], self.length - 1
        if self.mine:
            page = self.tables[0, last // PAGE]
            cache[page, 0, last % PAGE], cache[page, 1, last % PAGE] = k[0, 0], v[0, 0]
        lengths, scale = torch.tensor([[self.length]]), q.shape[-1] ** -0.5
        name = self.group.group_name
        return ops.flash_decode(q, cache, self.tables, lengths, scale, False, False, name)


def write_alone(model, prompt, count):
    """The prompt, and what one process writes behind it."""
    text = prompt
    for _ in range(count):
        model.order = model.at = torch.arange(len(text))
        text = torch.cat([text, model(text[None])[-1].argmax(-1)])
    return text


def serve(state, prompt, count):
    """Let some ranks read and others write; returns the text, as far as this rank knows it."""
    groups = [dist.new_group(list(each)) for each in (READERS, WRITERS)]
    pages = SEQUENCE // PAGE
    kv = KVTransfer(
        layers=BLOCKS, pages=pages, page_size=PAGE, kv_heads=HEADS, head_dim=HIDDEN // HEADS,
        dtype=torch.float32, prefill=READERS, prefill_tp=len(READERS), decode=WRITERS,
    )  # fmt: skip
    model, text = GPT(), prompt
    model.load_state_dict(state)
    with torch.no_grad():
        if rank in WRITERS:
            writer = Writer(kv, list(range(pages))[::-1], groups[1])  # in any order
            writer.receive(WRITERS.index(rank))
        if rank in READERS:
            for request in range(len(WRITERS)):
                kv.start(request, range(PROMPT // PAGE)[request :: len(WRITERS)], to=request)
            shared_out(model, groups[0], torch.arange(PROMPT))
            for block in model.blocks.values():
                block.attention = Reader(kv)
            model(prompt[None, :PROMPT])
        if rank in WRITERS:
            for block in model.blocks.values():
                block.attention = writer
            if rank == WRITERS[0]:
                print(bytes(prompt.tolist()).decode(), end="", flush=True)
            for position in range(PROMPT, PROMPT + count):
                writer.at(position)
                model.order = model.at = torch.tensor([position])
                token = model(text[None])[0, 0].argmax()
                text = torch.cat([text, token[None]])
                if rank == WRITERS[0]:
                    print(chr(token), end="", flush=True)
    dist.barrier()
    kv.free()
    return text


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--write", type=int, default=64, help="characters")
parser.add_argument("--checkpoint", metavar="DIR", help="save every 10 steps, and go on from there")
parser.add_argument("--die-at", type=int, metavar="STEP", help="the last rank is killed, once")
args = parser.parse_args()

# --- who does what

rank, ranks = dist.get_rank(), dist.get_world_size()
leads = rank == 0
of_each = 2 if ranks % 2 == 0 else 1
stages = 2 if ranks % 4 == 0 else 1
if BATCH % (ranks // stages // of_each * MICROBATCHES):
    raise SystemExit(f"llm.py: {BATCH} sequences cannot be divided among {ranks} ranks")
shape, names = (stages, ranks // stages // of_each, of_each), ("pipe", "halves", "partners")
mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
pipe, halves, partners = (mesh[name].get_group() for name in names)
copies = mesh["halves", "partners"]._flatten("copies").get_group()  # of parameters of a stage
FEW = {1: ((0,), (0,)), 2: ((0,), (1,)), 3: ((0,), (1, 2))}  # ranks that read, and that write
READERS, WRITERS = FEW.get(ranks, ((0, 1), (2, 3)))
text = torch.tensor(list((Path(__file__).parents[1] / "README.md").read_bytes())).clamp(max=127)
pieces = text[: len(text) * 7 // 8].unfold(0, SEQUENCE + 1, APART)
unseen = text[len(text) * 7 // 8 :].unfold(0, SEQUENCE + 1, APART)
STEPS, OF_HALF = len(pieces) // BATCH, BATCH // halves.size()  # of an epoch; pieces of a step
pieces = pieces[: STEPS * BATCH]

# --- the job

began = time.perf_counter()
losses, model = train(args.steps, args.checkpoint, args.die_at)
trained = time.perf_counter() - began
state = whole_weights(model)
loss, taken = evaluate(state)
if leads:
    print(f"{ranks} ranks: loss {losses[0]:.4f} -> {losses[-1]:.4f} in {trained:.1f} s")
    print(f"of unseen text {loss:.4f}: ranks took {taken} of its pieces; it writes:", flush=True)
prompt, began = text[: PROMPT + 1], time.perf_counter()
written = serve(state, prompt, args.write)
seconds = time.perf_counter() - began
if leads:
    print(f"\n{args.write} characters, {args.write / seconds:.0f} a second")
    alone, plain = train_alone(args.steps)
    # Mostly the last bit; but where two experts are equally good, rounding may choose the other.
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(alone), rtol=1e-3, atol=1e-3)
    print(f"one process: loss {alone[0]:.4f} -> {alone[-1]:.4f}")
    plain.load_state_dict(state)
    with torch.no_grad():
        torch.testing.assert_close(loss, loss_of(plain(unseen[:, :-1]), unseen[:, 1:]))
        expected = write_alone(plain, prompt, args.write)
else:
    expected = torch.empty(len(prompt) + args.write, dtype=torch.int64)
dist.broadcast(expected, 0)
assert torch.equal(written, expected[: len(written)])
dist.destroy_process_group()
