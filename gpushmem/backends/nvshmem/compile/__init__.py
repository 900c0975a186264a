"""From a kernel to machine code, by either of two compilers, without a GPU."""
