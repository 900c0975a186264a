"""What calls of the CUDA driver return."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver

from gpushmem.errors import KernelError, ShmemError

__all__ = ["check"]

# What a kernel did that failed; after these nothing can be done with the GPU in this process.
FAILED = {
    getattr(driver.CUresult, f"CUDA_ERROR_{name}")
    for name in (
        "ASSERT", "HARDWARE_STACK_ERROR", "ILLEGAL_ADDRESS", "ILLEGAL_INSTRUCTION",
        "INVALID_ADDRESS_SPACE", "INVALID_PC", "LAUNCH_FAILED", "LAUNCH_TIMEOUT",
        "MISALIGNED_ADDRESS", "MPS_CLIENT_TERMINATED",
    )
}  # fmt: skip


def check(returned: tuple[Any, ...], what: str) -> Any:
    """The values that a call of the CUDA driver returned; raises `ShmemError` for its errors."""
    status, *values = returned
    if status != driver.CUresult.CUDA_SUCCESS:
        _, text = driver.cuGetErrorString(status)
        said = f"{status.name}: {(text or b'').decode()}"
        if status in FAILED:
            raise KernelError(
                f"{what}: a kernel of this PE failed ({said}); with MPS, it may be one of another "
                "process on this GPU. The GPU says no more; the cpu backend names the line: run it "
                "there, with debug=True"
            )
        raise ShmemError(f"{what}: {said}")
    return values[0] if len(values) == 1 else values
