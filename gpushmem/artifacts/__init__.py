"""Common to all backends: a launch's shape and arguments, and the key of a kernel's code.

`fingerprint` describes kernels, `toolchain` the compilers. Nothing here compiles.
"""
