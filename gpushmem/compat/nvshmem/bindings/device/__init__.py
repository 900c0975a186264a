"""Device functions by the names of NVSHMEM's C functions."""
