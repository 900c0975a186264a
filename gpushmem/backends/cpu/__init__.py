"""The `cpu` backend: kernels run natively on this machine's cores, PEs share memory."""
