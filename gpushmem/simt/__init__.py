"""Numba CUDA kernels on a CPU. Knows nothing of PEs.

`Kernel` compiles a Python function, `Device` runs launches on streams, `waits` tells who waits.
An embedder adds operations with `bind`, written from the vocabulary of `primitives`.
"""
