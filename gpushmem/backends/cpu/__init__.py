"""The `cpu` backend: kernels run natively on this machine's cores, PEs share memory."""

from dataclasses import replace

from gpushmem.backends.properties import About, Tuning

# 128 threads a block are as on GPUs, and cost little here (bench/threads.py); blocks cost more: PEs
# share the cores, and each block has messages of its own. Pieces of half a megabyte were twice as
# fast as smaller ones: what a PE reads has then gone from the writer's own cache to the one that
# they share. Products are the faster the larger they are, but sums of them are the faster the more
# of them stays in the caches.
TUNING = Tuning(
    threads=128,
    moving_threads=128,
    blocks=1,
    piece_bytes=512 << 10,
    tile=(512, 1024),
    product_rows=2048,
    ll_bytes=0,  # signals and fences cost next to nothing, and data come as fast as a core copies
    ll128_bytes=0,
    one_shot_bytes=96 << 10,  # 32 KiB of 4 PEs
)

ABOUT = About(
    backend="gpushmem.backends.cpu.backend:CpuBackend",
    tuning=TUNING,
    shares_memory=True,
    records=True,
    schedules=True,
    traces=True,
    # What one thread reads in a loop is one record, what 128 share is 128 times as many.
    recorded=replace(TUNING, threads=1, moving_threads=1),
    is_late=True,
    warm_up="gpushmem.backends.cpu.backend:warm_up",
    found="it needs no GPU",
    needs=("platform", "calls"),
)
