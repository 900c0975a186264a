"""Kernels that compute and communicate, ready to use: `import gpushmem.kernels`."""

from gpushmem.kernels.all_reduce import AllReduce
from gpushmem.kernels.all_reduce_norm import AllReduceRMSNorm
from gpushmem.kernels.gemm import AllGatherGemm, GemmAllReduce, GemmReduceScatter
from gpushmem.kernels.jacobi import Jacobi

__all__ = [
    "AllGatherGemm", "AllReduce", "AllReduceRMSNorm", "GemmAllReduce", "GemmReduceScatter",
    "Jacobi",
]  # fmt: skip
