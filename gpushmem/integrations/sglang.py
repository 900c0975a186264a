"""SGLang: a platform for CPUs whose groups are of the backend "gpushmem".

`SGLANG_PLATFORM=gpushmem` puts it in; SGLang finds it through its entry point.
"""

from __future__ import annotations

import os

from sglang.srt.platforms.cpu import CpuSRTPlatform

__all__ = ["GpushmemPlatform", "platform"]


def platform() -> str | None:
    """Return the class of the platform for SGLang, or None if `SGLANG_PLATFORM` is another."""
    if os.environ.get("SGLANG_PLATFORM") != "gpushmem":
        return None
    return "gpushmem.integrations.sglang.GpushmemPlatform"


class GpushmemPlatform(CpuSRTPlatform):  # type: ignore[misc]
    """SGLang's workers on CPUs: tensor parallelism and the other groups go by gpushmem."""

    def get_torch_distributed_backend_str(self) -> str:
        """Return the backend of process groups."""
        return "gpushmem"
