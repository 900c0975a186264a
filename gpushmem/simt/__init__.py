"""Numba CUDA kernels on a CPU. Knows nothing of PEs.

`Kernel` compiles a Python function, `Device` runs launches on streams, `waits` lists the
waiting threads. An embedder adds operations with `bind`, written with the functions of
`primitives`.
"""
