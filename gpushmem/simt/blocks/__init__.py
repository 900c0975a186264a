"""Kernels that wait, as one function for a whole block: LLVM code in, LLVM code out."""
