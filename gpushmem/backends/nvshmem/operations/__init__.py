"""The meaning of each operation in kernels: a call of NVSHMEM, or code around such calls."""
