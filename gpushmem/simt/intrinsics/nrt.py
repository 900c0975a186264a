"""Arrays made inside kernels, for NUMBA_CUDA_ENABLE_NRT=1: numba-cuda's runtime on the C library.

An allocation is Numba's MemInfo (references, destructor, its argument, data, size), followed by
the data. There are no destructors: the elements of arrays in kernels own nothing.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.cuda.memory_management.nrt import _nrt_mstats

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.native.memory import i8p, i64
from gpushmem.simt.compiler import observer
from gpushmem.simt.intrinsics.nvvm import implements

__all__ = ["allocation_stats"]

COUNTS = "simt_nrt_counts"
ALLOCATED, FREED = range(2)
counts = np.zeros(2, np.int64)
llvm.add_symbol(COUNTS, address_of(counts))
DATA_FIELD, HEADER_BYTES = 24, 40


def _c(builder: Any, name: str, result: ir.Type, *args: ir.Value) -> ir.Value:
    fnty = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, fnty, name), args)


def _count(builder: Any, which: int) -> None:
    place = builder.module.globals.get(COUNTS) or ir.GlobalVariable(builder.module, i64, COUNTS)
    builder.atomic_rmw("add", builder.gep(place, [i64(which)]), i64(1), "monotonic")


def _field(builder: Any, info: ir.Value, at: int) -> ir.Value:
    return builder.bitcast(builder.gep(info, [i64(at)]), i64.as_pointer())


@implements("NRT_MemInfo_alloc_aligned")
def allocate(builder: Any, nbytes: ir.Value, align: ir.Value) -> ir.Value:
    align = builder.zext(align, i64)
    room = builder.add(builder.add(nbytes, align), i64(HEADER_BYTES))
    info = _c(builder, "malloc", i8p, room)
    _count(builder, ALLOCATED)
    first = builder.add(builder.ptrtoint(info, i64), i64(HEADER_BYTES))
    up = builder.add(first, builder.sub(align, i64(1)))
    data = builder.and_(up, builder.neg(align))
    for at, value in ((0, i64(1)), (8, i64(0)), (16, i64(0)), (DATA_FIELD, data), (32, nbytes)):
        builder.store(value, _field(builder, info, at))
    return info


@implements("NRT_MemInfo_data_fast")
def data_of(builder: Any, info: ir.Value) -> ir.Value:
    return builder.inttoptr(builder.load(_field(builder, info, DATA_FIELD)), i8p)


@implements("NRT_incref")
def incref(builder: Any, info: ir.Value) -> None:
    with builder.if_then(cgutils.is_not_null(builder, info)):
        builder.atomic_rmw("add", _field(builder, info, 0), i64(1), "monotonic")


@implements("NRT_decref")
def decref(builder: Any, info: ir.Value) -> None:
    with builder.if_then(cgutils.is_not_null(builder, info)):
        before = builder.atomic_rmw("sub", _field(builder, info, 0), i64(1), "acq_rel")
        with builder.if_then(builder.icmp_signed("==", before, i64(1))):
            if observer.current() is None:  # it would take the next array there for this one
                _c(builder, "free", ir.VoidType(), info)
            _count(builder, FREED)


def allocation_stats(stream: Any = None) -> Any:
    """How often kernels of this process allocated and freed, as numba-cuda reports it."""
    made, freed = map(int, counts)
    return _nrt_mstats(alloc=made, free=freed, mi_alloc=made, mi_free=freed)
