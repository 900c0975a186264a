"""What calls of the CUDA driver return."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver

from gpushmem.errors import KernelError, ShmemError

__all__ = ["check"]


def check(returned: tuple[Any, ...], what: str) -> Any:
    """The values that a call of the CUDA driver returned; raises `ShmemError` for its errors."""
    status, *values = returned
    if status != driver.CUresult.CUDA_SUCCESS:
        _, name = driver.cuGetErrorName(status)
        _, text = driver.cuGetErrorString(status)
        said = f"{(name or b'?').decode()}: {(text or b'').decode()}"
        if b"LAUNCH" in (name or b"") or b"ILLEGAL" in (name or b"") or b"ASSERT" in (name or b""):
            raise KernelError(
                f"{what}: a kernel of this PE failed ({said}); with MPS, it may be one of another "
                "process on this GPU. The GPU says no more; the cpu backend names the line: run it "
                "there, with debug=True"
            )
        raise ShmemError(f"{what}: {said}")
    return values[0] if len(values) == 1 else values
