"""Kernels on this PE's GPU: compiled or found on disk, loaded, launched."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver
from cuda.core import LaunchConfig, ObjectCode, launch
from numba.cuda.typing.typeof import Purpose, typeof
from nvshmem import core as nvshmem

from gpushmem.backends.nvshmem import cache, versions
from gpushmem.backends.nvshmem.device import Device, check
from gpushmem.errors import ArgumentError
from gpushmem.ops import OPS
from gpushmem.simt import fingerprint
from gpushmem.simt.arguments import pack
from gpushmem.simt.kernel import LaunchShape

__all__ = ["Kernel", "Loader"]

WORKSPACE = "gpushmem_workspace"  # see `native.EXTRA`
fingerprint.fixed.update(op.function for op in OPS.values())


class Loaded:
    """A kernel's machine code on the GPU."""

    def __init__(self, code: bytes, about: dict[str, Any], workspace: int) -> None:
        self._object = ObjectCode.from_cubin(code)
        self.kernel = self._object.get_kernel(about["entry"])
        self.cooperative = about["cooperative"]
        if about["shims"]:
            nvshmem.library_init(nvshmem.NvshmemKernelObject.from_obj(self._object))
        if about["workspace"]:
            self._tell(WORKSPACE, workspace)

    def _tell(self, name: str, value: int) -> None:
        """Set a global variable of the code."""
        library = driver.CUlibrary(int(self._object.handle))
        address, _ = check(driver.cuLibraryGetGlobal(library, name.encode()), name)
        check(driver.cuMemcpyHtoD(address, struct.pack("<Q", value), 8), name)


class Loader:
    """Makes kernels ready for one GPU."""

    def __init__(self, device: Device, workspace: int, sharing: int) -> None:
        self.device, self.workspace = device, workspace
        self.sharing = sharing  # PEs that use this GPU
        major, minor = device.cuda.compute_capability
        self.arch = f"sm_{major}{minor}" + ("a" if major >= 9 else "")

    def load(
        self, py_func: Callable[..., Any], argtypes: tuple[Any, ...], options: dict[str, Any]
    ) -> Loaded:
        """The kernel for arguments of these types; raises Numba's errors."""
        kept = built(py_func, argtypes, options, self.arch)
        return Loaded(kept.code, kept.about, self.workspace)

    def check_resident(self, name: str, loaded: Loaded, shape: LaunchShape) -> None:
        """Refuse a grid of which not all blocks can run at once."""
        properties = self.device.cuda.properties
        per_sm = loaded.kernel.occupancy.max_active_blocks_per_multiprocessor(
            shape.threads, shape.dynamic_shared
        )
        blocks, limit = math.prod(shape.grid), per_sm * properties.multiprocessor_count
        if blocks * self.sharing > limit:
            shared = f", which {self.sharing} PEs share" if self.sharing > 1 else ""
            raise ArgumentError(
                f"kernel {name}: a collective launch of {blocks} blocks of {shape.threads} threads "
                f"cannot be resident all at once: this GPU{shared} holds {limit} such blocks, "
                f"{per_sm} on each of {properties.multiprocessor_count} multiprocessors: launch at "
                f"most {limit // self.sharing}"
            )


def built(
    py_func: Callable[..., Any], argtypes: tuple[Any, ...], options: dict[str, Any], arch: str
) -> cache.Kept:
    """The kernel's machine code: from disk, or compiled and kept there.

    What no fingerprint can be made of is compiled in every process.
    """
    source = fingerprint.fingerprint(py_func, argtypes, options, machine=arch)
    if source is None:
        return _build(py_func, argtypes, options, arch)
    key = cache.key("kernel", source, versions.compilers())
    return cache.made(key, lambda: _build(py_func, argtypes, options, arch))


def _build(
    py_func: Callable[..., Any], argtypes: tuple[Any, ...], options: dict[str, Any], arch: str
) -> cache.Kept:
    from gpushmem.backends.nvshmem import compiler  # noqa: PLC0415  (takes a second)

    compiled = compiler.compile_kernel(py_func, argtypes, options, compiler.Arch.of(arch))
    about = {
        "entry": compiled.entry, "cooperative": compiled.cooperative,
        "shims": bool(compiled.shims), "workspace": "gpushmem_words" in compiled.shims,
    }  # fmt: skip
    return cache.Kept(about, compiler.link(compiled).code)


class Kernel:
    """A Python function as a kernel, loaded once for each combination of argument types."""

    def __init__(self, py_func: Callable[..., Any], options: dict[str, Any]) -> None:
        self.py_func, self.name = py_func, py_func.__name__
        self.options = {k: v for k, v in options.items() if k != "collective"}
        self.collective = bool(options.get("collective"))
        self._loaded: dict[tuple[Any, ...], Loaded] = {}

    def launch(
        self, loader: Loader, shape: LaunchShape, stream: Any, args: tuple[Any, ...]
    ) -> None:
        """Launch for these arguments; returns at once."""
        expected = self.py_func.__code__.co_argcount
        if len(args) != expected:
            raise ArgumentError(f"kernel {self.name} takes {expected} arguments, got {len(args)}")
        argtypes = tuple(typeof(a, Purpose.argument) for a in args)
        key = (loader, *argtypes)
        loaded = self._loaded.get(key)
        if loaded is None:
            loaded = self._loaded[key] = loader.load(self.py_func, argtypes, self.options)
        if self.collective:
            loader.check_resident(self.name, loaded, shape)
        config = LaunchConfig(
            grid=shape.grid, block=shape.block, shmem_size=shape.dynamic_shared,
            is_cooperative=self.collective or loaded.cooperative,
        )  # fmt: skip
        words = pack(argtypes, args).view("int64").tolist()  # CUDA reads as much as it needs
        launch(stream, config, loaded.kernel, *words)
