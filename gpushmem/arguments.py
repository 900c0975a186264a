"""What callers give: taken as what it has to be, or refused in an error of the package's tree."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any, TypeVar, cast

from gpushmem.errors import (
    ArgumentError,
    ArgumentIndexError,
    ArgumentTypeError,
    HeapExhausted,
    ShmemError,
)

__all__ = ["INT64", "by_rows", "integer", "public", "shown", "taking"]

F = TypeVar("F", bound=Callable[..., Any])
INT64 = -(2**63), 2**63 - 1
LONGEST = 80  # characters of a value in a message

# What the errors of other code, Python's and NumPy's, are with us.
KINDS: list[tuple[type[Exception], type[ShmemError]]] = [
    (IndexError, ArgumentIndexError),
    (TypeError, ArgumentTypeError),
    (MemoryError, HeapExhausted),
    (Exception, ArgumentError),
]


class taking:
    """Code that looks at what a caller gave: what it raises is an `ArgumentError` about `what`.

    For calls of NumPy and the like alone: it also covers what methods of the caller's objects
    raise.
    """

    __slots__ = ("what",)

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        if isinstance(error, Exception) and not isinstance(error, ShmemError | Warning):
            ours = next(ours for theirs, ours in KINDS if isinstance(error, theirs))
            raise ours(f"{self.what}: {error or type(error).__name__}") from error


def public(function: F) -> F:
    """Make a call with too few, too many or unknown arguments an `ArgumentTypeError`.

    The package's errors are raised from here: the frames below add nothing to what they say.
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except ShmemError as error:
            # Without `from`: its cause, if it has one, stays.
            raise error.with_traceback(None)  # noqa: B904
        except TypeError as error:
            called = error.__traceback__ is not None and error.__traceback__.tb_next is None
            if not called:  # raised by what the function does
                raise
            raise ArgumentTypeError(str(error)) from None

    return cast(F, call)


def integer(what: str, value: Any, low: int = INT64[0], high: int = INT64[1]) -> int:
    """`value` as an integer from `low` to `high`; raises `ArgumentError` naming `what`."""
    try:
        number = operator.index(value)
    except Exception:  # noqa: BLE001  (the object's own method may raise anything)
        raise ArgumentTypeError(f"{what} must be an integer, not {shown(value)}") from None
    if not low <= number <= high:
        limits = f"{low} or more" if high == INT64[1] and low > INT64[0] else f"{low} to {high}"
        raise ArgumentError(f"{what} must be {limits}, not {shown(value)}")
    return number


def shown(value: Any) -> str:
    """A value in a message: what it is, briefly; of an array dtype and shape."""
    kind = type(value).__name__
    if isinstance(value, int) and value.bit_length() > 64:
        return "an integer of more than 64 bits"
    try:
        if getattr(value, "shape", ()) or hasattr(value, "__array_interface__"):
            return f"{kind} {tuple(value.shape)} {value.dtype}"
        text = repr(value)
    except Exception:  # noqa: BLE001  (the object's own methods may raise anything)
        return kind
    return text if len(text) <= LONGEST and "\n" not in text else kind


def by_rows(matrix: Any) -> bool:
    """Whether it consists of rows that do not overlap, of adjacent elements; or each of several."""
    *_, m, n = matrix.shape
    *_, down, across = matrix.strides
    size = matrix.dtype.itemsize
    apart = m < 2 or (down >= n * size and down % size == 0)
    return not m * n or (apart and (n < 2 or across == size))
