"""What operations take and return. Declarations name these roles as annotations.

A role is a class that is never instantiated: it says which values a parameter takes and what an
operation does with them. Backends look roles up, the nearest base class first, in tables of their
own (`of_role`); what a program sees of a role is `stub`, its type in the stubs, and `words`, by
which errors name it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, TypeVar

V = TypeVar("V")

# The dtypes of atomic operations, of elements that are waited for, of products and of sums of rows.
BITS = ("int32", "int64", "uint32", "uint64")
NUMBERS = (*BITS, "float32", "float64")
WAITED = ("int16", "int32", "int64", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
REDUCTIONS = ("sum", "prod", "min", "max", "and", "or", "xor", "maxloc")


SCOPES = ("cta", "gpu", "sys")  # of PTX: the threads of a block, of a GPU, of all


def _ordered(*orders: str) -> tuple[str, ...]:
    return tuple(f"{order}.{scope}" for order in orders for scope in SCOPES)


class Argument:
    """A parameter of an operation."""

    stub: ClassVar[str]
    words: ClassVar[str]


def of_role(table: Mapping[type, V], role: type) -> V | None:
    """What a table has for a role, or for the nearest of its base classes."""
    return next((table[base] for base in role.__mro__ if base in table), None)


# --- arrays


class Array(Argument):
    """An array. Arrays of one operation that are `moved` must have one dtype.

    `dtypes` are those allowed, () for any; `layout` is "C" for contiguous, "dense" for an array
    without other memory in its gaps, "" for any; `symmetric` is whether it is on the symmetric
    heap; `first` is whether only its element 0 is used.
    """

    stub, words = "Array", "an array"
    dtypes: ClassVar[tuple[str, ...]] = ()
    layout: ClassVar[str] = ""
    ndim: ClassVar[int | None] = None
    symmetric: ClassVar[bool] = False
    moved: ClassVar[bool] = False
    first: ClassVar[bool] = False


class Moved(Array):
    """One whose elements are copied or combined."""

    layout, moved = "C", True


class Source(Moved):
    """Local memory that is read."""


class Target(Moved):
    """Local memory that is written."""


class Remote(Moved):
    """Named by the caller's own symmetric array; the same array on `pe` is meant."""

    stub, symmetric = "Symmetric", True


class RemoteUnits(Remote):
    """Remote; words of data and flag, see `ops.ll`."""

    dtypes, moved = ("uint64",), False


class FromMembers(Moved):
    """Symmetric; that of every member of the team is read."""

    stub, symmetric = "Symmetric", True


class ToMembers(Moved):
    """Symmetric; that of every member of the team is written."""

    stub, symmetric = "Symmetric", True


class Stored(Moved):
    """Memory that the calling PE stores to, symmetric or not; no network adapter does."""


class Sums(Stored):
    """Sums of floats."""

    dtypes = FLOATS


class Element(Array):
    """Symmetric; element 0 on `pe` is meant."""

    stub, symmetric, first = "Symmetric", True, True


class Numbers(Element):
    """One that atomic operations add to."""

    dtypes = NUMBERS


class Bits(Element):
    """One that atomic operations combine bit by bit."""

    dtypes = BITS


class RemoteSignal(Element):
    """A signal on `pe`."""

    dtypes = ("uint64",)


class Own(Array):
    """Symmetric; the caller's own, which other PEs write and the caller waits for."""

    stub, symmetric, layout = "Symmetric", True, "C"
    dtypes = WAITED


class OwnSignal(Own):
    """Element 0 of the caller's own signal."""

    dtypes, first = ("uint64",), True


class OwnUnits(Own):
    """Rows of words of data and flag, see `ops.ll`; the words of each without gaps."""

    dtypes, layout, ndim = ("uint64",), "", 2


class Counted(Array):
    """An array of integers, as long as the one that is waited for."""

    words, layout = "an array of integers", "C"


class Indices(Counted):
    """To which indices are written."""


class Status(Counted):
    """Which elements are excluded; or None."""

    stub, words = "Array | None", "an array of integers, or None"


class WantedArray(Counted):
    """What each element is compared with."""


class QueuePairs(Array):
    """Numbers of queue pairs of the calling PE."""

    words, layout, dtypes = "an array of queue pairs", "C", ("int32",)


class Views(Array):
    """Symmetric, to be seen on other PEs."""

    stub, symmetric, layout = "Symmetric", True, "dense"


class Loaded(Moved):
    """Memory that the calling PE loads from, symmetric or not; no network adapter does."""


class Rows(Array):
    """Memory that the calling PE loads from: rows, the elements of each without gaps."""

    moved, ndim = True, 2


class StoredRows(Stored):
    """Rows, one behind the other."""

    ndim = 2


class RowNumbers(Array):
    """Which rows are meant; -1 for none."""

    words, layout, dtypes = "an array of row numbers", "C", ("int32",)


class Weights(Array):
    """What rows are multiplied by."""

    words, layout, dtypes = "an array of weights", "C", ("float32", "float64")


class Shared(Array):
    """Memory that the threads of a block share."""

    layout = "C"


class SharedTarget(Moved):
    """Memory that the threads of a block share, which is written."""


class Barriers(Array):
    """Shared memory in which each element is an mbarrier."""

    layout, dtypes = "C", ("uint64",)


class Words(Array):
    """Memory that the calling PE loads from and stores to, some elements at once."""

    layout = "C"


class Matrix(Array):
    """Memory that the calling PE can load from."""

    moved, ndim, dtypes = True, 2, FLOATS


class Matrices(Matrix):
    """Several, one behind the other along the first axis."""

    words, ndim = "an array of matrices", 3


class ScaledProduct(Matrix):
    """The product of matrices that have scales."""

    dtypes = ("float16", "bfloat16", "float32")


class CodeMatrix(Array):
    """8-bit floats, which have scales, in memory that the calling PE can load from."""

    ndim, dtypes = 2, ("float8_e4m3fn",)


class Scales(Array):
    """What a matrix is multiplied by: one number for all of it, or one for each row or column."""

    words, dtypes = "an array of scales", ("float32",)


# --- values


class Value(Argument):
    """One element, of the dtype of the operation's array."""

    stub, words = "Scalar", "one value for the array"


class Vector(Argument):
    """Elements of the operation's array."""

    stub, words = "tuple[Scalar, ...]", "a tuple of values for the array"


class Integer(Argument):
    """An integer; `what` it is the number of, if there may be no such thing."""

    stub, words = "int", "an integer"
    what: ClassVar[str] = ""


class Pe(Integer):
    """A PE of the job."""

    what = "PE"


class QueuePair(Integer):
    """A queue pair of the calling PE."""

    what = "queue pair"


class Root(Integer):
    """A PE of the team."""

    what = "PE"


class Count(Integer):
    """A number of elements."""


class Stride(Integer):
    """Elements from one that is copied to the next, 1 or more."""


class Place(Integer):
    """Which element of a contiguous array."""


class VectorSize(Integer):
    """A number of elements, written in the call."""

    words = "an integer written in the call"


class Groups(Integer):
    """A number of groups of copies, written in the call."""

    words, most = "an integer from 0 to 8, written in the call", 8


class SignalOp(Integer):
    """SIGNAL_SET or SIGNAL_ADD."""

    what = "signal operation"


class Comparison(Integer):
    """CMP_EQ and so on."""

    what = "comparison"


class Amount(Integer):
    """SMEM_RECOMMENDED, SMEM_MINIMUM or SMEM_BARRIERS_ONLY."""

    what = "amount"


class Wanted(Integer):
    """What elements are compared with; in the range of their dtype."""


class SignalValue(Wanted):
    """What a signal is set to, or what is added to it."""


class UnitFlag(Integer):
    """What comes with each unit: 32 bits of an integer."""


class TeamHandle(Argument):
    """A team."""

    stub, words = "Team", "a team"


class Members(Argument):
    """PEs of the job, in an order."""

    stub, words = "Sequence[int]", "a sequence of PEs"


class Reduction(Argument):
    """One of `names`, written in the call."""

    stub, words = "str", "a text written in the call"
    names: ClassVar[tuple[str, ...]] = REDUCTIONS


class SwitchReduction(Reduction):
    """One that an NVLink switch computes for some dtypes."""

    names = ("sum", "min", "max", "and", "or", "xor")


class LoadAccess(Argument):
    """How memory is accessed: one of `names`, written in the call."""

    stub, words = "str", "a text written in the call"
    names: ClassVar[tuple[str, ...]] = ("weak", "stream", *_ordered("relaxed", "acquire"))


class StoreAccess(LoadAccess):
    """How memory is stored to."""

    names = ("weak", "stream", *_ordered("relaxed", "release"))


class Name(Argument):
    """A name, written in the call."""

    stub, words = "str", "a text written in the call"


class Flag(Argument):
    """True or False."""

    stub, words = "bool", "True or False"


class Timeout(Argument):
    """Nanoseconds, or None."""

    stub, words = "int | None", "an integer of nanoseconds or None"


# --- results


class Result:
    """What an operation returns: its type in the stubs, the dtype that holds it on hosts.

    `timed` is what it is with a timeout, if that differs. A `dtype` of "element" is that of the
    operation's first array; None: it returns nothing, or no number.
    """

    stub: ClassVar[str] = "None"
    dtype: ClassVar[str | None] = None
    timed: ClassVar[type[Result] | None] = None


class Truth(Result):
    """Whether something holds."""

    stub, dtype = "bool", "bool"


class Index(Result):
    """A number: an index, a count, a PE."""

    stub, dtype = "int", "int64"


class SignalResult(Result):
    """The value of a signal; with a timeout, whether the condition held."""

    stub, dtype, timed = "int", "uint64", Truth


class Whether(Result):
    """Nothing; with a timeout, whether the condition held."""

    timed = Truth


class ElementResult(Result):
    """An element of the operation's array."""

    stub, dtype = "Scalar", "element"


class Elements(Result):
    """Elements of the operation's array."""

    stub = "tuple[Scalar, ...]"


class View(Result):
    """An array on memory of another PE."""

    stub = "DeviceArray"


class MulticastView(Result):
    """An array on memory of all PEs of a team."""

    stub = "MulticastArray"


class TeamResult(Result):
    """A team."""

    stub = "Team"


class TwoTeams(Result):
    """Two teams."""

    stub = "tuple[Team, Team]"
