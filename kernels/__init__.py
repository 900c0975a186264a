"""Kernels that compute and communicate, ready to use: `import gpushmem.kernels`."""

from gpushmem.kernels.all_reduce import AllReduce

__all__ = ["AllReduce"]
