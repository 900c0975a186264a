"""What an operator of PyTorch is made of, and how PyTorch is told of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpushmem.errors import ArgumentError
from gpushmem.torch.plans import lock

__all__ = ["Operator", "register"]

NAMESPACE = "gpushmem"


class Operator(NamedTuple):
    """One operator: its schema, what it returns, and how."""

    schema: str  # without the name of the namespace
    like: Callable[..., Sequence[Tensor]]  # from the arguments: tensors to be filled
    run: Callable[..., None]  # fills these (`out=`)
    keep: Callable[..., Sequence[Tensor]] | None = None  # from arguments and results: for gradients
    backward: Callable[..., Sequence[Tensor | None]] | None = None


def register(operator: Operator) -> None:
    """Make an operator known to PyTorch, with its out form, shapes and gradients."""
    name, _, rest = operator.schema.partition("(")
    given, _, results = rest.partition(") -> ")
    several, number = results.startswith("("), results.count("Tensor")
    outs = [f"out{k}" for k in range(number)] if several else ["out"]
    qualified = f"{NAMESPACE}::{name}"
    written = ", ".join(
        f"Tensor({letter}!) {out}" for letter, out in zip("abcd", outs, strict=False)
    )
    torch.library.define(qualified, f"({given}) -> {results}")
    torch.library.define(f"{qualified}.out", f"({given}, *, {written}) -> ()")

    def shapes(*args: Any) -> Any:
        made = operator.like(*args)
        return tuple(made) if several else made[0]

    def functional(*args: Any) -> Any:
        made = operator.like(*args)
        with lock:
            operator.run(*args, out=made)
        return tuple(made) if several else made[0]

    def into(*args: Any, **tensors: Tensor) -> None:
        out = [tensors[each] for each in outs]
        for one, wanted in zip(out, operator.like(*args), strict=True):
            if one.shape != wanted.shape or one.dtype != wanted.dtype or not one.is_contiguous():
                raise ArgumentError(
                    f"torch.ops.gpushmem.{name}.out: a result has shape {tuple(one.shape)} and "
                    f"{one.dtype}; it must be {tuple(wanted.shape)}, {wanted.dtype}, contiguous"
                )
        with lock:
            operator.run(*args, out=out)

    for key in ("CPU", "CUDA"):
        torch.library.impl(qualified, key, functional)
        torch.library.impl(f"{qualified}.out", key, into)
    torch.library.register_fake(qualified, shapes)
    torch.library.register_fake(f"{qualified}.out", lambda *args, **tensors: None)
    if operator.keep is not None and operator.backward is not None:
        _register_gradients(qualified, operator)


def _register_gradients(qualified: str, operator: Operator) -> None:
    keep, backward = operator.keep, operator.backward

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        results = output if isinstance(output, tuple) else (output,)
        ctx.save_for_backward(*keep(inputs, results))  # type: ignore[misc]
        ctx.others = [None if isinstance(each, Tensor) else each for each in inputs]

    def gradients(ctx: Any, *grads: Tensor) -> Any:
        return tuple(backward(ctx.saved_tensors, ctx.others, grads))  # type: ignore[misc]

    torch.library.register_autograd(qualified, gradients, setup_context=setup)
