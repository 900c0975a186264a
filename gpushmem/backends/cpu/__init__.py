"""The `cpu` backend: kernels run natively on this machine's cores, PEs share memory."""

from gpushmem.backends.about import About, Tuning

# A kernel that waits runs on one core, where one thread goes through memory in order. Pieces of
# half a megabyte were twice as fast as smaller ones: what a PE reads has then gone from the
# writer's own cache to the one that they share. Products are the faster the larger they are, but
# sums of them are the faster the more of them stays in the caches.
TUNING = Tuning(threads=128, blocks=1, piece_bytes=512 << 10, tile=(512, 1024), product_rows=2048)

ABOUT = About(
    backend="gpushmem.backends.cpu.backend:CpuBackend",
    tuning=TUNING,
    shares_memory=True,
    records=True,
    is_late=True,
    warm_up="gpushmem.backends.cpu.backend:warm_up",
    found="it needs no GPU",
    needs=("platform", "calls"),
)
