"""Products with their collectives, as operators of PyTorch: `python bench/torch_operators.py`.

torch.ops.gpushmem against the product by PyTorch and the collective by torch.distributed, one after
the other, with the same backend and with Gloo. 2 and 4 ranks, one thread each; all ways take turns,
in series of calls; the best series counts, as rank 0 measures it.
"""

from importlib.metadata import version

import torch
import torch.distributed as dist
from harness import report, row
from torch_collectives import by_turns, found_by

import gpushmem.torch

HIDDEN, SIZES = 512, (8, 64, 512, 2048)  # of the square weight; tokens


def ways_of(tokens, n, groups):
    """For each operator its ways: functions of nothing."""
    a, b = torch.randn(tokens, HIDDEN), torch.randn(HIDDEN, HIDDEN)
    part, ours = a[: tokens // n].contiguous(), groups["unfused"].group_name
    whole, rows = torch.empty(tokens, HIDDEN), torch.empty(tokens // n, HIDDEN)
    ops = torch.ops.gpushmem

    def gather(group):
        dist.all_gather_into_tensor(whole, part, group)
        return whole @ b

    def scatter(group):
        dist.reduce_scatter_tensor(rows, a @ b, group=group)

    for name, fused, steps in (
        (
            "gemm_all_reduce",
            lambda: ops.gemm_all_reduce(a, b, ours),
            lambda group: dist.all_reduce(a @ b, group=group),
        ),
        ("all_gather_gemm", lambda: ops.all_gather_gemm(part, b, ours), gather),
        ("gemm_reduce_scatter", lambda: ops.gemm_reduce_scatter(a, b, ours), scatter),
    ):
        others = {way: lambda g=group, s=steps: s(g) for way, group in groups.items()}
        yield name, {"fused": fused, **others}


def measure(n):
    gpushmem.torch.register()
    groups = {"unfused": dist.new_group(backend="gpushmem"), "Gloo": None}
    for tokens in SIZES:
        for name, ways in ways_of(tokens, n, groups):
            yield name, tokens, by_turns(ways)


def rows():
    for n in (2, 4):
        for name, tokens, best in found_by(measure, "gloo", n):
            own = best.pop("fused")
            for peer, seconds in best.items():
                what = f"{name}, {tokens} x {HIDDEN} @ {HIDDEN} x {HIDDEN}, {n} ranks"
                yield row(what, own, peer, seconds, "speed >= 1", seconds / own)


if __name__ == "__main__":
    report("torch_operators", rows(), torch=version("torch"))
