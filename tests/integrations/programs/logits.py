"""A model of transformers divided by tp_plan="auto": logits.py FOLDER BACKEND.

Rank 0 prints a line of JSON: the backend, the shape of its part of a weight, and how far the logits
are from the whole model's.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

SIZES = {
    "vocab_size": 320, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2,
}  # fmt: skip


def local(x):
    return x.to_local() if hasattr(x, "to_local") else x


def main(folder, backend):
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    torch.manual_seed(0)
    whole = LlamaForCausalLM(LlamaConfig(**SIZES))
    if dist.get_rank() == 0:
        whole.save_pretrained(Path(folder) / backend)
    dist.barrier()
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = AutoModelForCausalLM.from_pretrained(
        Path(folder) / backend, tp_plan="auto", device_mesh=mesh, dtype=torch.float32
    )
    tokens = torch.arange(3, 35)[None]
    with torch.no_grad():
        expected, logits = whole(tokens).logits, model(tokens).logits
    logits = logits.full_tensor() if hasattr(logits, "full_tensor") else logits
    line = {
        "backend": dist.get_backend(mesh["tp"].get_group()),
        "part": list(local(model.model.layers[0].self_attn.q_proj.weight).shape),
        "distance": (logits - expected).abs().max().item(), "size": expected.abs().max().item(),
    }  # fmt: skip
    if dist.get_rank() == 0:
        print(json.dumps(line), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
