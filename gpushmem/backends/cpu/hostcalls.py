"""Operations that the host calls and that run as a kernel: of one block with one thread.

So a wait or a collective has one implementation, which the host's calls share with kernels, its
checks and its reports included; and `stream=` is a launch like any other.
"""

from __future__ import annotations

import operator
import re
from typing import Any

import numpy as np
from numba.core.errors import NumbaError

from gpushmem.backends.cpu.access import BAD_TIMEOUT, error_of
from gpushmem.errors import ArgumentError
from gpushmem.ops import Op
from gpushmem.simt.kernel import Kernel, KernelFailure, Running, shape_of
from gpushmem.simt.stream import Device, Stream

__all__ = ["ON_THE_HOST", "HostCalls", "fitting"]

# What the operations that return something return.
RESULTS = {
    "signal_wait_until": "uint64", "wait_until_any": "int64", "wait_until_some": "int64",
    "test": "bool", "test_all": "bool", "test_any": "int64", "test_some": "int64",
}  # fmt: skip
WITH_TIMEOUT = dict.fromkeys(("signal_wait_until", "wait_until", "wait_until_all"), "bool")
LONGEST = np.iinfo(np.int64).max  # nanoseconds
ON_THE_HOST = " on the host"  # what the names of such kernels end with
CALL = """
def {name}(out, {params}):
    {out}operation({arguments})
"""


class HostCalls:
    """Launches operations: on the caller's stream, or beside all streams until they end."""

    _kernels: dict[tuple[Any, ...], Kernel] = {}  # compiled code outlives `finalize`

    def __init__(self, world: np.ndarray[Any, Any]) -> None:
        self._world = world
        self._device = Device()
        self._idle: list[Stream] = []

    def run(self, op: Op, arguments: dict[str, Any]) -> Any:
        """Do the operation and return its result; raises `KernelFailure`."""
        launch, result = self.prepare(op, arguments)
        try:
            stream = self._idle.pop()
        except IndexError:  # other threads of this PE wait on theirs
            stream = self._device.stream()
        stream.submit(launch)
        try:
            stream.synchronize(op.name)
        except KernelFailure:
            self._idle.append(stream)
            raise
        self._idle.append(stream)  # unless interrupted: its launch is still being cancelled
        return result[0] if _result(op, arguments) else None

    def prepare(self, op: Op, arguments: dict[str, Any]) -> tuple[Running, np.ndarray[Any, Any]]:
        """A launch of the operation, and where its result will be.

        Raises `ArgumentError` for arguments of wrong kinds.
        """
        arguments = _given(op, arguments)
        result = np.zeros(1, _result(op, arguments) or "int64")
        awaited, value = next(iter(arguments.values()), None), arguments.get("value")
        if isinstance(value, int | np.integer) and isinstance(awaited, np.ndarray):
            fitting(op.name, value, awaited.dtype)
        words = {k: v for k, v in arguments.items() if isinstance(v, str)}
        key = (op.name, len(arguments), *words.values())
        kernel = self._kernels.get(key)
        if kernel is None:
            kernel = self._kernels[key] = Kernel(_caller(op, tuple(arguments), words))
        args = [value for name, value in arguments.items() if name not in words]
        try:
            return kernel.prepare(ONE, (result, *args), self._world), result
        except (NumbaError, ValueError) as error:
            said = re.search(rf"{op.base}: [^\n]*", str(error))
            given = ", ".join(f"{k}={_kind(v)}" for k, v in arguments.items())
            raise ArgumentError(said[0] if said else f"{op.name} cannot take {given}") from None


ONE = shape_of(1, 1)


def _given(op: Op, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments without a timeout that is None: what waits for ever is another kernel."""
    given = dict(arguments)
    timeout = given.pop("timeout_ns", None)
    return given if timeout is None else {**given, "timeout_ns": _nanoseconds(op.name, timeout)}


def _nanoseconds(name: str, timeout: Any) -> int:
    if isinstance(timeout, bool | np.bool_) or not hasattr(timeout, "__index__"):
        raise ArgumentError(
            f"{name}: timeout_ns must be an integer of nanoseconds or None, not {timeout!r}"
        )
    if timeout < 0:
        raise error_of(BAD_TIMEOUT, name, timeout)
    return min(operator.index(timeout), LONGEST)


def _result(op: Op, arguments: dict[str, Any]) -> str | None:
    """The dtype of what the operation returns, if it returns something."""
    plain = op.base.removesuffix("_vector")
    timed = arguments.get("timeout_ns") is not None
    return (WITH_TIMEOUT if timed else {}).get(plain) or RESULTS.get(plain)


def fitting(name: str, value: Any, dtype: np.dtype[Any]) -> int:
    """`value` as an integer that `dtype` can hold; raises `ArgumentError` if it is none."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name}: value must be an integer, not {value!r}") from None
    if dtype.kind in "iu" and not np.iinfo(dtype).min <= number <= np.iinfo(dtype).max:
        raise ArgumentError(f"{name}: value {number} is outside of the range of {dtype}")
    return number


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"array of {value.dtype}, shape {value.shape}"
    return repr(value)


def _caller(op: Op, given: tuple[str, ...], words: dict[str, str]) -> Any:
    """A kernel's function that calls the operation with what is `given`, `words` as literals."""
    text = CALL.format(
        name=op.name, params=", ".join(p for p in given if p not in words),
        out="out[0] = " if _result(op, dict.fromkeys(given, 1)) else "",
        arguments=", ".join(repr(words.get(p)) if p in words else p for p in given),
    )  # fmt: skip
    scope: dict[str, Any] = {"operation": op.function, "__name__": __name__}
    exec(text, scope)  # noqa: S102
    scope[op.name].__name__ = f"{op.name}{ON_THE_HOST}"
    return scope[op.name]
