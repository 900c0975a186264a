"""Code of other compilers on this PE's GPU, made known to NVSHMEM."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver
from cuda.core import Kernel, ObjectCode
from nvshmem import bindings

from gpushmem.arguments import shown, taking
from gpushmem.backends.nvshmem.gpu.device import Device
from gpushmem.backends.nvshmem.gpu.driver_errors import check
from gpushmem.errors import ArgumentError, ArgumentTypeError

__all__ = ["init_module"]

WHAT = "init_module"
Found = tuple[Callable[[int], int], Any]  # NVSHMEM's function, and the handle it takes


def _library_of(kernel: Any) -> Found:
    handle = check(driver.cuKernelGetLibrary(driver.CUkernel(int(kernel))), WHAT)
    return bindings.culibrary_init, handle


def _module_of(function: Any) -> Found:
    return bindings.cumodule_init, check(driver.cuFuncGetModule(function), WHAT)


FORMS: dict[type, Callable[[Any], Found]] = {
    ObjectCode: lambda code: (bindings.culibrary_init, code.handle),
    Kernel: lambda kernel: _library_of(kernel.handle),
    driver.CUlibrary: lambda library: (bindings.culibrary_init, library),
    driver.CUkernel: _library_of,
    driver.CUmodule: lambda module: (bindings.cumodule_init, module),
    driver.CUfunction: _module_of,
}

_known: dict[int, Any] = {}  # by handle: what keeps the code loaded, to the end of the process


def init_module(module: Any, device: Device) -> None:
    """Tell NVSHMEM of loaded code: it writes its state there, now and whenever that changes."""
    device.enter()
    tell, handle = _found(module)
    status = tell(int(handle))
    if status:
        raise ArgumentError(
            f"{WHAT}: NVSHMEM does not accept the code (status {status}): it calls none of "
            "NVSHMEM's device functions, or those of a version that does not fit NVSHMEM "
            f"{_version()}, which runs"
        )
    _known[int(handle)] = module


def _found(module: Any) -> Found:
    form = next((form for kind, form in FORMS.items() if isinstance(module, kind)), None)
    with taking(WHAT):
        if form is not None:
            return form(module)
        core = sys.modules.get("nvshmem.core")  # which imports PyTorch: only if the program does
        if core is not None and isinstance(module, core.NvshmemKernelObject):
            return bindings.culibrary_init, module.handle
        of_triton = getattr(module, "module", None)  # of a kernel that Triton has loaded
        if isinstance(of_triton, int):
            return bindings.cumodule_init, of_triton
    raise ArgumentTypeError(
        f"{WHAT}: loaded code is an ObjectCode or Kernel of cuda.core, a CUlibrary, CUmodule, "
        "CUkernel or CUfunction of cuda.bindings.driver (which handles given as integers are to be "
        f"made), or a kernel that Triton has loaded; got {shown(module)}"
    )


def _version() -> str:
    from nvshmem import core  # noqa: PLC0415  (imports PyTorch)

    return str(core.get_version().libnvshmem_version)
