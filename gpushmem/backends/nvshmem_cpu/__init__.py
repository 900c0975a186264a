"""The `nvshmem-cpu` backend: kernels run on this machine's cores, with NVSHMEM's own device code.

It is the cpu backend with other operations in kernels: those of the nvshmem backend, which call
NVSHMEM's device functions. These are translated from the bitcode that NVSHMEM installs.
"""

from gpushmem.backends import cpu
from gpushmem.backends.nvshmem import versions
from gpushmem.backends.properties import About, Tuning


def _missing() -> str | None:
    lacking = versions.lacking(versions.installed)
    if not lacking:
        return None
    return f"backend nvshmem-cpu cannot be used here: {', '.join(lacking)}: {versions.INSTALL}"


# Whole warps, which NVSHMEM's block operations need, and otherwise little: every thread is a fiber.
TUNING = Tuning(
    threads=32,
    moving_threads=32,
    blocks=2,
    piece_bytes=64 << 10,
    tile=(64, 64),
    product_rows=0,
    ll_bytes=0,
    ll128_bytes=0,
    one_shot_bytes=96 << 10,
)

ABOUT = About(
    backend="gpushmem.backends.nvshmem_cpu.backend:NvshmemCpuBackend",
    tuning=TUNING,
    shares_memory=True,
    records=True,
    traces=True,
    is_late=True,
    warm_up="gpushmem.backends.nvshmem_cpu.backend:warm_up",
    missing=_missing,
    needs=(*cpu.ABOUT.needs, "packages"),
    lacking=versions.lacking,
)
