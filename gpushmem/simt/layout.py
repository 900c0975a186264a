"""The engine's structures as NumPy dtypes: see `native.structs` for how they are read."""

from gpushmem.simt.base.layout import BLOCK, FIBER, GROUP, LAUNCH, SPREAD, THREAD, WARP
from gpushmem.simt.run.queue import COMMON, LAUNCH_AT, RUN

__all__ = [
    "BLOCK", "COMMON", "FIBER", "GROUP", "LAUNCH", "LAUNCH_AT", "RUN", "SPREAD", "THREAD", "WARP",
]  # fmt: skip
