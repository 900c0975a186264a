"""The modelled GPU, an H100: limits that programs can query and launches respect."""

COMPUTE_CAPABILITY = (9, 0)
LANES = 32  # threads of a warp
MAX_WARPS = 32  # of a block
MAX_SHARED = 227 * 1024  # bytes of shared memory that a block can have
SM_COUNT, SM_THREADS, SM_BLOCKS = 132, 2048, 32  # multiprocessors; what is resident on one
