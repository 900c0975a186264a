"""The memory that PEs share, and how they synchronise in it, in kernels and on hosts."""
