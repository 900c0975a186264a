"""Kernels that compute and communicate, ready to use: `import gpushmem.kernels`."""

from gpushmem.kernels.all_reduce import AllReduce
from gpushmem.kernels.all_reduce_norm import AllReduceRMSNorm
from gpushmem.kernels.gemm import AllGatherGemm, GemmAllReduce, GemmReduceScatter
from gpushmem.kernels.jacobi import Jacobi
from gpushmem.kernels.moe import MoE, expert_ffn
from gpushmem.kernels.moe_dispatch import ExpertParallel
from gpushmem.kernels.moe_parts import route

__all__ = [
    "AllGatherGemm", "AllReduce", "AllReduceRMSNorm", "ExpertParallel", "GemmAllReduce",
    "GemmReduceScatter", "Jacobi", "MoE", "expert_ffn", "route",
]  # fmt: skip
