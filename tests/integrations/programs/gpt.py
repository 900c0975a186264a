"""A small GPT of Megatron-Core, trained by ranks of torchrun: gpt.py FOLDER CASE...

Each case is trained by plain Megatron-Core on Gloo, by plain Megatron-Core on gpushmem, and with
gpushmem's layers. The last rank prints a line of JSON for each: the backends of its groups, which
of gpushmem's modules and plans it has, the losses, and how far weights are from Gloo's on any rank.
"""

import contextlib
import copy
import json
import sys
from pathlib import Path

import on_cpus
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core import parallel_state as ps
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_decoder_block_spec,
    get_mlp_module_spec_for_backend,
)
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import schedules
from megatron.core.tensor_parallel import random as seeds
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import get_batch_on_this_cp_rank

from gpushmem.integrations.megatron import GpushmemSpecProvider, Norm, with_gpushmem
from gpushmem.torch.plans import plans_of

MODULE = with_gpushmem.__module__

VOCABULARY, TOKENS, SAMPLES, MICROBATCHES, STEPS = 128, 32, 2, 2, 10
MOE = {
    "num_moe_experts": 4, "moe_router_topk": 2, "moe_token_dispatcher_type": "alltoall",
    "add_bias_linear": False,
}  # fmt: skip
TP, PP, EP, CP, ETP = SIZES = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size",
    "context_parallel_size", "expert_tensor_parallel_size",
)  # fmt: skip
CASES = {
    "tp": {TP: 2},
    "tp-sp": {TP: 2, "sequence_parallel": True},
    "pp": {PP: 2},
    "ep": {EP: 2, **MOE},
    "ep-tp-sp": {EP: 2, TP: 2, ETP: 1, "sequence_parallel": True, **MOE},
    "cp": {CP: 2},
    "cp-tp": {CP: 2, TP: 2},
    "tp-pp": {TP: 2, PP: 2},
}
SIDES = ("gloo", False), ("gpushmem", False), ("gpushmem", True)  # backend, with our layers


class Tracker:
    """Random numbers, of which nothing here has need: there is no dropout."""

    is_inference_rng_tracker = False

    def is_initialized(self):
        return True

    @contextlib.contextmanager
    def fork(self, name=None):
        yield

    def get_states(self):
        return {}


to_all = dist.all_to_all_single


def all_to_all_single(out, x, output_split_sizes=None, input_split_sizes=None, **others):
    """Splits that are on a GPU become arrays; on CPUs they stay tensors, which Gloo refuses."""
    given = output_split_sizes, input_split_sizes
    return to_all(out, x, *(each if each is None else each.tolist() for each in given), **others)


def stand_in():
    """Put in what Megatron-Core misses on CPUs, and without Transformer Engine."""
    on_cpus.stand_in()
    torch.set_num_threads(1)
    seeds._CUDA_RNG_STATE_TRACKER, seeds._CUDA_RNG_STATE_TRACKER_INITIALIZED = Tracker(), True
    moe_utils.te_general_gemm = None
    dist.all_to_all_single = all_to_all_single


def config_of(case):
    return TransformerConfig(
        num_layers=2, hidden_size=64, num_attention_heads=4, ffn_hidden_size=128,
        use_cpu_initialization=True, pipeline_dtype=torch.float32, attention_dropout=0.0,
        hidden_dropout=0.0, bias_dropout_fusion=False, masked_softmax_fusion=False,
        bias_activation_fusion=False, finalize_model_grads_func=finalize_model_grads, **case,
    )  # fmt: skip


class Training:
    """A model on this rank, its optimizer, and its data; `fused` with gpushmem's layers."""

    def __init__(self, case, fused, share=0):
        torch.manual_seed(1)
        self.config = config_of(case)
        spec = get_gpt_decoder_block_spec(self.config, use_transformer_engine=False)
        if fused:
            spec = with_gpushmem(spec, self.config)
            if not self.config.num_moe_experts:
                provider = GpushmemSpecProvider(self.config)
                mlp = get_mlp_module_spec_for_backend(provider)
                assert spec.layer_specs[0].submodules.mlp == mlp
        elif self.config.sequence_parallel:  # Megatron-Core's own needs Apex then
            spec = copy.copy(spec)
            spec.layer_norm = Norm
            for layer in spec.layer_specs:
                layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = Norm
        self.gpt = GPTModel(
            self.config, spec, vocab_size=VOCABULARY, max_sequence_length=TOKENS,
            pre_process=ps.is_pipeline_first_stage(), post_process=ps.is_pipeline_last_stage(),
            share_embeddings_and_output_weights=False, position_embedding_type="rope",
        )  # fmt: skip
        self.model = DistributedDataParallel(self.config, DistributedDataParallelConfig(), self.gpt)
        rules = OptimizerConfig(optimizer="adam", lr=1e-2, clip_grad=0.0)
        self.optimizer = get_megatron_optimizer(rules, [self.model], use_gloo_process_groups=False)
        self.samples, self.losses = self.batches(share), []

    def batches(self, share):
        """The samples of a share of the data, the same whatever divides the model."""
        generator = torch.Generator().manual_seed(7 + share)
        while True:
            x = torch.randint(0, VOCABULARY, (SAMPLES, 1), generator=generator)
            while x.shape[1] <= TOKENS:  # each token says which one is next
                x = torch.cat([x, (5 * x[:, -1:] + 3) % VOCABULARY], 1)
            places = torch.arange(TOKENS).expand(SAMPLES, -1)
            batch = {"tokens": x[:, :-1], "labels": x[:, 1:], "places": places}
            batch = {name: each.contiguous() for name, each in batch.items()}
            yield get_batch_on_this_cp_rank(batch)

    def forward(self, samples, model):
        batch = next(samples)
        mask = torch.triu(torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool), 1)
        out = model(batch["tokens"], batch["places"], mask, labels=batch["labels"])

        def loss_of(out):
            loss = out.float().sum() / (SAMPLES * TOKENS)  # of this rank's part of the sequence
            whole = loss.detach().clone()
            dist.all_reduce(whole, group=ps.get_context_parallel_group())
            return loss, {"loss": whole.item()}

        return out, loss_of

    def step(self):
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        seen = schedules.get_forward_backward_func()(
            forward_step_func=self.forward, data_iterator=self.samples, model=[self.model],
            num_microbatches=MICROBATCHES, seq_length=TOKENS, micro_batch_size=SAMPLES,
            forward_only=False,
        )  # fmt: skip
        assert self.optimizer.step()[0]
        self.losses += [sum(each["loss"] for each in seen) / len(seen)] if seen else []

    def weights(self):
        return [each.detach().clone() for each in self.gpt.parameters()]

    def kinds(self):
        """Which modules and dispatchers are gpushmem's."""
        made = [*self.gpt.modules()]
        made += [each.token_dispatcher for each in made if hasattr(each, "token_dispatcher")]
        names = {type(each).__name__ for each in made if type(each).__module__ == MODULE}
        return sorted(names)

    def state(self, loading=False):
        weights = self.gpt.sharded_state_dict()
        return {
            "model": weights,
            "optimizer": self.optimizer.sharded_state_dict(weights, is_loading=loading),
        }

    def save(self, folder):
        dist_checkpointing.save(self.state(), str(folder))

    def load(self, folder):
        state = dist_checkpointing.load(self.state(loading=True), str(folder))
        self.gpt.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def distance(some, others):
    """The largest difference of two lists of tensors, on any rank."""
    largest = max((a - b).abs().max() for a, b in zip(some, others, strict=True)).view(1)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return largest.item()


def plans(groups):
    """Which plans operators have made for groups."""
    made = {kind for group in groups for kind, *_ in plans_of(group.group_name)._kept}
    return sorted(kind.__name__ for kind in made)


def resumed(case, fused, folder):
    """A training that is saved after half of the steps, and goes on as another."""
    first = Training(case, fused)
    for _ in range(STEPS // 2):
        first.step()
    if dist.get_rank() == 0:
        folder.mkdir(parents=True)
    dist.barrier()
    first.save(folder)
    again = Training(case, fused)
    for each in again.gpt.parameters():
        each.data.fill_(9)
    again.load(folder)
    again.samples = first.samples
    for _ in range(STEPS // 2):
        again.step()
    return again


def train(world, name, backend, fused, expected, folder):
    """Train a case, and print what came of it; returns the weights."""
    case = CASES[name]
    store, rank, size = world
    store = dist.PrefixStore(f"{name} {backend} {fused}", store)  # else Gloo finds old addresses
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    if not fused:  # Megatron-Core's own context parallelism wants a GPU: ranks have all tokens
        case = {size: number for size, number in case.items() if size != CP}
    sizes = {each: case.get(each, 1) for each in SIZES}
    ps.initialize_model_parallel(**sizes, create_gloo_process_groups=False)
    share = 0 if CP in CASES[name] else ps.get_data_parallel_rank()
    training = Training(case, fused, share)
    for _ in range(STEPS):
        training.step()
    weights = training.weights()
    line = {"case": name, "fused": fused, "kinds": training.kinds(), "losses": training.losses}
    groups = [each for each in vars(training.gpt.pg_collection).values() if each]
    line["backends"] = sorted({dist.get_backend(each) for each in groups})
    line["plans"] = plans(groups) if backend == "gpushmem" else []
    line["distance"] = distance(weights, expected or weights)
    if fused and CP not in case and EP not in case:
        line["resumed"] = distance(resumed(case, fused, folder / name).weights(), weights)
    if dist.get_rank() == dist.get_world_size() - 1:  # a pipeline's last stage has the losses
        print(json.dumps(line), flush=True)
    dist.barrier()
    ps.destroy_model_parallel()
    dist.destroy_process_group()
    return weights


def main(folder, *cases):
    stand_in()
    world = next(dist.rendezvous("env://"))
    for name in cases:
        weights = None
        for backend, fused in SIDES:
            made = train(world, name, backend, fused, weights, Path(folder))
            weights = made if weights is None else weights


if __name__ == "__main__":  # a checkpoint is written by processes of its own
    main(*sys.argv[1:])
