"""torchtitan's small Llama, trained on CPUs: titan.py BACKEND [torchtitan's arguments].

Each rank works in a folder of its own below the current one. Rank 0 prints a line of JSON: the
backend, losses and norms of gradients.
"""

import json
import logging
import os
import re
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as fsdp
from torch.nn.attention import flex_attention

STEP = re.compile(r"step:\s*\d+.*?loss:\s*([\d.]+).*?grad_norm:\s*([\d.]+)")
COLOURS = re.compile(r"\x1b\[[\d;]*m")


class Steps(logging.Filter):
    """What torchtitan logs of its steps, and what carries its collectives then."""

    said: list = []
    backends: set = set()

    def filter(self, record):
        found = STEP.search(COLOURS.sub("", record.getMessage()))
        if found:
            self.said.append([*map(float, found.groups())])
            groups = dist.distributed_c10d._world.pg_map
            made = {dist.get_backend(group) for group in groups}
            self.backends |= made - {"fake"}  # of groups that are there, and not used
        return True


def stand_in():
    """What torchtitan asks of a device, and what it has of a newer PyTorch."""
    torch._utils._get_available_device_type = lambda: "cpu"
    for name, value in {
        "get_device_name": lambda *args: "cpu", "reset_peak_memory_stats": lambda *args: None,
        "empty_cache": lambda: None, "memory_stats": lambda *args: {},
        "max_memory_allocated": lambda *args: 0, "set_device": lambda *args: None,
        "get_device_properties": lambda *args: type("P", (), {"total_memory": 1, "name": "cpu"})(),
        "current_device": lambda *args: 0, "manual_seed_all": torch.manual_seed,
    }.items():  # fmt: skip
        setattr(torch.cpu, name, value)
    flex_attention._validate_device = lambda *args, **kwargs: None  # uncompiled it has gradients
    if not hasattr(dist, "set_timeout"):
        dist.set_timeout = lambda *args, **kwargs: None


def without_premul_sum():
    """Gloo has no PREMUL_SUM, by which FSDP averages; gpushmem has."""
    init = fsdp.FSDPParamGroup.__init__

    def patched(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.force_sum_reduction_for_comms = True

    fsdp.FSDPParamGroup.__init__ = patched


def write_assets():
    """A tokenizer of bytes, and text, where torchtitan's tests have theirs."""
    folder = Path("tests/assets/tokenizer")
    folder.mkdir(parents=True)
    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<s>", "</s>", "<unk>"]
    made = Tokenizer(models.BPE(vocab={name: k for k, name in enumerate(names)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.save(str(folder / "tokenizer.json"))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind))
    text = [json.dumps({"text": f"{k} and {k + 1} are {2 * k + 1}. " * 20}) for k in range(200)]
    (folder.parent / "c4_test").mkdir()
    (folder.parent / "c4_test/data.json").write_text("\n".join(text))


def main(backend):
    here = Path(f"rank{os.environ['RANK']}")
    here.mkdir()
    os.chdir(here)
    write_assets()
    stand_in()
    if backend == "gloo":
        without_premul_sum()
    dist.Backend.default_device_backend_map["cpu"] = backend
    from torchtitan.train import main as train

    logging.getLogger().addFilter(Steps())
    train()
    if os.environ["RANK"] == "0":
        line = {"backends": sorted(Steps.backends), "steps": Steps.said}
        print("\n" + json.dumps(line), flush=True)


if __name__ == "__main__":
    main(sys.argv.pop(1))
