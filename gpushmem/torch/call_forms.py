"""The forms in which a process group's calls may be written, and what must fit in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch import Tensor

from gpushmem.errors import ArgumentError

__all__ = ["CallError", "all_forms", "flat", "naming", "only", "root_of"]


class CallError(ArgumentError, RuntimeError):
    """An argument of a call that the group cannot take; nothing of it has been sent."""


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Errors about arguments name the call, and are those that Gloo's users expect."""
    try:
        yield
    except CallError:
        raise
    except ArgumentError as error:
        raise CallError(f"{what}: {error}") from None


FIELDS = {"root": "rootRank", "op": "reduceOp", "timeout": "timeout"}


def all_forms(
    tensors: int, options: type, *names: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a method be called as that of `torch.distributed.ProcessGroup`, in each of its forms.

    `tensors` arguments come first, lists, or one of them is a tensor, and each stands for a list of
    itself. Then `options`, or what they are made of: values called `names`, and a timeout.
    """
    names = (*names, "timeout")

    def around(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(self: Any, *args: Any, opts: Any = None, **given: Any) -> Any:
            lists, rest = args[:tensors], args[tensors:]
            if rest and isinstance(rest[0], options):
                return method(self, *lists, *rest)
            if opts is None:
                opts = options()
                given.update(zip(names, rest, strict=False))
                for name, value in given.items():
                    if value is not None:
                        setattr(opts, FIELDS[name], value)
            if any(isinstance(each, Tensor) for each in lists):
                lists = tuple([each] for each in lists)
            return method(self, *lists, opts)

        return call

    return around


def only(what: str, given: Sequence[Any]) -> Any:
    """The one tensor, or list of tensors, that a rank gives to a call."""
    if len(given) != 1:
        raise CallError(f"{what} takes one tensor of each rank, or one list; not {len(given)}")
    return given[0]


def root_of(what: str, opts: Any, n: int) -> int:
    """The rank that a call is from or to."""
    root: int = opts.rootRank
    if not 0 <= root < n:
        raise CallError(f"{what}: the root is rank {root}; there are ranks 0 to {n - 1}")
    if getattr(opts, "rootTensor", 0):
        raise CallError(f"{what} takes one tensor of each rank; root tensor {opts.rootTensor}")
    return root


def flat(tensors: Sequence[Any]) -> list[Tensor]:
    """The tensors in lists of lists."""
    if isinstance(tensors, Tensor):
        return [tensors]
    return [one for each in tensors for one in flat(each)]
