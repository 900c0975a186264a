"""Layers that PyTorch's compiler has traced: which operators come into them, and what they give."""

import copy
import logging

import pytest

from tests.later import later
from tests.torch.test_group import world

torch = later("torch")
dist = later("torch.distributed")


@pytest.fixture(autouse=True)
def wherever_they_fit(monkeypatch, tmp_path):
    monkeypatch.setenv("GPUSHMEM_TORCH_FUSE", "1")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))


# What PyTorch's compiler imports uses names that PyTorch calls deprecated.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.timeout(400)
]  # fmt: skip
TOKENS, MODEL, INNER = 12, 8, 18


def mlp(norm, bias=False):
    """A network that knows nothing of ranks."""

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up = torch.nn.Linear(MODEL, INNER, bias, dtype=torch.float64)
            self.down = torch.nn.Linear(INNER, MODEL, bias, dtype=torch.float64)
            self.norm = (
                torch.nn.RMSNorm(MODEL, dtype=torch.float64) if norm else torch.nn.Identity()
            )

        def forward(self, x):
            return self.norm(x + self.down(torch.relu(self.up(x))))

    torch.manual_seed(0)
    return Layer()


def divided(layer, mesh, axis):
    """The layer, shared out over the mesh; with the tokens along `axis`, if that is not None."""
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    tokens = {} if axis is None else {"input_layouts": Shard(axis)}
    back = {} if axis is None else {"output_layouts": Shard(axis)}
    plan = {"up": ColwiseParallel(**tokens), "down": RowwiseParallel(**back)}
    if axis is not None:
        plan["norm"] = SequenceParallel(sequence_dim=axis)
    return parallelize_module(copy.deepcopy(layer), mesh, plan)


def fused(layer):
    """The layer compiled as by default, but for the code: the graphs are run as they are."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func
    from torch._inductor.decomposition import select_decomp_table

    from gpushmem.torch.fusion import WAIT, Fusion, value

    def changed(module, given):
        Fusion()(module.graph)
        waits = module.graph.find_nodes(op="call_function", target=WAIT)
        LEFT.append(len([wait for wait in waits if value(wait).ndim > 1]))
        module.recompile()
        return make_boxed_func(module.forward)

    traced = aot_autograd(fw_compiler=changed, decompositions=select_decomp_table())
    return torch.compile(layer, backend=traced, fullgraph=True)


class Names(logging.Handler):
    """Collects what has been fused: a line for each graph."""

    def __init__(self):
        super().__init__()
        self.lines = []
        log = logging.getLogger("gpushmem.torch")
        log.setLevel(logging.INFO)
        log.addHandler(self)

    def emit(self, record):
        self.lines.append(record.getMessage().partition(": ")[2])


def local(x):
    return x.to_local() if hasattr(x, "to_local") else x


def whole(x):
    return x.full_tensor() if hasattr(x, "full_tensor") else x


GATHER, BOTH, SCATTER = "all_gather_gemm", "all_gather_gemm_gathered", "gemm_reduce_scatter"
CASES = [  # tokens' axis, norm, bias, and what comes into the graphs: inference, training
    (None, False, False, ["gemm_all_reduce"], ["gemm_all_reduce", "nothing"]),
    (None, False, True, ["gemm_all_reduce"], ["gemm_all_reduce", "nothing"]),
    (None, True, False, ["all_reduce_rms_norm"], ["gemm_all_reduce", "nothing"]),
    (0, False, False, [f"{SCATTER}, {GATHER}"], [f"{SCATTER}, {BOTH}", BOTH]),
    (1, True, True, [f"{SCATTER}, {GATHER}"], [f"{SCATTER}, {BOTH}", BOTH]),
]
LEFT = []  # collectives in each graph, other than of a bias


def test_layers_have_our_operators_and_the_same_results(run_pes, tmp_path):
    def body():
        with world(tmp_path) as me:
            names, mesh = Names(), dist.device_mesh.init_device_mesh("cpu", (3,))
            for axis, norm, bias, inference, training in CASES:
                torch.compiler.reset()
                layer, x = mlp(norm, bias), torch.randn(6, TOKENS, MODEL, dtype=torch.float64)
                ours = fused(divided(layer, mesh, axis))
                mine = x if axis is None else x.chunk(3, axis)[me].contiguous()
                with torch.no_grad():
                    got, wanted = ours(mine), layer(x)
                part = wanted if axis is None else wanted.chunk(3, axis)[me]
                torch.testing.assert_close(local(got), part)
                assert names.lines == inference, (axis, norm, bias)
                names.lines.clear()
                ours(mine).square().sum().backward()
                layer(x).square().sum().backward()
                for one, other in zip(ours.parameters(), layer.parameters(), strict=True):
                    torch.testing.assert_close(whole(one.grad), other.grad)
                assert names.lines == training, (axis, norm, bias)
                names.lines.clear()
            assert [0] * 3 * len(CASES) == LEFT

    torch.manual_seed(1)
    run_pes(body, 3, timeout=300)


@pytest.mark.parametrize("first", [3, 0], ids=["few", "all"])
def test_what_is_left_alone(run_pes, tmp_path, first):
    """Other reductions and dtypes, products that are used twice, groups of another backend."""

    def body():
        with world(tmp_path):
            from torch.distributed import _functional_collectives as collectives

            gloo, names = dist.new_group(backend="gloo"), Names()
            ours, ops = dist.group.WORLD, torch.ops._c10d_functional

            def largest(a, b):
                return collectives.all_reduce(a @ b, "max", ours)

            def twice(a, b):
                product = a @ b
                return product + collectives.all_reduce(product, "sum", ours)

            def others(a, b):
                return collectives.all_reduce(a @ b, "sum", gloo)

            def other_parts_scattered(a, b):
                parts = (a @ b).view(2, 8, 4).split(2, 1)
                made = ops.reduce_scatter_tensor(torch.cat(parts), "sum", 2, ours.group_name)
                return ops.wait_tensor(made)

            def other_parts_gathered(a, b):
                made = ops.all_gather_into_tensor(a.view(4, 4, 4), 2, ours.group_name)
                rows = ops.wait_tensor(made)
                return torch.cat(rows.split(2), 1).view(-1, 4) @ b

            def wide_residual(a, b):
                total = a.double() + collectives.all_reduce(a * 2, "sum", ours)
                return total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6) * b[0]

            a, b = torch.randn(16, 4), torch.randn(4, 4)
            calls = (
                largest, other_parts_scattered, other_parts_gathered, twice, others, wide_residual
            )[first:]  # fmt: skip
            for call in calls:
                torch.compiler.reset()
                torch.testing.assert_close(fused(call)(a, b), call(a, b))
            whole_numbers = b.long()
            torch.testing.assert_close(
                fused(lambda a, b: collectives.all_reduce(a @ b, "sum", ours))(
                    whole_numbers, whole_numbers
                ),
                2 * (whole_numbers @ whole_numbers),
            )
            assert names.lines == ["nothing"] * (len(calls) + 1)

    run_pes(body, 2, timeout=300)


def test_the_compiler_itself(run_pes, tmp_path):
    """`torch.compile(layer)`, by somebody who has never heard of any of this."""

    def body():
        with world(tmp_path):
            names, mesh = Names(), dist.device_mesh.init_device_mesh("cpu", (2,))
            layer, x = mlp(norm=False), torch.ones(6, MODEL, dtype=torch.float64)
            layer.forward = lambda x: layer.down(layer.up(x))  # no code in C++
            wanted = layer(x)
            with torch.no_grad():
                ours = divided(layer, mesh, None)
                ours.forward = lambda x: ours.down(ours.up(x))
                torch.testing.assert_close(torch.compile(ours, fullgraph=True)(x), wanted)
            assert names.lines == ["gemm_all_reduce"]

    run_pes(body, 2, timeout=300)
