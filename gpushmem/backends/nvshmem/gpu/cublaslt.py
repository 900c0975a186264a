"""Products of matrices by cuBLASLt, queued on streams: `gemm`, `gemm_batched`, `gemm_scaled`.

The library is called through ctypes: nvmath-python, which has bindings of it, cannot be imported
where there is no CUDA driver. cuBLASLt counts columns first, so it computes the transposed problem,
`dst.T = b.T @ a.T`.

A product is described once for its dtype, sizes, strides and alignment; then the library has said
which of its kernels to take, so a call is one call of it, which a CUDA graph can capture. Each
stream has a workspace of its own, since products on two streams may run at the same time. That of a
stream that was captured is the graph's, too, and stays as long as the stream, which a `Graph`
keeps, or until the end if it is another library's; of other streams those used last are kept.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64
from ctypes import c_void_p as handle
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from gpushmem.arguments import by_rows
from gpushmem.backends.nvshmem.gpu.arrays import GpuArray
from gpushmem.backends.nvshmem.gpu.device import Device
from gpushmem.errors import ShmemError

__all__ = ["Products", "library"]

WORKSPACE = 32 << 20  # bytes: what cuBLAS takes on GPUs of compute capability 9.0
MOST_ALIGNED = 256  # bytes: no kernel asks for more
KEPT, STREAMS = 1024, 8  # descriptions of products; workspaces that no graph has
# Numbers of cublasLt.h, cublas_api.h and library_types.h.
TRANSPOSE_A, TRANSPOSE_B, TRANSPOSED = 3, 4, 1
BATCH, DISTANCE = 5, 6  # of layouts
MAX_WORKSPACE, ALIGNMENT_A = 1, 5  # preferences; the alignments of b, c and d follow that of a
R_32F, COMPUTE_32F, R_64F, COMPUTE_64F = 0, 68, 1, 70
SCALES, SCALE_MODES, ONE, OF_LINES = (17, 18), (31, 32), 0, 3
TYPES = {"float8_e4m3fn": 28, "float16": 2, "bfloat16": 14, "float32": R_32F, "float64": R_64F}


class Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: a way to compute a product."""

    _fields_ = [
        ("algorithm", c_uint64 * 8), ("workspace", c_size_t), ("state", c_int), ("waves", c_float),
        ("reserved", c_int * 4),
    ]  # fmt: skip


class Product(NamedTuple):
    """A product that has been described: cuBLASLt's handles, and the way that it has found."""

    operation: handle
    layouts: tuple[handle, ...]  # of b, a and dst
    found: Found
    scalar: Any  # the type of factors


@cache
def library() -> Any:
    """cuBLASLt, if it is installed, else None."""
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib  # noqa: PLC0415

    try:
        return ctypes.CDLL(load_nvidia_dynamic_lib("cublasLt").abs_path)
    except (DynamicLibNotFoundError, OSError):
        return None


class Products:
    """The products of one GPU."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._handle: handle | None = None
        self._known: dict[Any, Product] = {}
        self._workspaces: dict[int, GpuArray] = {}  # by stream, the one used last at the end
        self._of_graphs: dict[int, GpuArray] = {}  # of other libraries' streams

    def multiply(
        self, stream: int, dst: Any, a: Any, b: Any, accumulate: bool, scale_a: Any = None,
        scale_b: Any = None,
    ) -> None:  # fmt: skip
        """Queue `dst = a @ b`, or `dst += a @ b`; only `dst` may be empty."""
        if not dst.size:
            return
        scales = () if scale_a is None else (scale_b, scale_a)  # of the transposed problem
        key = _described(dst), _described(a), _described(b), sum(x.size for x in scales) > 2
        if key in self._known:
            self._queue(stream, self._known[key], dst, a, b, accumulate, scales)
            return
        if len(self._known) >= KEPT:
            _forget(self._known.pop(next(iter(self._known))))
        with self._device.loading("gemm"):  # of cuBLASLt's kernel
            self._known[key] = self._find(scales, *key)
            self._queue(stream, self._known[key], dst, a, b, accumulate, scales)

    def _queue(
        self, stream: int, product: Product, dst: Any, a: Any, b: Any, accumulate: bool,
        scales: tuple[Any, ...],
    ) -> None:  # fmt: skip
        _set_scales(product.operation, scales)
        workspace = self._workspace(stream)
        one, start = product.scalar(1), product.scalar(accumulate)
        left, right, sums = product.layouts
        to = handle(dst.address)
        _call(
            "Matmul", self._handle, product.operation, byref(one), handle(b.address), left,
            handle(a.address), right, byref(start), to, sums, to, sums,
            byref(product.found.algorithm), handle(workspace.address), c_size_t(WORKSPACE),
            handle(stream),
        )  # fmt: skip

    def _workspace(self, stream: int) -> GpuArray:
        ours = self._device.streams.get(stream)
        held = self._of_graphs.get(stream) if ours is None else ours.workspace
        workspace = self._workspaces.pop(stream, None) if held is None else held
        if workspace is None:
            workspace = self._device.array((WORKSPACE,), np.dtype(np.uint8))
        if not self._device.is_captured(stream):
            if held is None:
                self._workspaces[stream] = workspace
                if len(self._workspaces) > STREAMS:  # freed when the GPU is done with it
                    del self._workspaces[next(iter(self._workspaces))]
        elif ours is None:
            self._of_graphs[stream] = workspace
        else:
            ours.workspace = workspace
        return workspace

    def _find(
        self, scales: tuple[Any, ...], dst: Described, a: Described, b: Described, of_lines: bool
    ) -> Product:
        if self._handle is None:
            self._handle = _made("Create")
        wide = dst.dtype == "float64"
        operation = _made("MatmulDescCreate", COMPUTE_64F if wide else COMPUTE_32F, R_64F * wide)
        layouts, preference = [], _made("MatmulPreferenceCreate")
        _set_scales(operation, scales)
        for mode in SCALE_MODES[: len(scales)]:
            _set("MatmulDesc", operation, mode, c_int32(OF_LINES if of_lines else ONE))
        for at, matrix in enumerate((b, a, dst)):
            if not matrix.by_rows:
                value = c_int32(TRANSPOSED)
                _set("MatmulDesc", operation, TRANSPOSE_A + at, value)
            columns, rows = matrix.sizes
            layout = _made(
                "MatrixLayoutCreate", TYPES[matrix.dtype], c_uint64(rows), c_uint64(columns),
                c_int64(matrix.lead),
            )  # fmt: skip
            _set("MatrixLayout", layout, BATCH, c_int32(matrix.number))
            _set("MatrixLayout", layout, DISTANCE, c_int64(matrix.apart))
            layouts.append(layout)
        for at, matrix in enumerate((b, a, dst, dst)):
            _set("MatmulPreference", preference, ALIGNMENT_A + at, c_uint32(matrix.aligned))
        _set("MatmulPreference", preference, MAX_WORKSPACE, c_uint64(WORKSPACE))
        found, number = Found(), c_int()
        _call(
            "MatmulAlgoGetHeuristic", self._handle, operation, *layouts, layouts[-1], preference, 1,
            byref(found), byref(number),
        )  # fmt: skip
        _call("MatmulPreferenceDestroy", preference)
        return Product(operation, tuple(layouts), found, c_double if wide else c_float)


class Described(NamedTuple):
    """What cuBLASLt is told of a matrix: its rows are in memory as they are, or its columns."""

    by_rows: bool
    sizes: tuple[int, int]  # how many of those, and how long they are
    lead: int  # elements from one to the next
    number: int  # of matrices
    apart: int  # elements from one matrix to the next
    aligned: int  # bytes
    dtype: str


def _described(matrix: Any) -> Described:
    rows = by_rows(matrix)
    turn, item = 1 if rows else -1, matrix.dtype.itemsize
    (count, length), (step, _) = (x[-2:][::turn] for x in (matrix.shape, matrix.strides))
    number, apart = (1, 0) if len(matrix.shape) < 3 else (matrix.shape[0], matrix.strides[0])
    places = matrix.address | apart | MOST_ALIGNED  # of all matrices
    lead = step // item if count > 1 else length
    return Described(
        rows, (count, length), lead, number, apart // item, places & -places, matrix.dtype.name
    )


def _set_scales(operation: handle, scales: tuple[Any, ...]) -> None:
    """Tell where the scales are; cuBLASLt's calls take their addresses with them."""
    for attribute, scale in zip(SCALES, scales, strict=False):
        _set("MatmulDesc", operation, attribute, handle(scale.address))


def _forget(product: Product) -> None:
    _call("MatmulDescDestroy", product.operation)
    for layout in product.layouts:
        _call("MatrixLayoutDestroy", layout)


def _made(create: str, *arguments: Any) -> handle:
    made = handle()
    _call(create, byref(made), *arguments)
    return made


def _set(what: str, owner: handle, attribute: int, value: Any) -> None:
    _call(f"{what}SetAttribute", owner, attribute, byref(value), c_size_t(ctypes.sizeof(value)))


def _call(name: str, *arguments: Any) -> None:
    status = getattr(library(), f"cublasLt{name}")(*arguments)
    if status:
        raise ShmemError(
            f"gemm: cublasLt{name} returned {status} (cublasStatus_t): 15 means that this GPU and "
            "version of cuBLAS have no such product"
        )
