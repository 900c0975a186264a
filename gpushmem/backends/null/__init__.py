"""The `null` backend: one PE, host operations in NumPy, and no kernels.

It implements the interface of a backend and nothing else: read it before writing another.
"""

from gpushmem.backends.properties import About, Tuning

ABOUT = About(
    backend="gpushmem.backends.null.backend:NullBackend",
    tuning=Tuning(
        threads=1,
        moving_threads=1,
        blocks=1,
        piece_bytes=512 << 10,
        tile=(512, 1024),
        product_rows=2048,
        ll_bytes=0,
        ll128_bytes=0,
        one_shot_bytes=96 << 10,
    ),
    shares_memory=False,
)
