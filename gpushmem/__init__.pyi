"""Public names for type checkers and editors; docs/make_api.py writes it."""

from collections.abc import Sequence
from typing import Any, TypeAlias, overload

from numpy.typing import NDArray

from gpushmem.errors import (
    ArgumentError as ArgumentError, BackendUnavailable as BackendUnavailable,
    BootstrapError as BootstrapError, CollectiveMismatch as CollectiveMismatch,
    Deadlock as Deadlock, HeapExhausted as HeapExhausted, KernelError as KernelError,
    KernelTypingError as KernelTypingError, NotInitializedError as NotInitializedError,
    PeerFailed as PeerFailed, ShmemError as ShmemError, SymmetryError as SymmetryError,
    TeamError as TeamError, WaitTimeout as WaitTimeout,
)
from gpushmem.runtime import (
    alloc_bytes as alloc_bytes, array as array, capture as capture,
    device_array as device_array, empty as empty, finalize as finalize, free as free,
    full as full, heap_stats as heap_stats, init as init, init_module as init_module,
    is_capturing as is_capturing, is_initialized as is_initialized, on_device as on_device,
    on_stream as on_stream, ones as ones, qp_create as qp_create, register as register,
    register_symmetric as register_symmetric, session as session, set_timeout as set_timeout,
    stats as stats, stream as stream, synchronize as synchronize, to_device as to_device,
    trace_range as trace_range, tuning as tuning, unregister as unregister,
    unregister_symmetric as unregister_symmetric, wait_stream as wait_stream, zeros as zeros,
)
from gpushmem.backends.properties import Tuning as Tuning
from gpushmem.kernel import jit as jit, preload as preload
from gpushmem.communicators import (
    comm_from as comm_from, process_group_from as process_group_from, team_from as team_from,
)
from gpushmem.start.launch.spawn import spawn as spawn
from gpushmem.memory.array import (
    DeviceArray as DeviceArray, MulticastArray as MulticastArray,
    SymmetricArray as SymmetricArray,
)
from gpushmem.memory.stats import HeapStats as HeapStats
from gpushmem.ops.constants import (
    CMP_EQ as CMP_EQ, CMP_GE as CMP_GE, CMP_GT as CMP_GT, CMP_LE as CMP_LE, CMP_LT as CMP_LT,
    CMP_NE as CMP_NE, QP_ANY as QP_ANY, QP_DEFAULT as QP_DEFAULT, SIGNAL_ADD as SIGNAL_ADD,
    SIGNAL_SET as SIGNAL_SET, SMEM_BARRIERS_ONLY as SMEM_BARRIERS_ONLY,
    SMEM_MINIMUM as SMEM_MINIMUM, SMEM_RECOMMENDED as SMEM_RECOMMENDED,
    TEAM_INVALID as TEAM_INVALID, TEAM_NODE as TEAM_NODE, TEAM_SHARED as TEAM_SHARED,
    TEAM_WORLD as TEAM_WORLD,
)
from gpushmem.ops.team import Team as Team
from gpushmem.trace.counters import Stats as Stats

Symmetric: TypeAlias = SymmetricArray
Array: TypeAlias = DeviceArray | NDArray[Any]
Scalar: TypeAlias = Any

__version__: str

def my_pe() -> int:
    """Return the number of the calling PE, 0 to `n_pes() - 1`. OpenSHMEM 1.5: shmem_my_pe."""

def n_pes() -> int:
    """Return how many PEs the job has. OpenSHMEM 1.5: shmem_n_pes."""

def pe_accessible(pe: int) -> bool:
    """Return whether operations can name PE `pe`: they can name every PE of the job.

    True for 0 to `n_pes() - 1`, False for any other integer. OpenSHMEM 1.5: shmem_pe_accessible.
    """

def p(dst: Symmetric, value: Scalar, pe: int, *, stream: Any = None) -> None:
    """Write `value` to element 0 of `dst` (symmetric, on `pe`).

    The value has arrived after `quiet`. `value` is converted to the dtype of `dst`. To write
    element i pass `dst[i:]`. OpenSHMEM 1.5: shmem_p.
    """

def qp_p(dst: Symmetric, value: Scalar, pe: int, qp: int) -> None:
    """`p(dst, value, pe)` on the queue pair `qp`.

    `qp` is a number from `qp_create`, QP_DEFAULT, or QP_ANY: any queue pair. `qp_quiet` completes
    the operation if its queue pair is among those given, and so do `quiet` and barriers. `qp_fence`
    orders it; `fence` only if `qp` is QP_DEFAULT. Where memory of `pe` is mapped, loads and stores
    are used, and no queue pair. NVSHMEM 3: nvshmemx_qp_p, with the dtype in its name.
    """

def g(src: Symmetric, pe: int, *, stream: Any = None) -> Scalar:
    """Return element 0 of `src` (symmetric, on `pe`): the value it has at some time in the call.

    To read element i pass `src[i:]`. OpenSHMEM 1.5: shmem_g.
    """

def qp_g(src: Symmetric, pe: int, qp: int) -> Scalar:
    """`g(src, pe)` on the queue pair `qp`.

    `qp` is a number from `qp_create`, QP_DEFAULT, or QP_ANY: any queue pair. `qp_quiet` completes
    the operation if its queue pair is among those given, and so do `quiet` and barriers. `qp_fence`
    orders it; `fence` only if `qp` is QP_DEFAULT. Where memory of `pe` is mapped, loads and stores
    are used, and no queue pair. NVSHMEM 3: nvshmemx_qp_g, with the dtype in its name.
    """

def put(dst: Symmetric, src: Array, pe: int, *, stream: Any = None) -> None:
    """Copy all `src.size` elements of `src` (local) to the first of `dst` (symmetric, on `pe`).

    Both arrays must be contiguous and have the same dtype; a smaller `dst` is an error.
    `put_signal` tells `pe` that the data has arrived. Two puts may arrive in either order: where
    the order matters, call `fence` between them. OpenSHMEM 1.5: shmem_put, shmem_put_nbi; NVSHMEM
    3: nvshmemx_put_warp, nvshmemx_put_block.

    On return `src` may be changed; the data has arrived after `quiet`.

    On the host the local array is device or symmetric memory, or registered (`register`); if `pe`
    is on another machine, symmetric or registered.
    """
def put_nbi(dst: Symmetric, src: Array, pe: int) -> None:
    """As `put`, in kernels. Non-blocking: do not change `src` until `flush` or `quiet`; the data has
    arrived after `quiet`.
    """
def put_warp(dst: Symmetric, src: Array, pe: int) -> None:
    """As `put`, in kernels, by all threads of a warp with the same arguments."""
def put_nbi_warp(dst: Symmetric, src: Array, pe: int) -> None:
    """As `put_nbi`, by all threads of a warp with the same arguments."""
def put_block(dst: Symmetric, src: Array, pe: int) -> None:
    """As `put`, in kernels, by all threads of a block with the same arguments."""
def put_nbi_block(dst: Symmetric, src: Array, pe: int) -> None:
    """As `put_nbi`, by all threads of a block with the same arguments."""

def qp_put(dst: Symmetric, src: Array, pe: int, qp: int) -> None:
    """`put(dst, src, pe)` on the queue pair `qp`.

    On return `src` may be changed; the data has arrived after `qp_quiet` or `quiet`.

    `qp` is a number from `qp_create`, QP_DEFAULT, or QP_ANY: any queue pair. `qp_quiet` completes
    the operation if its queue pair is among those given, and so do `quiet` and barriers. `qp_fence`
    orders it; `fence` only if `qp` is QP_DEFAULT. Where memory of `pe` is mapped, loads and stores
    are used, and no queue pair. NVSHMEM 3: nvshmemx_qp_put, with the dtype in its name.
    """
def qp_put_nbi(dst: Symmetric, src: Array, pe: int, qp: int) -> None:
    """As `qp_put`. Non-blocking: do not change `src` until `flush`, `qp_quiet` or `quiet`; the data
    has arrived after `qp_quiet` or `quiet`.
    """
def qp_put_warp(dst: Symmetric, src: Array, pe: int, qp: int) -> None:
    """As `qp_put`, by all threads of a warp with the same arguments."""
def qp_put_nbi_warp(dst: Symmetric, src: Array, pe: int, qp: int) -> None:
    """As `qp_put_nbi`, by all threads of a warp with the same arguments."""
def qp_put_block(dst: Symmetric, src: Array, pe: int, qp: int) -> None:
    """As `qp_put`, by all threads of a block with the same arguments."""
def qp_put_nbi_block(dst: Symmetric, src: Array, pe: int, qp: int) -> None:
    """As `qp_put_nbi`, by all threads of a block with the same arguments."""

def get(dst: Array, src: Symmetric, pe: int, *, stream: Any = None) -> None:
    """Copy the first `dst.size` elements of `src` (symmetric, on `pe`) to all of `dst` (local).

    Both arrays must be contiguous and have the same dtype; a smaller `src` is an error. OpenSHMEM
    1.5: shmem_get, shmem_get_nbi; NVSHMEM 3: nvshmemx_get_warp, nvshmemx_get_block.

    On return `dst` has the data.

    On the host the local array is device or symmetric memory, or registered (`register`); if `pe`
    is on another machine, symmetric or registered.
    """
def get_nbi(dst: Array, src: Symmetric, pe: int) -> None:
    """As `get`, in kernels. Non-blocking: until `quiet` do not change `src`, nor read `dst`."""
def get_warp(dst: Array, src: Symmetric, pe: int) -> None:
    """As `get`, in kernels, by all threads of a warp with the same arguments."""
def get_nbi_warp(dst: Array, src: Symmetric, pe: int) -> None:
    """As `get_nbi`, by all threads of a warp with the same arguments."""
def get_block(dst: Array, src: Symmetric, pe: int) -> None:
    """As `get`, in kernels, by all threads of a block with the same arguments."""
def get_nbi_block(dst: Array, src: Symmetric, pe: int) -> None:
    """As `get_nbi`, by all threads of a block with the same arguments."""

def qp_get(dst: Array, src: Symmetric, pe: int, qp: int) -> None:
    """`get(dst, src, pe)` on the queue pair `qp`.

    On return `dst` has the data.

    `qp` is a number from `qp_create`, QP_DEFAULT, or QP_ANY: any queue pair. `qp_quiet` completes
    the operation if its queue pair is among those given, and so do `quiet` and barriers. `qp_fence`
    orders it; `fence` only if `qp` is QP_DEFAULT. Where memory of `pe` is mapped, loads and stores
    are used, and no queue pair. NVSHMEM 3: nvshmemx_qp_get, with the dtype in its name.
    """
def qp_get_nbi(dst: Array, src: Symmetric, pe: int, qp: int) -> None:
    """As `qp_get`. Non-blocking: until `qp_quiet` or `quiet` do not change `src`, nor read `dst`.
    """
def qp_get_warp(dst: Array, src: Symmetric, pe: int, qp: int) -> None:
    """As `qp_get`, by all threads of a warp with the same arguments."""
def qp_get_nbi_warp(dst: Array, src: Symmetric, pe: int, qp: int) -> None:
    """As `qp_get_nbi`, by all threads of a warp with the same arguments."""
def qp_get_block(dst: Array, src: Symmetric, pe: int, qp: int) -> None:
    """As `qp_get`, by all threads of a block with the same arguments."""
def qp_get_nbi_block(dst: Array, src: Symmetric, pe: int, qp: int) -> None:
    """As `qp_get_nbi`, by all threads of a block with the same arguments."""

def iput(dst: Symmetric, src: Array, dst_stride: int, src_stride: int, nelems: int, pe: int, *, stream: Any = None) -> None:
    """Copy `nelems` strided elements of `src` (local) to `dst` (symmetric, on `pe`).

    Element `i * src_stride` of `src` goes to element `i * dst_stride` of `dst`.

    On return `src` may be changed; the data has arrived after `quiet`.

    Strides are in elements, 1 or more. Both arrays must be contiguous and have the same dtype.
    OpenSHMEM 1.5: shmem_iput, shmem_iget; NVSHMEM 3: nvshmemx_iput_block, nvshmemx_iget_block, and
    for warps.

    On the host the local array is device or symmetric memory, or registered (`register`); if `pe`
    is on another machine, symmetric or registered.
    """
def iput_warp(dst: Symmetric, src: Array, dst_stride: int, src_stride: int, nelems: int, pe: int) -> None:
    """As `iput`, in kernels, by all threads of a warp with the same arguments."""
def iput_block(dst: Symmetric, src: Array, dst_stride: int, src_stride: int, nelems: int, pe: int) -> None:
    """As `iput`, in kernels, by all threads of a block with the same arguments."""

def iget(dst: Array, src: Symmetric, dst_stride: int, src_stride: int, nelems: int, pe: int, *, stream: Any = None) -> None:
    """Copy `nelems` strided elements of `src` (symmetric, on `pe`) to `dst` (local).

    Element `i * src_stride` of `src` goes to element `i * dst_stride` of `dst`.

    On return `dst` has the data.

    Strides are in elements, 1 or more. Both arrays must be contiguous and have the same dtype.
    OpenSHMEM 1.5: shmem_iput, shmem_iget; NVSHMEM 3: nvshmemx_iput_block, nvshmemx_iget_block, and
    for warps.

    On the host the local array is device or symmetric memory, or registered (`register`); if `pe`
    is on another machine, symmetric or registered.
    """
def iget_warp(dst: Array, src: Symmetric, dst_stride: int, src_stride: int, nelems: int, pe: int) -> None:
    """As `iget`, in kernels, by all threads of a warp with the same arguments."""
def iget_block(dst: Array, src: Symmetric, dst_stride: int, src_stride: int, nelems: int, pe: int) -> None:
    """As `iget`, in kernels, by all threads of a block with the same arguments."""

def atomic_fetch(dst: Symmetric, pe: int, *, stream: Any = None) -> Scalar:
    """Return element 0 of `dst` (symmetric, on `pe`). OpenSHMEM 1.5: shmem_atomic_fetch.

    Atomic with every other atomic operation on that element, by any PE, in kernels and on hosts.
    Not ordered with operations on other memory: use `fence` or `quiet` in between. `dst[i:]`
    addresses element i. dtypes: int32, int64, uint32, uint64, float32, float64.
    """

def atomic_set(dst: Symmetric, value: Scalar, pe: int, *, stream: Any = None) -> None:
    """Write `value` to element 0 of `dst` (symmetric, on `pe`). OpenSHMEM 1.5: shmem_atomic_set.

    Atomic with every other atomic operation on that element, by any PE, in kernels and on hosts.
    Not ordered with operations on other memory: use `fence` or `quiet` in between. `dst[i:]`
    addresses element i. dtypes: int32, int64, uint32, uint64, float32, float64.
    """

def atomic_swap(dst: Symmetric, value: Scalar, pe: int, *, stream: Any = None) -> Scalar:
    """Write `value` to element 0 of `dst` (symmetric, on `pe`); return its previous value.

    OpenSHMEM 1.5: shmem_atomic_swap.

    Atomic with every other atomic operation on that element, by any PE, in kernels and on hosts.
    Not ordered with operations on other memory: use `fence` or `quiet` in between. `dst[i:]`
    addresses element i. dtypes: int32, int64, uint32, uint64, float32, float64.
    """

def atomic_compare_swap(dst: Symmetric, cond: Scalar, value: Scalar, pe: int, *, stream: Any = None) -> Scalar:
    """Write `value` to element 0 of `dst` (symmetric, on `pe`) if it is `cond`; return what it was.

    The write took place if the result equals `cond`. OpenSHMEM 1.5: shmem_atomic_compare_swap.

    Atomic with every other atomic operation on that element, by any PE, in kernels and on hosts.
    Not ordered with operations on other memory: use `fence` or `quiet` in between. `dst[i:]`
    addresses element i. dtypes: int32, int64, uint32, uint64.
    """

def atomic_inc(dst: Symmetric, pe: int, *, stream: Any = None) -> None:
    """Add 1 to element 0 of `dst` (symmetric, on `pe`). OpenSHMEM 1.5: shmem_atomic_inc.

    Atomic with every other atomic operation on that element, by any PE, in kernels and on hosts.
    Not ordered with operations on other memory: use `fence` or `quiet` in between. `dst[i:]`
    addresses element i. dtypes: int32, int64, uint32, uint64.
    """

def atomic_fetch_inc(dst: Symmetric, pe: int, *, stream: Any = None) -> Scalar:
    """Add 1 to element 0 of `dst` (symmetric, on `pe`); return its previous value.

    OpenSHMEM 1.5: shmem_atomic_fetch_inc.

    Atomic with every other atomic operation on that element, by any PE, in kernels and on hosts.
    Not ordered with operations on other memory: use `fence` or `quiet` in between. `dst[i:]`
    addresses element i. dtypes: int32, int64, uint32, uint64.
    """

def atomic_add(dst: Symmetric, value: Scalar, pe: int, *, stream: Any = None) -> None:
    """Add `value` to element 0 of `dst` (symmetric, on `pe`). OpenSHMEM 1.5: shmem_atomic_add.

    Integers wrap around. Sums of floats depend on the order of the additions.

    Atomic with every other atomic operation on that element, by any PE, in kernels and on hosts.
    Not ordered with operations on other memory: use `fence` or `quiet` in between. `dst[i:]`
    addresses element i. dtypes: int32, int64, uint32, uint64, float32, float64.
    """

def atomic_fetch_add(dst: Symmetric, value: Scalar, pe: int, *, stream: Any = None) -> Scalar:
    """Add `value` to element 0 of `dst` (symmetric, on `pe`); return its previous value.

    Integers wrap around. OpenSHMEM 1.5: shmem_atomic_fetch_add.

    Atomic with every other atomic operation on that element, by any PE, in kernels and on hosts.
    Not ordered with operations on other memory: use `fence` or `quiet` in between. `dst[i:]`
    addresses element i. dtypes: int32, int64, uint32, uint64, float32, float64.
    """

def atomic_and(dst: Symmetric, value: Scalar, pe: int, *, stream: Any = None) -> None:
    """Replace element 0 of `dst` (symmetric, on `pe`) by its bitwise AND with `value`.

    OpenSHMEM 1.5: shmem_atomic_and.

    Atomic with every other atomic operation on that element, by any PE, in kernels and on hosts.
    Not ordered with operations on other memory: use `fence` or `quiet` in between. `dst[i:]`
    addresses element i. dtypes: int32, int64, uint32, uint64.
    """

def atomic_fetch_and(dst: Symmetric, value: Scalar, pe: int, *, stream: Any = None) -> Scalar:
    """As `atomic_and`; return the previous value. OpenSHMEM 1.5: shmem_atomic_fetch_and.

    Atomic with every other atomic operation on that element, by any PE, in kernels and on hosts.
    Not ordered with operations on other memory: use `fence` or `quiet` in between. `dst[i:]`
    addresses element i. dtypes: int32, int64, uint32, uint64.
    """

def atomic_or(dst: Symmetric, value: Scalar, pe: int, *, stream: Any = None) -> None:
    """Replace element 0 of `dst` (symmetric, on `pe`) by its bitwise OR with `value`.

    OpenSHMEM 1.5: shmem_atomic_or.

    Atomic with every other atomic operation on that element, by any PE, in kernels and on hosts.
    Not ordered with operations on other memory: use `fence` or `quiet` in between. `dst[i:]`
    addresses element i. dtypes: int32, int64, uint32, uint64.
    """

def atomic_fetch_or(dst: Symmetric, value: Scalar, pe: int, *, stream: Any = None) -> Scalar:
    """As `atomic_or`; return the previous value. OpenSHMEM 1.5: shmem_atomic_fetch_or.

    Atomic with every other atomic operation on that element, by any PE, in kernels and on hosts.
    Not ordered with operations on other memory: use `fence` or `quiet` in between. `dst[i:]`
    addresses element i. dtypes: int32, int64, uint32, uint64.
    """

def atomic_xor(dst: Symmetric, value: Scalar, pe: int, *, stream: Any = None) -> None:
    """Replace element 0 of `dst` (symmetric, on `pe`) by its bitwise XOR with `value`.

    OpenSHMEM 1.5: shmem_atomic_xor.

    Atomic with every other atomic operation on that element, by any PE, in kernels and on hosts.
    Not ordered with operations on other memory: use `fence` or `quiet` in between. `dst[i:]`
    addresses element i. dtypes: int32, int64, uint32, uint64.
    """

def atomic_fetch_xor(dst: Symmetric, value: Scalar, pe: int, *, stream: Any = None) -> Scalar:
    """As `atomic_xor`; return the previous value. OpenSHMEM 1.5: shmem_atomic_fetch_xor.

    Atomic with every other atomic operation on that element, by any PE, in kernels and on hosts.
    Not ordered with operations on other memory: use `fence` or `quiet` in between. `dst[i:]`
    addresses element i. dtypes: int32, int64, uint32, uint64.
    """

def put_signal(dst: Symmetric, src: Array, signal: Symmetric, value: int, op: int, pe: int, *, stream: Any = None) -> None:
    """`put(dst, src, pe)`, then update `signal` (uint64, symmetric, on `pe`).

    `op` is SIGNAL_SET or SIGNAL_ADD. A PE that sees the signal also sees the data of this call.
    Earlier puts are not ordered. OpenSHMEM 1.5: shmem_put_signal; NVSHMEM 3:
    nvshmemx_put_signal_block.

    On return `src` may be changed; the data has arrived after `quiet`.

    On the host the local array is device or symmetric memory, or registered (`register`); if `pe`
    is on another machine, symmetric or registered.
    """
def put_signal_nbi(dst: Symmetric, src: Array, signal: Symmetric, value: int, op: int, pe: int) -> None:
    """As `put_signal`, in kernels. Non-blocking: do not change `src` until `flush` or `quiet`; the
    data has arrived after `quiet`.
    """
def put_signal_warp(dst: Symmetric, src: Array, signal: Symmetric, value: int, op: int, pe: int) -> None:
    """As `put_signal`, in kernels, by all threads of a warp with the same arguments."""
def put_signal_nbi_warp(dst: Symmetric, src: Array, signal: Symmetric, value: int, op: int, pe: int) -> None:
    """As `put_signal_nbi`, by all threads of a warp with the same arguments."""
def put_signal_block(dst: Symmetric, src: Array, signal: Symmetric, value: int, op: int, pe: int) -> None:
    """As `put_signal`, in kernels, by all threads of a block with the same arguments."""
def put_signal_nbi_block(dst: Symmetric, src: Array, signal: Symmetric, value: int, op: int, pe: int) -> None:
    """As `put_signal_nbi`, by all threads of a block with the same arguments."""

def qp_put_signal(dst: Symmetric, src: Array, signal: Symmetric, value: int, op: int, pe: int, qp: int) -> None:
    """`put_signal(dst, src, signal, value, op, pe)` on the queue pair `qp`.

    On return `src` may be changed; the data has arrived after `qp_quiet` or `quiet`.

    `qp` is a number from `qp_create`, QP_DEFAULT, or QP_ANY: any queue pair. `qp_quiet` completes
    the operation if its queue pair is among those given, and so do `quiet` and barriers. `qp_fence`
    orders it; `fence` only if `qp` is QP_DEFAULT. Where memory of `pe` is mapped, loads and stores
    are used, and no queue pair. NVSHMEM 3: nvshmemx_qp_put_signal, with the dtype in its name.
    """
def qp_put_signal_nbi(dst: Symmetric, src: Array, signal: Symmetric, value: int, op: int, pe: int, qp: int) -> None:
    """As `qp_put_signal`. Non-blocking: do not change `src` until `flush`, `qp_quiet` or `quiet`; the
    data has arrived after `qp_quiet` or `quiet`.
    """
def qp_put_signal_warp(dst: Symmetric, src: Array, signal: Symmetric, value: int, op: int, pe: int, qp: int) -> None:
    """As `qp_put_signal`, by all threads of a warp with the same arguments."""
def qp_put_signal_nbi_warp(dst: Symmetric, src: Array, signal: Symmetric, value: int, op: int, pe: int, qp: int) -> None:
    """As `qp_put_signal_nbi`, by all threads of a warp with the same arguments."""
def qp_put_signal_block(dst: Symmetric, src: Array, signal: Symmetric, value: int, op: int, pe: int, qp: int) -> None:
    """As `qp_put_signal`, by all threads of a block with the same arguments."""
def qp_put_signal_nbi_block(dst: Symmetric, src: Array, signal: Symmetric, value: int, op: int, pe: int, qp: int) -> None:
    """As `qp_put_signal_nbi`, by all threads of a block with the same arguments."""

def signal_op(signal: Symmetric, value: int, op: int, pe: int, *, stream: Any = None) -> None:
    """Update element 0 of `signal` (uint64, symmetric, on `pe`) atomically: set it or add to it.

    `op` is SIGNAL_SET or SIGNAL_ADD. Not ordered after earlier puts: call `fence` first. NVSHMEM 3:
    nvshmemx_signal_op.
    """

def qp_signal_op(signal: Symmetric, value: int, op: int, pe: int, qp: int) -> None:
    """`signal_op(signal, value, op, pe)` on the queue pair `qp`.

    `qp` is a number from `qp_create`, QP_DEFAULT, or QP_ANY: any queue pair. `qp_quiet` completes
    the operation if its queue pair is among those given, and so do `quiet` and barriers. `qp_fence`
    orders it; `fence` only if `qp` is QP_DEFAULT. Where memory of `pe` is mapped, loads and stores
    are used, and no queue pair. NVSHMEM 3: nvshmemx_qp_signal_op, with the dtype in its name.
    """

def signal_fetch(signal: Symmetric) -> int:
    """Return element 0 of `signal` (uint64, symmetric, the caller's own), read atomically.

    Data that was put before the signal was updated is visible to the caller. OpenSHMEM 1.5:
    shmem_signal_fetch.
    """

@overload
def signal_wait_until(signal: Symmetric, cmp: int, value: int, timeout_ns: None = None, *, stream: None = None) -> int:
    """Wait until element 0 of `signal` (uint64, own) satisfies `cmp` with `value`; return it.

    The signal is the caller's own. `cmp` is CMP_EQ, CMP_NE, CMP_GT, CMP_LE, CMP_LT or CMP_GE. On
    return the data put before the signal is visible to the calling thread, and to other threads of
    the block after `cuda.syncthreads()`. The signal keeps its value: reset it, or wait for larger
    values. To wait for several signals in one call, give an array of them to `wait_until_all`,
    `wait_until_any` or `wait_until_some`: data that was put before those that satisfy `cmp` is then
    visible, too. OpenSHMEM 1.5: shmem_signal_wait_until.

    With `timeout_ns`, nanoseconds of 0 or more, the wait ends after that time even if the condition
    does not hold; 0 polls once, after yielding to the other threads. It then returns whether the
    condition held: True or False. A condition that holds when the wait ends counts, however late
    that is. If it does not hold, nothing is guaranteed about what other PEs wrote. Without a
    timeout (None) it waits indefinitely.
    """
@overload
def signal_wait_until(signal: Symmetric, cmp: int, value: int, timeout_ns: int, *, stream: None = None) -> bool: ...
@overload
def signal_wait_until(signal: Symmetric, cmp: int, value: int, timeout_ns: int | None = None, *, stream: Any) -> None: ...

@overload
def wait_until(ivar: Symmetric, cmp: int, value: int, timeout_ns: None = None, *, stream: None = None) -> None:
    """Wait until element 0 of `ivar` (symmetric, own) satisfies `cmp` with `value`.

    OpenSHMEM 1.5: shmem_wait_until.

    "Own" means on the calling PE. `cmp` is CMP_EQ, CMP_NE, CMP_GT, CMP_LE, CMP_LT or CMP_GE. The
    elements must be written by `p`, by an atomic operation or by a signal; data that the writer
    ordered before that write is then visible to the calling thread. dtypes: int16, int32, int64,
    uint16, uint32, uint64.

    With `timeout_ns`, nanoseconds of 0 or more, the wait ends after that time even if the condition
    does not hold; 0 polls once, after yielding to the other threads. It then returns whether the
    condition held: True or False. A condition that holds when the wait ends counts, however late
    that is. If it does not hold, nothing is guaranteed about what other PEs wrote. Without a
    timeout (None) it waits indefinitely.
    """
@overload
def wait_until(ivar: Symmetric, cmp: int, value: int, timeout_ns: int, *, stream: None = None) -> bool: ...
@overload
def wait_until(ivar: Symmetric, cmp: int, value: int, timeout_ns: int | None = None, *, stream: Any) -> None: ...

@overload
def wait_until_all(ivars: Symmetric, status: Array | None, cmp: int, value: int, timeout_ns: None = None, *, stream: None = None) -> None:
    """Wait until all elements of `ivars` (symmetric, own) satisfy `cmp` with `value`.

    OpenSHMEM 1.5: shmem_wait_until_all.

    `status` is None or an integer array as long as `ivars`. Elements whose `status` is nonzero are
    excluded. On GPUs its dtype must be int32 or uint32. "Own" means on the calling PE. `cmp` is
    CMP_EQ, CMP_NE, CMP_GT, CMP_LE, CMP_LT or CMP_GE. The elements must be written by `p`, by an
    atomic operation or by a signal; data that the writer ordered before that write is then visible
    to the calling thread. dtypes: int16, int32, int64, uint16, uint32, uint64.

    With `timeout_ns`, nanoseconds of 0 or more, the wait ends after that time even if the condition
    does not hold; 0 polls once, after yielding to the other threads. It then returns whether the
    condition held: True or False. A condition that holds when the wait ends counts, however late
    that is. If it does not hold, nothing is guaranteed about what other PEs wrote. Without a
    timeout (None) it waits indefinitely.
    """
@overload
def wait_until_all(ivars: Symmetric, status: Array | None, cmp: int, value: int, timeout_ns: int, *, stream: None = None) -> bool: ...
@overload
def wait_until_all(ivars: Symmetric, status: Array | None, cmp: int, value: int, timeout_ns: int | None = None, *, stream: Any) -> None: ...
@overload
def wait_until_all_vector(ivars: Symmetric, status: Array | None, cmp: int, value: Array, timeout_ns: None = None, *, stream: None = None) -> None:
    """As `wait_until_all`. Each `ivars[i]` is compared with `value[i]`; the lengths are equal."""
@overload
def wait_until_all_vector(ivars: Symmetric, status: Array | None, cmp: int, value: Array, timeout_ns: int, *, stream: None = None) -> bool: ...
@overload
def wait_until_all_vector(ivars: Symmetric, status: Array | None, cmp: int, value: Array, timeout_ns: int | None = None, *, stream: Any) -> None: ...

@overload
def wait_until_any(ivars: Symmetric, status: Array | None, cmp: int, value: int, timeout_ns: int | None = None, *, stream: None = None) -> int:
    """Wait until one element of `ivars` (symmetric, own) satisfies `cmp`; return its index.

    If several do, the index of any of them; if all are excluded, -1 (SIZE_MAX in C). Each call of a
    PE begins its search one element further, as in NVSHMEM. OpenSHMEM 1.5: shmem_wait_until_any.

    `status` is None or an integer array as long as `ivars`. Elements whose `status` is nonzero are
    excluded. On GPUs its dtype must be int32 or uint32. "Own" means on the calling PE. `cmp` is
    CMP_EQ, CMP_NE, CMP_GT, CMP_LE, CMP_LT or CMP_GE. The elements must be written by `p`, by an
    atomic operation or by a signal; data that the writer ordered before that write is then visible
    to the calling thread. dtypes: int16, int32, int64, uint16, uint32, uint64.

    With `timeout_ns`, nanoseconds of 0 or more, the wait ends after that time even if the condition
    does not hold; 0 polls once, after yielding to the other threads. It then returns -1. It also
    returns -1, at once, if there is nothing to wait for: check `status` to tell the two cases
    apart. A condition that holds when the wait ends counts, however late that is. If it does not
    hold, nothing is guaranteed about what other PEs wrote. Without a timeout (None) it waits
    indefinitely.
    """
@overload
def wait_until_any(ivars: Symmetric, status: Array | None, cmp: int, value: int, timeout_ns: int | None = None, *, stream: Any) -> None: ...
@overload
def wait_until_any_vector(ivars: Symmetric, status: Array | None, cmp: int, value: Array, timeout_ns: int | None = None, *, stream: None = None) -> int:
    """As `wait_until_any`. Each `ivars[i]` is compared with `value[i]`; the lengths are equal."""
@overload
def wait_until_any_vector(ivars: Symmetric, status: Array | None, cmp: int, value: Array, timeout_ns: int | None = None, *, stream: Any) -> None: ...

@overload
def wait_until_some(ivars: Symmetric, indices: Array, status: Array | None, cmp: int, value: int, timeout_ns: int | None = None, *, stream: None = None) -> int:
    """Wait until at least one element of `ivars` (symmetric, own) satisfies `cmp`.

    Writes the indices of those that do to `indices`, an integer array as long as `ivars`, and
    returns how many: 0 if there is nothing to wait for. OpenSHMEM 1.5: shmem_wait_until_some.

    `status` is None or an integer array as long as `ivars`. Elements whose `status` is nonzero are
    excluded. On GPUs its dtype must be int32 or uint32. On GPUs the dtype of `indices` must be
    int64 or uint64. "Own" means on the calling PE. `cmp` is CMP_EQ, CMP_NE, CMP_GT, CMP_LE, CMP_LT
    or CMP_GE. The elements must be written by `p`, by an atomic operation or by a signal; data that
    the writer ordered before that write is then visible to the calling thread. dtypes: int16,
    int32, int64, uint16, uint32, uint64.

    With `timeout_ns`, nanoseconds of 0 or more, the wait ends after that time even if the condition
    does not hold; 0 polls once, after yielding to the other threads. It then returns 0 and leaves
    `indices` unchanged. It also returns 0, at once, if there is nothing to wait for: check `status`
    to tell the two cases apart. A condition that holds when the wait ends counts, however late that
    is. If it does not hold, nothing is guaranteed about what other PEs wrote. Without a timeout
    (None) it waits indefinitely.
    """
@overload
def wait_until_some(ivars: Symmetric, indices: Array, status: Array | None, cmp: int, value: int, timeout_ns: int | None = None, *, stream: Any) -> None: ...
@overload
def wait_until_some_vector(ivars: Symmetric, indices: Array, status: Array | None, cmp: int, value: Array, timeout_ns: int | None = None, *, stream: None = None) -> int:
    """As `wait_until_some`. Each `ivars[i]` is compared with `value[i]`; the lengths are equal."""
@overload
def wait_until_some_vector(ivars: Symmetric, indices: Array, status: Array | None, cmp: int, value: Array, timeout_ns: int | None = None, *, stream: Any) -> None: ...

def test(ivar: Symmetric, cmp: int, value: int) -> bool:
    """Return whether element 0 of `ivar` (symmetric, own) satisfies `cmp` with `value`.

    OpenSHMEM 1.5: shmem_test.

    "Own" means on the calling PE. `cmp` is CMP_EQ, CMP_NE, CMP_GT, CMP_LE, CMP_LT or CMP_GE. The
    elements must be written by `p`, by an atomic operation or by a signal; data that the writer
    ordered before that write is then visible to the calling thread. dtypes: int16, int32, int64,
    uint16, uint32, uint64.
    """

def test_all(ivars: Symmetric, status: Array | None, cmp: int, value: int) -> bool:
    """Return whether all elements of `ivars` (symmetric, own) satisfy `cmp` with `value`.

    True also if all are excluded. OpenSHMEM 1.5: shmem_test_all.

    `status` is None or an integer array as long as `ivars`. Elements whose `status` is nonzero are
    excluded. On GPUs its dtype must be int32 or uint32. "Own" means on the calling PE. `cmp` is
    CMP_EQ, CMP_NE, CMP_GT, CMP_LE, CMP_LT or CMP_GE. The elements must be written by `p`, by an
    atomic operation or by a signal; data that the writer ordered before that write is then visible
    to the calling thread. dtypes: int16, int32, int64, uint16, uint32, uint64.
    """
def test_all_vector(ivars: Symmetric, status: Array | None, cmp: int, value: Array) -> bool:
    """As `test_all`. Each `ivars[i]` is compared with `value[i]`; the lengths are equal."""

def test_any(ivars: Symmetric, status: Array | None, cmp: int, value: int) -> int:
    """Return the index of an element of `ivars` (symmetric, own) that satisfies `cmp`, or -1.

    If several do, any of them. OpenSHMEM 1.5: shmem_test_any, which returns SIZE_MAX instead of -1.

    `status` is None or an integer array as long as `ivars`. Elements whose `status` is nonzero are
    excluded. On GPUs its dtype must be int32 or uint32. "Own" means on the calling PE. `cmp` is
    CMP_EQ, CMP_NE, CMP_GT, CMP_LE, CMP_LT or CMP_GE. The elements must be written by `p`, by an
    atomic operation or by a signal; data that the writer ordered before that write is then visible
    to the calling thread. dtypes: int16, int32, int64, uint16, uint32, uint64.
    """
def test_any_vector(ivars: Symmetric, status: Array | None, cmp: int, value: Array) -> int:
    """As `test_any`. Each `ivars[i]` is compared with `value[i]`; the lengths are equal."""

def test_some(ivars: Symmetric, indices: Array, status: Array | None, cmp: int, value: int) -> int:
    """Write the indices of elements of `ivars` that satisfy `cmp` to `indices`; return how many.

    `ivars` is symmetric, own. OpenSHMEM 1.5: shmem_test_some.

    `status` is None or an integer array as long as `ivars`. Elements whose `status` is nonzero are
    excluded. On GPUs its dtype must be int32 or uint32. On GPUs the dtype of `indices` must be
    int64 or uint64. "Own" means on the calling PE. `cmp` is CMP_EQ, CMP_NE, CMP_GT, CMP_LE, CMP_LT
    or CMP_GE. The elements must be written by `p`, by an atomic operation or by a signal; data that
    the writer ordered before that write is then visible to the calling thread. dtypes: int16,
    int32, int64, uint16, uint32, uint64.
    """
def test_some_vector(ivars: Symmetric, indices: Array, status: Array | None, cmp: int, value: Array) -> int:
    """As `test_some`. Each `ivars[i]` is compared with `value[i]`; the lengths are equal."""

def fence(*, stream: Any = None) -> None:
    """Order the caller's earlier writes to each PE before its later writes to the same PE.

    It orders per target PE and completes nothing: data may still be in transit on return. Common
    mistake: `put(data)`, then `signal_op(flag)` without a fence between them. Writes on queue pairs
    are ordered by `qp_fence`. OpenSHMEM 1.5: shmem_fence.
    """

def flush(*, stream: Any = None) -> None:
    """Complete the sources of the caller's earlier non-blocking puts: they may be changed again.

    The data may arrive later, and in any order. `quiet` does the same and also waits for arrival.
    NVSHMEM 3: nvshmemx_flush, nvshmemx_flush_warp, nvshmemx_flush_block.
    """
def flush_warp() -> None:
    """As `flush`, in kernels, by all threads of a warp with the same arguments."""
def flush_block() -> None:
    """As `flush`, in kernels, by all threads of a block with the same arguments."""

def quiet(*, stream: Any = None) -> None:
    """Complete the caller's earlier operations: on return all data has arrived, on every PE.

    Common mistake: reading the `dst` of a `get_nbi` before `quiet`. OpenSHMEM 1.5: shmem_quiet.
    """

def qp_fence(pe: int, qps: Array) -> None:
    """Order the caller's earlier writes to `pe` on the queue pairs `qps` before its later ones.

    Both are writes on any of `qps`: those on other queue pairs, or without one, may come before or
    after. It completes nothing. NVSHMEM 3: nvshmemx_qp_fence, nvshmemx_qp_fence_block.

    `qps` is what `qp_create` returned, or a part of it. The caller's own stores, also through
    `peer_array`, are treated like those writes.
    """
def qp_fence_warp(pe: int, qps: Array) -> None:
    """As `qp_fence`, by all threads of a warp with the same arguments."""
def qp_fence_block(pe: int, qps: Array) -> None:
    """As `qp_fence`, by all threads of a block with the same arguments."""

def qp_quiet(pe: int, qps: Array) -> None:
    """Complete the caller's earlier operations to `pe` on the queue pairs `qps`.

    On return their data has arrived, and their sources may be changed. Operations on other queue
    pairs, or without one, may be incomplete. NVSHMEM 3: nvshmemx_qp_quiet, nvshmemx_qp_quiet_block.

    `qps` is what `qp_create` returned, or a part of it. The caller's own stores, also through
    `peer_array`, are treated like those writes.
    """
def qp_quiet_warp(pe: int, qps: Array) -> None:
    """As `qp_quiet`, by all threads of a warp with the same arguments."""
def qp_quiet_block(pe: int, qps: Array) -> None:
    """As `qp_quiet`, by all threads of a block with the same arguments."""

def team_my_pe(team: Team) -> int:
    """Return the number of the calling PE in `team`; -1 for TEAM_INVALID.

    OpenSHMEM 1.5: shmem_team_my_pe.
    """

def team_n_pes(team: Team) -> int:
    """Return how many PEs `team` has; -1 for TEAM_INVALID. OpenSHMEM 1.5: shmem_team_n_pes."""

def team_translate_pe(src_team: Team, src_pe: int, dst_team: Team) -> int:
    """Return the number that PE `src_pe` of `src_team` has in `dst_team`; -1 if it has none.

    With TEAM_WORLD as `dst_team` it is the number that `put` and the like take. OpenSHMEM 1.5:
    shmem_team_translate_pe.
    """

def team_split_strided(parent: Team, start: int, stride: int, size: int) -> Team:
    """Make a team of the PEs `start + k * stride` of `parent`, k from 0 to `size - 1`; return it.

    PE k of the new team is the k-th of them. OpenSHMEM 1.5: shmem_team_split_strided.

    Collective over `parent`: all its members call, with the same arguments; waits for this PE's
    kernels. Returns TEAM_INVALID to a PE that is in none of the new teams. Raises `TeamError` on
    all when there are as many teams as there can be: GPUSHMEM_MAX_TEAMS, by default 256.
    """

def team_split_2d(parent: Team, xrange: int) -> tuple[Team, Team]:
    """Lay `parent` out in rows of `xrange` PEs; return the caller's row and column as teams.

    PE i of `parent` is in row `i // xrange` and column `i % xrange`; the last row may be shorter.
    OpenSHMEM 1.5: shmem_team_split_2d.

    Collective over `parent`: all its members call, with the same arguments; waits for this PE's
    kernels. Returns TEAM_INVALID to a PE that is in none of the new teams. Raises `TeamError` on
    all when there are as many teams as there can be: GPUSHMEM_MAX_TEAMS, by default 256.
    """

def team_init(pes: Sequence[int]) -> Team:
    """Make a team of any PEs of the job, in any order; return it. PE k of the team is `pes[k]`.

    `pes` are numbers in TEAM_WORLD, each at most once. Collective over them: only they call, with
    the same list; no other PE takes part. Waits for this PE's kernels. Raises `TeamError` on all of
    them when there are as many teams as there can be. NVSHMEM 3: nvshmemx_team_init.
    """

def team_destroy(team: Team) -> None:
    """Destroy `team`. Collective over it; waits for this PE's kernels.

    Using it afterwards raises `TeamError`. The predefined teams stay. OpenSHMEM 1.5:
    shmem_team_destroy.
    """

def barrier(team: Team, *, stream: Any = None) -> None:
    """Wait until every PE of `team` calls; all data they put before is then visible to all.

    NVSHMEM 3: nvshmem_barrier.

    One call per PE: by one thread, one warp or one block of one kernel, or by the host, which first
    waits for its PE's kernels.
    """
def barrier_warp(team: Team) -> None:
    """As `barrier`, in kernels, by all threads of a warp with the same arguments."""
def barrier_block(team: Team) -> None:
    """As `barrier`, in kernels, by all threads of a block with the same arguments."""

def barrier_all(*, stream: Any = None) -> None:
    """Wait until every PE calls; all data they put before is then visible to all.

    OpenSHMEM 1.5: shmem_barrier_all.

    One call per PE: by one thread, one warp or one block of one kernel, or by the host, which first
    waits for its PE's kernels.
    """
def barrier_all_warp() -> None:
    """As `barrier_all`, in kernels, by all threads of a warp with the same arguments."""
def barrier_all_block() -> None:
    """As `barrier_all`, in kernels, by all threads of a block with the same arguments."""

def sync(team: Team, *, stream: Any = None) -> None:
    """Wait until every PE of `team` calls. Completes no operations: `quiet` and `barrier` do.

    Stores of the PEs to their own memory before the call are visible to the others. OpenSHMEM 1.5:
    shmem_team_sync.

    One call per PE: by one thread, one warp or one block of one kernel, or by the host, which first
    waits for its PE's kernels.
    """
def sync_warp(team: Team) -> None:
    """As `sync`, in kernels, by all threads of a warp with the same arguments."""
def sync_block(team: Team) -> None:
    """As `sync`, in kernels, by all threads of a block with the same arguments."""

def sync_all(*, stream: Any = None) -> None:
    """Wait until every PE calls. Completes no operations: `quiet` and `barrier_all` do.

    Stores of the PEs to their own memory before the call are visible to the others. OpenSHMEM 1.5:
    shmem_sync_all.

    One call per PE: by one thread, one warp or one block of one kernel, or by the host, which first
    waits for its PE's kernels.
    """
def sync_all_warp() -> None:
    """As `sync_all`, in kernels, by all threads of a warp with the same arguments."""
def sync_all_block() -> None:
    """As `sync_all`, in kernels, by all threads of a block with the same arguments."""

def broadcast(team: Team, dst: Symmetric, src: Symmetric, root: int = 0, *, stream: Any = None) -> None:
    """Copy `src` of the team's PE `root` to the first elements of `dst` on every PE of `team`.

    OpenSHMEM 1.5: shmem_broadcast.

    All PEs of `team` call, in the same order as the team's other collectives. `dst` and `src` must
    be symmetric and contiguous and have the same dtype. They must not overlap. `dst` may be written
    from when the first PE of the team calls. On return it has the result and `src` may be changed;
    other PEs may still be in the call. One call per PE: by one thread, one warp or one block of one
    kernel, or by the host, which first waits for its PE's kernels.
    """
def broadcast_warp(team: Team, dst: Symmetric, src: Symmetric, root: int = 0) -> None:
    """As `broadcast`, in kernels, by all threads of a warp with the same arguments."""
def broadcast_block(team: Team, dst: Symmetric, src: Symmetric, root: int = 0) -> None:
    """As `broadcast`, in kernels, by all threads of a block with the same arguments."""

def fcollect(team: Team, dst: Symmetric, src: Symmetric, *, stream: Any = None) -> None:
    """Collect `src` of every PE of `team`, one after the other, to `dst`, on every PE.

    `src` has n elements on every PE, `dst` at least `team_n_pes(team) * n` elements. OpenSHMEM 1.5:
    shmem_fcollect.

    All PEs of `team` call, in the same order as the team's other collectives. `dst` and `src` must
    be symmetric and contiguous and have the same dtype. They must not overlap. `dst` may be written
    from when the first PE of the team calls. On return it has the result and `src` may be changed;
    other PEs may still be in the call. One call per PE: by one thread, one warp or one block of one
    kernel, or by the host, which first waits for its PE's kernels.
    """
def fcollect_warp(team: Team, dst: Symmetric, src: Symmetric) -> None:
    """As `fcollect`, in kernels, by all threads of a warp with the same arguments."""
def fcollect_block(team: Team, dst: Symmetric, src: Symmetric) -> None:
    """As `fcollect`, in kernels, by all threads of a block with the same arguments."""

def collect(team: Team, dst: Symmetric, src: Symmetric, *, stream: Any = None) -> None:
    """Collect `src` of every PE of `team`, one after the other, to `dst`, on every PE.

    `src` may differ in size between PEs; `dst` must have room for all of it. OpenSHMEM 1.5:
    shmem_collect.

    All PEs of `team` call, in the same order as the team's other collectives. `dst` and `src` must
    be symmetric and contiguous and have the same dtype. They must not overlap. `dst` may be written
    from when the first PE of the team calls. On return it has the result and `src` may be changed;
    other PEs may still be in the call. One call per PE: by one thread, one warp or one block of one
    kernel, or by the host, which first waits for its PE's kernels.
    """
def collect_warp(team: Team, dst: Symmetric, src: Symmetric) -> None:
    """As `collect`, in kernels, by all threads of a warp with the same arguments."""
def collect_block(team: Team, dst: Symmetric, src: Symmetric) -> None:
    """As `collect`, in kernels, by all threads of a block with the same arguments."""

def alltoall(team: Team, dst: Symmetric, src: Symmetric, *, stream: Any = None) -> None:
    """Send part k of `src` to the team's PE k: there, part j of `dst` is what PE j sent.

    `src` has `team_n_pes(team)` equal parts, and `dst` as many of the same size. OpenSHMEM 1.5:
    shmem_alltoall.

    All PEs of `team` call, in the same order as the team's other collectives. `dst` and `src` must
    be symmetric and contiguous and have the same dtype. They must not overlap. `dst` may be written
    from when the first PE of the team calls. On return it has the result and `src` may be changed;
    other PEs may still be in the call. One call per PE: by one thread, one warp or one block of one
    kernel, or by the host, which first waits for its PE's kernels.
    """
def alltoall_warp(team: Team, dst: Symmetric, src: Symmetric) -> None:
    """As `alltoall`, in kernels, by all threads of a warp with the same arguments."""
def alltoall_block(team: Team, dst: Symmetric, src: Symmetric) -> None:
    """As `alltoall`, in kernels, by all threads of a block with the same arguments."""

def alltoalls(team: Team, dst: Symmetric, src: Symmetric, dst_stride: int, src_stride: int, nelems: int, *, stream: Any = None) -> None:
    """Send `nelems` elements to each PE of `team`: as `alltoall`, with strides.

    Element `(k * nelems + i) * src_stride` of `src` goes to PE k, as element `(j * nelems + i) *
    dst_stride` of `dst`, where j is the sender. Strides are 1 or more. OpenSHMEM 1.5:
    shmem_alltoalls.

    All PEs of `team` call, in the same order as the team's other collectives. `dst` and `src` must
    be symmetric and contiguous and have the same dtype. They must not overlap. `dst` may be written
    from when the first PE of the team calls. On return it has the result and `src` may be changed;
    other PEs may still be in the call. One call per PE: by one thread, one warp or one block of one
    kernel, or by the host, which first waits for its PE's kernels.
    """
def alltoalls_warp(team: Team, dst: Symmetric, src: Symmetric, dst_stride: int, src_stride: int, nelems: int) -> None:
    """As `alltoalls`, in kernels, by all threads of a warp with the same arguments."""
def alltoalls_block(team: Team, dst: Symmetric, src: Symmetric, dst_stride: int, src_stride: int, nelems: int) -> None:
    """As `alltoalls`, in kernels, by all threads of a block with the same arguments."""

def reduce(team: Team, dst: Symmetric, src: Symmetric, op: str, *, stream: Any = None) -> None:
    """Combine `src` of all PEs of `team`, element by element, to the first of `dst`, on every PE.

    OpenSHMEM 1.5: shmem_sum_reduce and others; NVSHMEM 3: nvshmemx_sum_reduce_block and others.

    `op`, written as a literal in the call, is "sum" or "prod" (integers, which wrap around, floats
    and complex numbers), "min" or "max" (integers and floats; NaN if there is one), "and", "or" or
    "xor" (integers), or "maxloc" (records of two numbers, a value and its location: the result is
    the largest value; ties go to the smallest location). On the cpu backend elements are combined
    in the order of the PEs' numbers, so every PE gets the same bits, and rounded to the dtype at
    each step. On GPUs the order is NVSHMEM's, which has no products of complex numbers, and
    "maxloc" only in `reduce_block`, of two float64; NVLink SHARP adds float16 and bfloat16 in
    float32. 8-bit floats are not reduced. All PEs of `team` call, in the same order as the team's
    other collectives. `dst` and `src` must be symmetric and contiguous and have the same dtype.
    They must not overlap, but may be the same array. `dst` may be written from when the first PE of
    the team calls. On return it has the result and `src` may be changed; other PEs may still be in
    the call. One call per PE: by one thread, one warp or one block of one kernel, or by the host,
    which first waits for its PE's kernels.
    """
def reduce_warp(team: Team, dst: Symmetric, src: Symmetric, op: str) -> None:
    """As `reduce`, in kernels, by all threads of a warp with the same arguments."""
def reduce_block(team: Team, dst: Symmetric, src: Symmetric, op: str) -> None:
    """As `reduce`, in kernels, by all threads of a block with the same arguments."""

def reducescatter(team: Team, dst: Symmetric, src: Symmetric, op: str, *, stream: Any = None) -> None:
    """Combine part k of `src` of all PEs of `team`, element by element, to `dst` on its PE k.

    `src` has `team_n_pes(team)` equal parts, `dst` at least as many elements as a part. NVSHMEM 3:
    nvshmem_sum_reducescatter and others.

    `op`, written as a literal in the call, is "sum" or "prod" (integers, which wrap around, floats
    and complex numbers), "min" or "max" (integers and floats; NaN if there is one), "and", "or" or
    "xor" (integers), or "maxloc" (records of two numbers, a value and its location: the result is
    the largest value; ties go to the smallest location). On the cpu backend elements are combined
    in the order of the PEs' numbers, so every PE gets the same bits, and rounded to the dtype at
    each step. On GPUs the order is NVSHMEM's, which has no products of complex numbers, and
    "maxloc" only in `reduce_block`, of two float64; NVLink SHARP adds float16 and bfloat16 in
    float32. 8-bit floats are not reduced. All PEs of `team` call, in the same order as the team's
    other collectives. `dst` and `src` must be symmetric and contiguous and have the same dtype.
    They must not overlap, but `dst` may be the caller's part of `src`. `dst` may be written from
    when the first PE of the team calls. On return it has the result and `src` may be changed; other
    PEs may still be in the call. One call per PE: by one thread, one warp or one block of one
    kernel, or by the host, which first waits for its PE's kernels.
    """
def reducescatter_warp(team: Team, dst: Symmetric, src: Symmetric, op: str) -> None:
    """As `reducescatter`, in kernels, by all threads of a warp with the same arguments."""
def reducescatter_block(team: Team, dst: Symmetric, src: Symmetric, op: str) -> None:
    """As `reducescatter`, in kernels, by all threads of a block with the same arguments."""

def load_vector(array: Array, i: int, n: int, access: str = "weak") -> tuple[Scalar, ...]:
    """Return elements `i` to `i + n` of `array`, as a tuple, at once. `n` is a literal.

    `access`, written as a literal in the call, is "weak": a load as `array[i]`; "stream": the same,
    of data that is not loaded again soon, and need not stay in caches; "relaxed.cta",
    "relaxed.gpu", "relaxed.sys": atomic for the threads of the block, of the GPU, or of all PEs, so
    a loop that polls loads each time; "acquire.cta", "acquire.gpu", "acquire.sys": the same, and
    what follows sees what came before the "release" whose elements it has loaded. Atomic are 8
    bytes at most: of more, each 8 on their own.

    `array` is contiguous memory that this PE can load from and store to: its own, or that of
    another PE (`peer_array`). Its elements are counted row by row. The elements moved have 1, 2, 4,
    8 or 16 bytes in all, and begin at a multiple of that; or 32, 64 or 128, from a multiple of 16
    on, with an access for each 16. Other places raise `ArgumentError` on the cpu backend, and end
    the kernel on a GPU. PTX ISA: ld, st, with vectors; CUDA C++: cuda::atomic_ref.
    """

def store_vector(array: Array, i: int, value: tuple[Scalar, ...], access: str = "weak") -> None:
    """Set elements `i` and following of `array` to those of the tuple `value`, at once.

    Values are converted to the dtype of `array`. `access` is as in `load_vector`, with "release" in
    the place of "acquire": what this thread has loaded and stored before, through `peer_array`,
    too, and what others had when it synchronised with them, comes before. Only "release.sys" orders
    stores for other PEs. It is no `fence`: puts, signals and the like need that.

    `array` is contiguous memory that this PE can load from and store to: its own, or that of
    another PE (`peer_array`). Its elements are counted row by row. The elements moved have 1, 2, 4,
    8 or 16 bytes in all, and begin at a multiple of that; or 32, 64 or 128, from a multiple of 16
    on, with an access for each 16. Other places raise `ArgumentError` on the cpu backend, and end
    the kernel on a GPU. PTX ISA: ld, st, with vectors; CUDA C++: cuda::atomic_ref.
    """

def copy_async(dst: Array, i: int, src: Array, j: int, n: int) -> None:
    """Begin to copy elements `j` to `j + n` of `src` to `i` and following of `dst`, shared memory.

    One thread's piece of a tile: `n` is a literal, of 4, 8 or 16 bytes, and both begin at a
    multiple of that. Arrays are contiguous, of one dtype; their elements are counted row by row,
    from 0. `dst` is in the block's shared memory (`cuda.shared.array`); `src` is in global memory,
    the PE's own or another one's (`peer_array`). Other places raise `ArgumentError` on the cpu
    backend; on a GPU they end the kernel, and other memory is undefined. It is one instruction that
    uses no register, and the thread goes on at once; 16 bytes go past the first-level cache. CUDA:
    __pipeline_memcpy_async; PTX ISA: cp.async.

    Until `copy_async_wait` do not change `src`, nor read or write `dst`.
    """

def copy_async_commit() -> None:
    """Let the calling thread's copies since its last call be a group, which may be empty.

    CUDA: __pipeline_commit; PTX ISA: cp.async.commit_group.
    """

def copy_async_wait(n: int) -> None:
    """Wait until all but the last `n` groups of the calling thread's copies are complete.

    `n` is a literal from 0 to 8. On return the thread may read what it has copied in those groups,
    and `src` may be changed. Other threads see it once they have synchronised with this one:
    `cuda.syncthreads()` after the wait, and once more before the memory is copied to again. Common
    mistake: a barrier without the wait. `quiet` and barriers complete no such copies. CUDA:
    __pipeline_wait_prior; PTX ISA: cp.async.wait_group.
    """

def mbarrier_init(bars: Array, i: int, count: int) -> None:
    """Make element `i` of `bars` an mbarrier in phase 0, with `count` arrivals for each phase.

    One thread calls it, then all do `cuda.syncthreads()`. `count` is from 1 to 2**20 - 1; others
    are an `ArgumentError` on the cpu backend. PTX ISA: mbarrier.init; CUTLASS: mbarrier_init.

    `bars` is an array in the block's shared memory (`cuda.shared.array(n, "uint64")`); each element
    of it is an mbarrier, to be used by these operations alone. Its *phases* follow each other: one
    is complete when as many arrivals have come as `mbarrier_init` says, and as many bytes have been
    copied as these expect. Phase 0 is of parity 0, the next of parity 1, and so on by turns. The
    cpu backend raises for other memory, and for arrivals and bytes that a phase does not wait for;
    these are undefined on GPUs.
    """

def mbarrier_arrive(bars: Array, i: int) -> None:
    """Arrive at mbarrier `i`, once, and go on.

    Any thread of the block calls. Threads that wait for the phase then see what this one has stored
    before, and what they store comes after its loads. PTX ISA: mbarrier.arrive, a release of the
    scope cta; CUTLASS: mbarrier_arrive.

    `bars` is an array in the block's shared memory (`cuda.shared.array(n, "uint64")`); each element
    of it is an mbarrier, to be used by these operations alone. Its *phases* follow each other: one
    is complete when as many arrivals have come as `mbarrier_init` says, and as many bytes have been
    copied as these expect. Phase 0 is of parity 0, the next of parity 1, and so on by turns. The
    cpu backend raises for other memory, and for arrivals and bytes that a phase does not wait for;
    these are undefined on GPUs.
    """

def mbarrier_arrive_and_expect_tx(bars: Array, i: int, nbytes: int) -> None:
    """Arrive at mbarrier `i`, and have the phase wait for `nbytes` bytes of copies, too.

    Usually by the thread that then begins the copies, as many bytes as they have in all. `nbytes`
    is from 0 to 2**20 - 1. PTX ISA: mbarrier.arrive.expect_tx; CUTLASS:
    mbarrier_arrive_and_expect_tx.

    On GPUs before compute capability 9.0 there is no such thing: use `copy_async`.

    `bars` is an array in the block's shared memory (`cuda.shared.array(n, "uint64")`); each element
    of it is an mbarrier, to be used by these operations alone. Its *phases* follow each other: one
    is complete when as many arrivals have come as `mbarrier_init` says, and as many bytes have been
    copied as these expect. Phase 0 is of parity 0, the next of parity 1, and so on by turns. The
    cpu backend raises for other memory, and for arrivals and bytes that a phase does not wait for;
    these are undefined on GPUs.
    """

def mbarrier_wait(bars: Array, i: int, parity: int) -> None:
    """Wait until the phase of mbarrier `i` that has this `parity`, 0 or 1, is complete.

    Any thread of the block calls. Meant is the phase that goes on, or the one before: if that one
    has the parity, the call returns at once, as it does for parity 1 of a fresh mbarrier. On return
    the thread sees what the phase's copies have brought, and what those who arrived had stored.
    Common mistake: a thread that is two phases late, and waits for the wrong one. So later phases
    have to depend on an arrival of each thread that waits, at this mbarrier or at another. If a
    phase never completes, the cpu backend ends the job with a report of what it lacks. PTX ISA:
    mbarrier.try_wait.parity, in a loop, an acquire of the scope cta; CUTLASS: mbarrier_wait.

    `bars` is an array in the block's shared memory (`cuda.shared.array(n, "uint64")`); each element
    of it is an mbarrier, to be used by these operations alone. Its *phases* follow each other: one
    is complete when as many arrivals have come as `mbarrier_init` says, and as many bytes have been
    copied as these expect. Phase 0 is of parity 0, the next of parity 1, and so on by turns. The
    cpu backend raises for other memory, and for arrivals and bytes that a phase does not wait for;
    these are undefined on GPUs.
    """

def copy_bulk(dst: Array, i: int, src: Array, j: int, n: int, bars: Array, k: int) -> None:
    """Begin to copy elements `j` to `j + n` of `src` to `i` and following of `dst`, by TMA.

    One thread calls, for all of a tile. Arrays, places and memory are as in `copy_async`, but that
    both begin at multiples of 16 bytes, and `n`, any integer, makes a multiple of 16 bytes, 16 at
    least. The bytes count for the phase of mbarrier `k` of `bars` that goes on, which an arrival by
    `mbarrier_arrive_and_expect_tx` has made wait for them, or will. What the caller has stored
    before, or knows of others by a barrier, an mbarrier or a signal, is copied: a fence of the
    async proxy is part of the call. `copy_async_wait`, `quiet` and barriers complete no such
    copies. PTX ISA: cp.async.bulk.shared::cluster.global; CUTLASS: CopyBulkG2SOp.

    Until `mbarrier_wait` for the phase do not change `src`, nor read or write `dst`.

    On GPUs before compute capability 9.0 there is no such thing: use `copy_async`.

    `bars` is an array in the block's shared memory (`cuda.shared.array(n, "uint64")`); each element
    of it is an mbarrier, to be used by these operations alone. Its *phases* follow each other: one
    is complete when as many arrivals have come as `mbarrier_init` says, and as many bytes have been
    copied as these expect. Phase 0 is of parity 0, the next of parity 1, and so on by turns. The
    cpu backend raises for other memory, and for arrivals and bytes that a phase does not wait for;
    these are undefined on GPUs.
    """

def put_ll_block(dst: Symmetric, src: Array, flag: int, pe: int) -> None:
    """Send `src` as units to the first elements of `dst` on `pe`, for `reduce_ll` to receive.

    `src` is contiguous memory that this PE can load from, of any dtype; `dst` (symmetric, uint64)
    has a unit for each 4 bytes of it or fewer. `pe` must be in TEAM_SHARED, and may be the caller:
    for others the cpu backend raises `SymmetryError`. On return `src` may be changed. Units arrive
    one by one, in any order, and order nothing else: `fence` has no say, `quiet` completes them.

    `flag` must differ from the flag that each unit has had before, and a unit must not be put again
    before its receiver has it. Zeroed memory has flag 0. On GPUs 16 bytes at a time.

    A *unit* is a word of 8 bytes, an element of a uint64 array: 4 bytes of data, then the low 32
    bits of the flag. It is written and read in one piece, so whoever finds the flag has the data,
    and needs neither a fence nor a signal. NCCL calls this protocol LL, for low latency.

    Every thread of the block calls, with the same arguments; the block acts as one.
    """

def put_ll_warp(dst: Symmetric, src: Array, flag: int, pe: int) -> None:
    """Send `src` as units to the first elements of `dst` on `pe`, for `reduce_ll` to receive.

    `src` is contiguous memory that this PE can load from, of any dtype; `dst` (symmetric, uint64)
    has a unit for each 4 bytes of it or fewer. `pe` must be in TEAM_SHARED, and may be the caller:
    for others the cpu backend raises `SymmetryError`. On return `src` may be changed. Units arrive
    one by one, in any order, and order nothing else: `fence` has no say, `quiet` completes them.

    `flag` must differ from the flag that each unit has had before, and a unit must not be put again
    before its receiver has it. Zeroed memory has flag 0. On GPUs 16 bytes at a time.

    A *unit* is a word of 8 bytes, an element of a uint64 array: 4 bytes of data, then the low 32
    bits of the flag. It is written and read in one piece, so whoever finds the flag has the data,
    and needs neither a fence nor a signal. NCCL calls this protocol LL, for low latency.

    Every thread of the warp calls, with the same arguments; the warp acts as one.
    """

def reduce_ll_block(dst: Array, src: Symmetric, flag: int, op: str) -> None:
    """Wait for rows of units, and combine them: `dst[i] = row 0 [i] + row 1 [i] + ...`, for "sum".

    `src` (n, units) is the caller's own memory (symmetric, uint64), n from 1 on: each row is what
    one `put_ll` sends, the caller's too, of as many bytes as `dst` has; more units in a row are not
    looked at. The units of a row are adjacent, rows need not be. With one row this is a plain
    receive. `dst` is contiguous, of the dtype that was sent, and apart from `src`. `op`, written as
    a literal in the call, and how rows are combined, are as in `reduce_rows`.

    Waits until every unit that it needs has `flag`. On return `dst` is visible to the threads that
    called; nothing is known of what else the senders have written. Do not load units in other ways.

    A *unit* is a word of 8 bytes, an element of a uint64 array: 4 bytes of data, then the low 32
    bits of the flag. It is written and read in one piece, so whoever finds the flag has the data,
    and needs neither a fence nor a signal. NCCL calls this protocol LL, for low latency.

    Every thread of the block calls, with the same arguments; the block acts as one.
    """

def reduce_ll_warp(dst: Array, src: Symmetric, flag: int, op: str) -> None:
    """Wait for rows of units, and combine them: `dst[i] = row 0 [i] + row 1 [i] + ...`, for "sum".

    `src` (n, units) is the caller's own memory (symmetric, uint64), n from 1 on: each row is what
    one `put_ll` sends, the caller's too, of as many bytes as `dst` has; more units in a row are not
    looked at. The units of a row are adjacent, rows need not be. With one row this is a plain
    receive. `dst` is contiguous, of the dtype that was sent, and apart from `src`. `op`, written as
    a literal in the call, and how rows are combined, are as in `reduce_rows`.

    Waits until every unit that it needs has `flag`. On return `dst` is visible to the threads that
    called; nothing is known of what else the senders have written. Do not load units in other ways.

    A *unit* is a word of 8 bytes, an element of a uint64 array: 4 bytes of data, then the low 32
    bits of the flag. It is written and read in one piece, so whoever finds the flag has the data,
    and needs neither a fence nor a signal. NCCL calls this protocol LL, for low latency.

    Every thread of the warp calls, with the same arguments; the warp acts as one.
    """

def put_ll128_block(dst: Symmetric, src: Array, flag: int, pe: int) -> None:
    """Send `src` as lines to the first elements of `dst` on `pe`, for `reduce_ll128` to receive.

    As `put_ll`, with 16/15 of the bytes in place of twice as many; for some KiB or more. `dst`
    begins at a multiple of 128 bytes, and has 32 elements for each 240 bytes of `src` or fewer.
    Lines arrive one by one, in any order, and order nothing else. On GPUs whole warps act: launch
    blocks of 32 threads at least; others of a block only wait. Two accesses of 16 bytes a thread.

    A *line* is 16 words of 8 bytes at a multiple of 128: 15 of data, then the low 32 bits of the
    flag. Lines come in pairs, for 240 bytes of data each. On GPUs eight threads store a line by one
    instruction, and load it so: over NVLink, and in a GPU's own memory, it arrives in one piece,
    though PTX does not promise it. Do not use lines between GPUs that PCIe links. On CPUs a line's
    flag is released after its data, and acquired before they are read. NCCL calls this protocol
    LL128.

    Every thread of the block calls, with the same arguments; the block acts as one.
    """

def put_ll128_warp(dst: Symmetric, src: Array, flag: int, pe: int) -> None:
    """Send `src` as lines to the first elements of `dst` on `pe`, for `reduce_ll128` to receive.

    As `put_ll`, with 16/15 of the bytes in place of twice as many; for some KiB or more. `dst`
    begins at a multiple of 128 bytes, and has 32 elements for each 240 bytes of `src` or fewer.
    Lines arrive one by one, in any order, and order nothing else. On GPUs whole warps act: launch
    blocks of 32 threads at least; others of a block only wait. Two accesses of 16 bytes a thread.

    A *line* is 16 words of 8 bytes at a multiple of 128: 15 of data, then the low 32 bits of the
    flag. Lines come in pairs, for 240 bytes of data each. On GPUs eight threads store a line by one
    instruction, and load it so: over NVLink, and in a GPU's own memory, it arrives in one piece,
    though PTX does not promise it. Do not use lines between GPUs that PCIe links. On CPUs a line's
    flag is released after its data, and acquired before they are read. NCCL calls this protocol
    LL128.

    Every thread of the warp calls, with the same arguments; the warp acts as one.
    """

def reduce_ll128_block(dst: Array, src: Symmetric, flag: int, op: str) -> None:
    """Wait for rows of lines, and combine them: `dst[i] = row 0 [i] + row 1 [i] + ...`, for "sum".

    As `reduce_ll`, of what `put_ll128` sends: each row of `src` begins at a multiple of 128 bytes.
    On GPUs whole warps act, as there.

    A *line* is 16 words of 8 bytes at a multiple of 128: 15 of data, then the low 32 bits of the
    flag. Lines come in pairs, for 240 bytes of data each. On GPUs eight threads store a line by one
    instruction, and load it so: over NVLink, and in a GPU's own memory, it arrives in one piece,
    though PTX does not promise it. Do not use lines between GPUs that PCIe links. On CPUs a line's
    flag is released after its data, and acquired before they are read. NCCL calls this protocol
    LL128.

    Every thread of the block calls, with the same arguments; the block acts as one.
    """

def reduce_ll128_warp(dst: Array, src: Symmetric, flag: int, op: str) -> None:
    """Wait for rows of lines, and combine them: `dst[i] = row 0 [i] + row 1 [i] + ...`, for "sum".

    As `reduce_ll`, of what `put_ll128` sends: each row of `src` begins at a multiple of 128 bytes.
    On GPUs whole warps act, as there.

    A *line* is 16 words of 8 bytes at a multiple of 128: 15 of data, then the low 32 bits of the
    flag. Lines come in pairs, for 240 bytes of data each. On GPUs eight threads store a line by one
    instruction, and load it so: over NVLink, and in a GPU's own memory, it arrives in one piece,
    though PTX does not promise it. Do not use lines between GPUs that PCIe links. On CPUs a line's
    flag is released after its data, and acquired before they are read. NCCL calls this protocol
    LL128.

    Every thread of the warp calls, with the same arguments; the warp acts as one.
    """

def copy_block(dst: Array, src: Array) -> None:
    """Copy `src` to the first elements of `dst`: memory that this PE can load from and store to.

    Both are contiguous, of the same dtype, and apart from each other, or the same memory. They may
    be views of other PEs' memory (`peer_array`). On return `dst` is visible to the threads that
    called. What they wrote to `src` before is included only if they synchronised after writing. On
    GPUs 16 bytes at a time, eight loads in flight for each thread, where both are aligned alike.

    Every thread of the block calls, with the same arguments; the block acts as one.
    """

def copy_warp(dst: Array, src: Array) -> None:
    """Copy `src` to the first elements of `dst`: memory that this PE can load from and store to.

    Both are contiguous, of the same dtype, and apart from each other, or the same memory. They may
    be views of other PEs' memory (`peer_array`). On return `dst` is visible to the threads that
    called. What they wrote to `src` before is included only if they synchronised after writing. On
    GPUs 16 bytes at a time, eight loads in flight for each thread, where both are aligned alike.

    Every thread of the warp calls, with the same arguments; the warp acts as one.
    """

def copy_rows_block(dst: Array, src: Array, index: Array) -> None:
    """Copy rows of `src` to those of `dst`: `dst[k] = src[index[k]]`.

    `dst` (k, m) is contiguous, and apart from `src` (n, m), of which the elements of a row are
    adjacent; `index` (k,) of int32 has numbers of rows, -1 for a row of `dst` that stays. Memory
    and visibility are as in `copy`. On GPUs each warp of a block has rows of its own, so several
    are under way at a time. `--check` takes all rows of `src` to be read, all of `dst` to be
    written.

    Every thread of the block calls, with the same arguments; the block acts as one.
    """

def copy_rows_warp(dst: Array, src: Array, index: Array) -> None:
    """Copy rows of `src` to those of `dst`: `dst[k] = src[index[k]]`.

    `dst` (k, m) is contiguous, and apart from `src` (n, m), of which the elements of a row are
    adjacent; `index` (k,) of int32 has numbers of rows, -1 for a row of `dst` that stays. Memory
    and visibility are as in `copy`. On GPUs each warp of a block has rows of its own, so several
    are under way at a time. `--check` takes all rows of `src` to be read, all of `dst` to be
    written.

    Every thread of the warp calls, with the same arguments; the warp acts as one.
    """

def reduce_local_block(dst: Array, src: Array, op: str) -> None:
    """Combine `src` with the first elements of `dst`: `dst[i] = dst[i] + src[i]`, for "sum".

    Both are contiguous, of the same dtype, and apart from each other, or the same memory. What is
    said of `op` and threads, and how it is done, is as in `reduce_rows`. MPI: MPI_Reduce_local.

    Every thread of the block calls, with the same arguments; the block acts as one.
    """

def reduce_local_warp(dst: Array, src: Array, op: str) -> None:
    """Combine `src` with the first elements of `dst`: `dst[i] = dst[i] + src[i]`, for "sum".

    Both are contiguous, of the same dtype, and apart from each other, or the same memory. What is
    said of `op` and threads, and how it is done, is as in `reduce_rows`. MPI: MPI_Reduce_local.

    Every thread of the warp calls, with the same arguments; the warp acts as one.
    """

def reduce_rows_block(dst: Array, src: Array, op: str) -> None:
    """Combine the rows of `src`, element by element: `dst[i] = src[0, i] + src[1, i] + ...`.

    `dst` is contiguous and has at least as many elements as a row; it may be one of the rows, or
    apart. `src` (n, m), n from 1 on, is memory that this PE can load from; the elements of a row
    are adjacent, rows need not be. `op`, written as a literal in the call, is as in
    `multimem_reduce`: rows are combined from the first to the last, float16 and bfloat16 as
    float32, and rounded once. On return `dst` is visible to the threads that called. What they
    wrote to `src` before is included only if they synchronised after writing. On GPUs 16 bytes at a
    time, four loads or more in flight for each thread, where `dst` and all rows are aligned alike.

    Every thread of the block calls, with the same arguments; the block acts as one.
    """

def reduce_rows_warp(dst: Array, src: Array, op: str) -> None:
    """Combine the rows of `src`, element by element: `dst[i] = src[0, i] + src[1, i] + ...`.

    `dst` is contiguous and has at least as many elements as a row; it may be one of the rows, or
    apart. `src` (n, m), n from 1 on, is memory that this PE can load from; the elements of a row
    are adjacent, rows need not be. `op`, written as a literal in the call, is as in
    `multimem_reduce`: rows are combined from the first to the last, float16 and bfloat16 as
    float32, and rounded once. On return `dst` is visible to the threads that called. What they
    wrote to `src` before is included only if they synchronised after writing. On GPUs 16 bytes at a
    time, four loads or more in flight for each thread, where `dst` and all rows are aligned alike.

    Every thread of the warp calls, with the same arguments; the warp acts as one.
    """

def sum_rows_block(dst: Array, src: Array, index: Array, weights: Array) -> None:
    """Add up rows of `src`, each times its weight: `dst[i] = sum of weights[k] * src[index[k], i]`.

    `index` (k,) of int32 has the numbers of the rows, -1 for none; `weights` (k,) of float32, or of
    float64. `dst` is contiguous, has at least as many elements as a row, and is apart from `src`
    (n, m): memory that this PE can load from, with the elements of a row adjacent. Sums are kept in
    registers, of float64 as such and of other floats as float32, k = 0 first, and rounded once;
    without rows they are 0. On return `dst` is visible to the threads that called. What they wrote
    to the other three before is included only if they synchronised after writing. On GPUs 16 bytes
    at a time, four loads or more in flight for each thread, where `dst` and all rows are aligned
    alike. `--check` takes all rows of `src` to be read.

    Every thread of the block calls, with the same arguments; the block acts as one.
    """

def sum_rows_warp(dst: Array, src: Array, index: Array, weights: Array) -> None:
    """Add up rows of `src`, each times its weight: `dst[i] = sum of weights[k] * src[index[k], i]`.

    `index` (k,) of int32 has the numbers of the rows, -1 for none; `weights` (k,) of float32, or of
    float64. `dst` is contiguous, has at least as many elements as a row, and is apart from `src`
    (n, m): memory that this PE can load from, with the elements of a row adjacent. Sums are kept in
    registers, of float64 as such and of other floats as float32, k = 0 first, and rounded once;
    without rows they are 0. On return `dst` is visible to the threads that called. What they wrote
    to the other three before is included only if they synchronised after writing. On GPUs 16 bytes
    at a time, four loads or more in flight for each thread, where `dst` and all rows are aligned
    alike. `--check` takes all rows of `src` to be read.

    Every thread of the warp calls, with the same arguments; the warp acts as one.
    """

def gemm(dst: Array, a: Array, b: Array, accumulate: bool, *, stream: Any = None) -> None:
    """Multiply matrices: `dst = a @ b`, with `accumulate` `dst += a @ b`.

    `dst` (m, n), `a` (m, k) and `b` (k, n) are memory this PE can load from, all float16, all
    bfloat16, all float32 or all float64; any size, including 0. In `dst`, and in `a` and `b` or
    their transposes, the elements of each row must be adjacent, and rows must not overlap. Sums of
    16-bit floats are kept as float32. When threads of a block call, `dst` is visible to all of them
    on return, and what they wrote to `a` and `b` before is included only if they synchronised after
    writing. On CPUs OpenBLAS computes it, that of NumPy or SciPy.

    On GPUs cuBLASLt computes it, if it is installed (pip: nvidia-cublas), with the sums of float32
    in float32; otherwise one block does. With `stream=` the arrays are used in the stream's order;
    without, the product is there on return.
    """
def gemm_block(dst: Array, a: Array, b: Array, accumulate: bool) -> None:
    """As `gemm`, in kernels, by all threads of a block with the same arguments."""

def gemm_batched(dst: Array, a: Array, b: Array, accumulate: bool, *, stream: Any = None) -> None:
    """Multiply many matrices of the same sizes: `dst[i] = a[i] @ b[i]`, as `gemm`.

    `dst` (B, m, n), `a` (B, m, k) and `b` (B, k, n), k from 1 on; each of their matrices is as in
    `gemm`, at the same distance from the one before, and those of `dst` do not overlap. On GPUs
    cuBLASLt computes all by one call (pip: nvidia-cublas), on CPUs NumPy does. With `stream=` the
    arrays are used in the stream's order; without, the products are there on return.
    """

def gemm_scaled(dst: Array, a: Array, b: Array, scale_a: Array, scale_b: Array, accumulate: bool, *, stream: Any = None) -> None:
    """Multiply 8-bit floats: `dst = scale_a * scale_b * (a @ b)`; `accumulate` adds to dst.

    `a` (m, k) and `b` (k, n) are of float8_e4m3fn, `dst` (m, n) of float16, bfloat16 or float32:
    memory this PE can load from. Both scales are of float32, and either one number each, or of
    shape (m, 1) and (1, n), a number for each row of `a` and column of `b`, contiguous. Sums are
    kept as float32, then scaled, and rounded once. k and n are multiples of 16, k from 16 on. The
    elements of each row of `a` and `dst`, and of each column of `b`, are adjacent: `b` is `w.T` of
    a `w` (n, k). These begin at multiples of 16 bytes. `ArgumentError` tells what is not so. On
    GPUs cuBLASLt computes it (pip: nvidia-cublas), on those of compute capability 8.9 and up;
    scales of rows and columns it has for 9.0 alone. On CPUs NumPy does. With `stream=` the arrays
    are used in the stream's order; without, the product is there on return.
    """

def peer_array(array: Symmetric, pe: int) -> DeviceArray:
    """Return `array` (symmetric) as it is on `pe`: loads and stores then reach that PE's memory.

    `fence`, `quiet` and barriers treat these stores like `p`. The memory of a PE that is not in
    TEAM_SHARED cannot be reached so: on the host that raises `SymmetryError`; in a kernel the array
    is null (`a.ctypes.data == 0`) and must not be used, on the cpu backend that is an error. Ask
    `team_translate_pe(TEAM_WORLD, pe, TEAM_SHARED) >= 0` first. NVSHMEM 3: nvshmem_ptr.
    """

def multicast_array(array: Symmetric, team: Team) -> MulticastArray:
    """Return `array` (symmetric) as it is on all PEs of `team`: a store reaches all of them.

    It can be assigned to (`m[i] = value`) but not read. All PEs of `team` must be in TEAM_SHARED;
    for others it raises `SymmetryError` on the host, and in kernels on the cpu backend. It cannot
    be passed to a kernel: call this in the kernel. NVSHMEM 3: nvshmemx_mc_ptr.
    """

def multimem_reduce(dst: Array, src: Symmetric, team: Team, op: str) -> None:
    """Combine `src` of all PEs of `team`, element by element, to the first elements of `dst`.

    Only the caller takes part: it loads what is in the others' memory. `src` is symmetric, `dst`
    any memory that this PE can store to; both are contiguous and have the same dtype. `dst` may be
    the caller's own `src`, or apart from it. On return `dst` is visible to the threads that called.

    `op`, written as a literal in the call, is "sum" (numbers), "min" or "max" (integers and
    floats), "and", "or" or "xor" (integers). Elements are combined in the order of the PEs in the
    team, float16 and bfloat16 as float32, and rounded once. With NVLink SHARP, on compute
    capability 9.0 and up, the switch combines, in an order of its own: for every `op` int32, int64,
    uint32 and uint64; float16 and bfloat16, of which "min" and "max" may lose a NaN; and sums of
    float32 and float64. Other elements, and memory without a multicast address, are loaded from one
    PE after the other.

    What the PEs wrote to `src`, the caller too, is included if it was made visible before: by
    `sync` or a barrier of the team, or by `quiet` and a signal that the caller has waited for. All
    PEs of `team` must be in TEAM_SHARED; the cpu backend raises `SymmetryError` for others. PTX
    ISA: multimem.ld_reduce; NVSHMEM 3: nvshmemx_mc_ptr.
    """
def multimem_reduce_warp(dst: Array, src: Symmetric, team: Team, op: str) -> None:
    """As `multimem_reduce`, by all threads of a warp with the same arguments."""
def multimem_reduce_block(dst: Array, src: Symmetric, team: Team, op: str) -> None:
    """As `multimem_reduce`, by all threads of a block with the same arguments."""

def multimem_store(dst: Symmetric, src: Array, team: Team) -> None:
    """Store `src` to the first elements of `dst` (symmetric) on all PEs of `team`, the caller too.

    Only the caller takes part: nobody is told. Both are contiguous and have the same dtype; `src`
    is memory that this PE can load from: the caller's own `dst`, or apart from it. `fence`, `quiet`
    and barriers treat it as a put to each of the PEs, so a signal that is to follow the data needs
    a `fence` before it, and the caller reads its own `dst` after `quiet`. What the threads wrote to
    `src` before is included only if they synchronised after writing.

    With NVLink SHARP, on compute capability 9.0 and up, the switch copies: 16 bytes at a time,
    eight loads in flight for each thread, where `dst` and `src` are aligned alike, else elements of
    4 and 8 bytes. Without it, and at the ends of smaller elements, it is a copy to one PE after the
    other, the caller last. All PEs of `team` must be in TEAM_SHARED; the cpu backend raises
    `SymmetryError` for others. PTX ISA: multimem.st; NVSHMEM 3: nvshmemx_mc_ptr.

    On return `src` may be changed; the data has arrived after `quiet`.
    """
def multimem_store_warp(dst: Symmetric, src: Array, team: Team) -> None:
    """As `multimem_store`, by all threads of a warp with the same arguments."""
def multimem_store_block(dst: Symmetric, src: Array, team: Team) -> None:
    """As `multimem_store`, by all threads of a block with the same arguments."""

def ask_smem(amount: int) -> int:
    """Return how many bytes of shared memory a block gives to NVSHMEM with `give_smem`.

    `amount` is SMEM_RECOMMENDED (65536 bytes), SMEM_MINIMUM (32768), or SMEM_BARRIERS_ONLY (1136),
    which NVSHMEM keeps for itself: with these alone only puts from shared memory are faster. CUDA
    has 48 KiB for static arrays, so the first is for dynamic ones: on the host, give the number to
    the launch, `kernel[grid, block, stream, ask_smem(SMEM_RECOMMENDED)]`. Raises `ArgumentError`
    for other amounts. NVSHMEM 3.8: nvshmemx_ask_smem.
    """

def give_smem(smem: Array) -> None:
    """Give shared memory of the block to NVSHMEM, for puts and gets by the GPU's copy engine, TMA.

    `smem` is contiguous, of any dtype, in the block's static or dynamic shared memory; it begins at
    a multiple of 16 bytes (`cuda.shared.array(n, dtype, alignment=16)`) and has at least
    `ask_smem(SMEM_BARRIERS_ONLY)` bytes. It is NVSHMEM's until `release_smem`, which the block must
    call before it returns: the kernel neither reads nor writes it, and finds anything there
    afterwards. The cpu backend raises for other memory, for memory given twice, for collectives
    before `release_smem`, and for a block that ends without it.

    The operations stay what they are. On GPUs of compute capability 9.0 and up, and with
    NVSHMEM_TMA_POLICY=ENABLE in the environment, TMA copies for `put`, `put_signal` and `get`, in
    all forms, if the PE is in TEAM_SHARED, and if both arrays begin at multiples of 16 bytes and a
    multiple of 16 bytes is copied; for `_block` forms and local arrays in global memory the block
    also needs 64 threads. All else is copied as without this call.

    A put from shared memory reads the array itself, which is outside of `smem`. All others, and
    gets, go through `smem`, of which there is one: until `release_smem`, let no two threads or
    warps of the block put or get at the same time, and call no collectives but barriers and `sync`.
    One thread begins the copy of a `_block` or `_warp` form, and `fence`, `flush` and `quiet` then
    cover only copies that the calling thread began: let all threads of the form call them, and then
    synchronise. Barriers of the block cover all. NVSHMEM 3.8: nvshmemx_give_smem.

    Every thread of the block calls, with the same arguments; the block acts as one.
    """

def release_smem() -> None:
    """End what `give_smem` began: the memory is the block's again.

    It waits for all that TMA still copies for the block, so afterwards `fence`, `flush` and `quiet`
    of one thread again cover what the others have put, if they have synchronised; they are needed
    as ever. The cpu backend raises if the block has given nothing. NVSHMEM 3.8:
    nvshmemx_release_smem, which waits for nothing itself.

    Every thread of the block calls, with the same arguments; the block acts as one.
    """

def trace_range_start(name: str) -> int:
    """Begin a range of the trace, and return its number, for `trace_range_end`.

    `name` is a text written in the call. The range is one of the calling thread, in `_warp` and
    `_block` forms of the first thread of the warp or block; nobody waits for anybody. Ranges may
    nest, and overlap. What has no end in the trace lasts to the end of it. Where the job is not
    traced, 0 is returned and the call costs nothing. On the host use `with trace_range(name):`.
    NVTX: nvtxRangeStartA.
    """
def trace_range_start_warp(name: str) -> int:
    """As `trace_range_start`, by all threads of a warp with the same arguments."""
def trace_range_start_block(name: str) -> int:
    """As `trace_range_start`, by all threads of a block with the same arguments."""

def trace_range_end(number: int) -> None:
    """End the range that `trace_range_start` has returned the number of; of 0: none.

    Another thread of the block, or a later kernel, may end it. NVTX: nvtxRangeEnd.
    """
