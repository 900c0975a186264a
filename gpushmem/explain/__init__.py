"""How the kernels of a program run: on the cpu backend, and what GPUs have room for."""
