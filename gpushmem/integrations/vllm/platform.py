"""vLLM's platform for CPUs, with process groups of gpushmem."""

from __future__ import annotations

from vllm.platforms.cpu import CpuPlatform

__all__ = ["GpushmemPlatform"]


class GpushmemPlatform(CpuPlatform):  # type: ignore[misc]
    """vLLM's workers on CPUs: their groups are of the backend "gpushmem"."""

    dist_backend = "gpushmem"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """Return the class of what makes a group's collectives."""
        return "gpushmem.integrations.vllm.communicator.GpushmemCommunicator"
