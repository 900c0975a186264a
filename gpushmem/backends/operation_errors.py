"""What can be wrong with a call of an operation: the exception, and the text with the numbers.

Kernels report a fault by its number, which `explain` of their backend makes an error; hosts raise
it at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpushmem.arguments import shown
from gpushmem.errors import (
    ArgumentError,
    ArgumentTypeError,
    CollectiveMismatch,
    KernelError,
    ShmemError,
    SymmetryError,
    TeamError,
)
from gpushmem.ops import QP_DEFAULT

(
    BAD_PE, NOT_SYMMETRIC, TOO_SMALL, BAD_SIGNAL_OP, BAD_COMPARISON, EMPTY, TOO_SHORT, BAD_STRIDE,
    OUTSIDE, BAD_TEAM, BAD_ROOT, NOT_DIVISIBLE, MISMATCH, ENDED,
    NOT_ALLOCATED, NO_ROOM, ELSEWHERE, UNALIGNED, BAD_TIMEOUT, BAD_SHAPES, NOT_BY_ROWS, NO_MEMORY,
    TWICE, FAR, FAR_TEAM, UNREGISTERED, FEW, SMALL_BLOCK, BAD_QP,
    BAD_AMOUNT, NOT_SHARED, MISPLACED, SMALL_SMEM, GIVEN, NOT_GIVEN, NOT_NOW, CUT, TOO_FEW_UNITS,
    BAD_ROW, NO_WEIGHT, OTHER_ROWS, UNSHARED, NO_MBARRIER, BAD_COUNT, BAD_PARITY, NOT_BULK,
    TOO_MANY, TOO_MUCH,
) = range(2, 50)  # fmt: skip

Text = str | Callable[..., str]


def _shapes(a: int, b: int, rows: int, columns: int, *_: int) -> str:
    (m, k), (depth, n) = (divmod(shape, 2**32) for shape in (a, b))
    return (
        f"a is {m} x {k}, b {depth} x {n}, dst {rows} x {columns}: a must have as many columns "
        "as b has rows, dst the rows of a and the columns of b"
    )


def _bad_qp(number: int, last: int, *_: int) -> str:
    made = f"it has made {QP_DEFAULT + 1} to {last}" if last > QP_DEFAULT else "it has made none"
    return (
        f"this PE has no queue pair {number}: {made} (gpushmem.qp_create), besides QP_DEFAULT, "
        f"{QP_DEFAULT}, and QP_ANY, for an operation"
    )


def _unregistered(pe: int, address: int, nbytes: int, is_target: int, *_: int) -> str:
    return (
        f"PE {pe} is on another node, and {'dst' if is_target else 'src'} ({nbytes} bytes at "
        f"{address:#x}) is neither symmetric nor registered: a network adapter reaches no other "
        "memory. Use a symmetric array, or register this one (gpushmem.register)"
    )


# Fault -> exception class, and its text.
FAULTS: dict[int, tuple[type[ShmemError], Text]] = {
    BAD_PE: (ArgumentError, "there is no PE {0}: PEs are 0 to {1}"),
    NOT_SYMMETRIC: (
        SymmetryError,
        "a remote array of {1} bytes at {0:#x} is not on the symmetric heap: allocate it with "
        "gpushmem.empty or zeros",
    ),
    NOT_ALLOCATED: (
        SymmetryError,
        "a remote array of {1} bytes at offset {0:#x} of the symmetric heap is not in one "
        "allocated array: it was freed, or goes past the end of another",
    ),
    TOO_SMALL: (ArgumentError, "the target has {0} elements, the source {1}: pass a slice of it"),
    TOO_FEW_UNITS: (
        ArgumentError,
        "there are {0} units, and {1} are needed: one for each 4 bytes of the data, or "
        "with LL128 32 for each 240",
    ),
    BAD_ROW: (ArgumentError, "src has no row {0}: its rows are 0 to {1}, and -1 is none"),
    NO_WEIGHT: (ArgumentError, "index has {0} elements, weights {1}: each row needs its weight"),
    OTHER_ROWS: (
        ArgumentError,
        "dst has {0} rows of {1}, index {2} elements, src rows of {3}: pass as many rows as there "
        "are in index, as long as those of src",
    ),
    CUT: (ArgumentError, "dst has {0} elements, src {1}: pass slices of one length"),
    BAD_QP: (ArgumentError, _bad_qp),
    BAD_SIGNAL_OP: (
        ArgumentError,
        "there is no signal operation {0}: use SIGNAL_SET or SIGNAL_ADD",
    ),
    BAD_COMPARISON: (ArgumentError, "there is no comparison {0}: use CMP_EQ, NE, GT, LE, LT or GE"),
    BAD_TIMEOUT: (ArgumentError, "timeout_ns must be 0 or more nanoseconds, not {0}"),
    BAD_SHAPES: (ArgumentError, _shapes),
    NOT_BY_ROWS: (
        ArgumentError,
        "a matrix has strides of {0} and {1} bytes: the elements of a row must be adjacent, or, "
        "in a and b, those of a column, and rows or columns must not overlap",
    ),
    NO_MEMORY: (
        KernelError,
        "no memory to multiply {0} x {1} and {1} x {2} 16-bit floats as float32",
    ),
    EMPTY: (ArgumentError, "the array has no element 0: it is empty"),
    UNALIGNED: (
        ArgumentError,
        "the element at {0:#x} is not aligned to its {1} bytes; atomic operations, signals, waits, "
        "vectors and asynchronous copies need that",
    ),
    BAD_STRIDE: (
        ArgumentError,
        "strides must be 1 or more, not {0} and {1}; a number of elements 0 or more, not {2}",
    ),
    OUTSIDE: (ArgumentError, "element {0} is outside of an array of {1} elements"),
    BAD_TEAM: (
        TeamError,
        "there is no team {0}: it was destroyed, or this PE is not in it; TEAM_INVALID is -1",
    ),
    BAD_ROOT: (
        ArgumentError,
        "there is no PE {0} in the team to be the root: its PEs are 0 to {1}",
    ),
    NOT_DIVISIBLE: (
        ArgumentError,
        "src has {0} elements, which are not {1} equal parts, one for each PE of the team",
    ),
    NO_ROOM: (ArgumentError, "dst has {0} elements, and needs {1}"),
    FAR: (
        SymmetryError,
        "PE {0} is on another node: loads and stores, with peer_array or put_ll, do not reach it; "
        "use put or get. PEs that they reach are in TEAM_SHARED",
    ),
    FAR_TEAM: (
        SymmetryError,
        "PE {0} of the team is on another node, which loads and stores cannot reach; use get or "
        "put. PEs that they reach are in TEAM_SHARED",
    ),
    UNREGISTERED: (SymmetryError, _unregistered),
    FEW: (
        KernelError,
        "PE {0} is on another node, and the calling warp has {1} of 32 threads: over a network "
        "NVSHMEM needs whole warps. Launch blocks of a multiple of 32 threads, or call the "
        "operation of one thread",
    ),
    SMALL_BLOCK: (
        KernelError,
        "the block has {0} threads: NVSHMEM sums by whole warps, as lines of LL128 are sent, and "
        "wrongly in blocks of fewer than {1}. Launch at least that many, or call another operation",
    ),
    BAD_AMOUNT: (
        ArgumentError,
        "there is no amount {0} of shared memory: use SMEM_RECOMMENDED, SMEM_MINIMUM or "
        "SMEM_BARRIERS_ONLY",
    ),
    NOT_SHARED: (
        ArgumentError,
        "smem, {1} bytes at {0:#x}, is not in the block's shared memory: give an array of "
        "cuda.shared.array",
    ),
    UNSHARED: (
        ArgumentError,
        "dst, {1} bytes at {0:#x}, is not in the block's shared memory: give a part of an array of "
        "cuda.shared.array",
    ),
    NO_MBARRIER: (
        ArgumentError,
        "the mbarrier at {0:#x} is not in the block's shared memory: give an array of "
        "cuda.shared.array, of uint64",
    ),
    BAD_COUNT: (ArgumentError, "an mbarrier has 1 to {1} arrivals a phase, not {0}"),
    BAD_PARITY: (ArgumentError, "the parity of a phase is 0 or 1, not {0}"),
    NOT_BULK: (
        ArgumentError,
        "{0} bytes cannot be copied in bulk: a copy has a multiple of 16 bytes, 16 at least; copy "
        "the rest by copy_async, or by loads and stores",
    ),
    TOO_MANY: (
        KernelError,
        "all {0} arrivals of the phase have come, which still waits for {1} bytes: an arrival more "
        "is undefined on GPUs. Call mbarrier_init with the number of arrivals, and mbarrier_wait "
        "before the arrivals of the next phase",
    ),
    TOO_MUCH: (
        KernelError,
        "{0} bytes are copied or expected in the phase, which then waits for {1}: at most {2} may "
        "be missing, and when all have arrived none may be left over. Give "
        "mbarrier_arrive_and_expect_tx the bytes of all copies of the phase",
    ),
    MISPLACED: (
        ArgumentError,
        "smem begins {0} bytes after a multiple of {1}: it must begin at one, as "
        "cuda.shared.array(n, dtype, alignment={1}) does",
    ),
    SMALL_SMEM: (
        ArgumentError,
        "smem has {0} bytes, and NVSHMEM keeps {1} for itself: give ask_smem(SMEM_RECOMMENDED) "
        "bytes, or SMEM_MINIMUM; dynamic shared memory is given to the launch",
    ),
    NOT_GIVEN: (KernelError, "the block has given no memory: call give_smem before"),
    TOO_SHORT: (
        ArgumentError,
        "{0} elements are to be compared, but status, indices or value has {1} elements",
    ),
}


# Why a collective is an error in which not all are.
ALIKE = "Every PE must make the same collective calls in the same order"


def different_calls(said: Mapping[int, str]) -> CollectiveMismatch:
    """The error for PEs that are in different collectives; `said` has the call of each."""
    calls = "; ".join(f"PE {pe}: {text}" for pe, text in said.items())
    return CollectiveMismatch(f"PEs met in different collective calls: {calls}. {ALIKE}")


def no_stream(stream: object) -> ArgumentTypeError:
    """The error for what is no stream on a machine's own cores."""
    return ArgumentTypeError(f"a stream comes from gpushmem.stream(), or is 0; got {shown(stream)}")


def error_of(fault: int, where: str, *values: object) -> ShmemError:
    """The error for a fault and its numbers."""
    return raised(*FAULTS[fault], where, *values)


def raised(kind: type[ShmemError], text: Text, where: str, *values: object) -> ShmemError:
    """The error of a row of such a table."""
    return kind(f"{where}: {text.format(*values) if isinstance(text, str) else text(*values)}")
