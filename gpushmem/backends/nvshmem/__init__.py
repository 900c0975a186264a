"""The `nvshmem` backend: kernels run on GPUs, NVSHMEM moves the data."""
