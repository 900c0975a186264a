"""Kernels that compute and communicate, ready to use: `import gpushmem.kernels`."""

from gpushmem.kernels.all_reduce import AllReduce
from gpushmem.kernels.moe import MoE, expert_ffn
from gpushmem.kernels.moe_dispatch import ExpertParallel
from gpushmem.kernels.moe_parts import route

__all__ = ["AllReduce", "ExpertParallel", "MoE", "expert_ffn", "route"]
