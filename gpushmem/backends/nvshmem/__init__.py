"""The `nvshmem` backend: kernels run on GPUs, NVSHMEM moves the data."""

from gpushmem.backends.nvshmem import versions
from gpushmem.backends.properties import About, Tuning

# A tile is of a size that a block multiplies well. A call with the library has some 20 launches,
# 60 us, in which a kernel without cuBLASDx makes 10 steps of 64 x 64 x 32 in each block: so they
# are equal at some 2^24 products (bench/gpu/predict.py).
# 256 threads have all registers of a multiprocessor, so kernels that move need not spill; with 128
# bytes each they have 32 KiB under way, where HBM wants 20. In blocks that have less than 4 KiB
# some would have nothing to do.
TUNING = Tuning(
    threads=128,
    moving_threads=256,
    blocks=32,
    piece_bytes=64 << 10,
    tile=(128, 128),
    product_rows=0,
    kernel_products=1 << 24,
    ll_bytes=448 << 10,  # NVLink sends that in the 1 us that a fence and a signal take, or less
    ll128_bytes=11 << 18,  # NVLink sends that while two shots have more to wait for (bench/gpu)
    one_shot_bytes=5 << 20,  # and that while two shot fences and waits once more (bench/gpu)
    block_bytes=4 << 10,
)

ABOUT = About(
    backend="gpushmem.backends.nvshmem.backend:NvshmemBackend",
    tuning=TUNING,
    shares_memory=False,
    traces=True,
    missing=versions.missing,
    reasons=versions.reasons,
    found="there are an NVIDIA GPU and nvshmem4py",
    needs=("driver", "gpu", "packages", "nvshmem library"),
    lacking=versions.lacking,
)
