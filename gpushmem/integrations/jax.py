"""Collectives of PEs inside `jax.jit`, on CPUs: what `jax.lax.psum` and its like are to a mesh.

Each process is a PE with one device of JAX's. Its program is what one would give to `shard_map`.
XLA calls a function of ours through its typed FFI with the memory of its own arrays, from which the
collective sends, and to which it writes (`backends/cpu/host_collectives.py`).

All PEs must make the same calls in the same order; XLA for CPUs runs what does not depend on each
other in any order, or at once. So the calls have an *ordered effect* of JAX's: each takes a token
that the one before it has made, also from one jitted function to the next. The order is that in
which Python makes the calls, or traces them. Under `grad`, `vmap`, `scan` and `cond` they have the
effect, too, which keeps them even if nobody uses their result.

Errors are JAX's (`jax.errors.JaxRuntimeError`), with the name and the text of ours, where the
result is waited for; so is the error of all later calls of that team. Wrong arguments raise
`ArgumentError` when the function is called, or traced.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from typing import Any

import jax
import jax.extend
import numpy as np
from jax._src import core, dispatch, distributed, effects
from jax.interpreters import batching, mlir

from gpushmem import runtime
from gpushmem.errors import ArgumentError, ShmemError
from gpushmem.integrations.xla_ffi import DTYPES, Buffer, handler
from gpushmem.integrations.xla_teams import REDUCTIONS, ROWS, WHAT, collective, here
from gpushmem.memory.array import DeviceArray
from gpushmem.ops import TEAM_WORLD

__all__ = ["all_gather", "all_reduce", "all_to_all", "as_jax", "init", "reduce_scatter"]


def init(**options: Any) -> None:
    """Make this process a PE; collective. `options` are those of `gpushmem.init`.

    After `jax.distributed.initialize` its processes become the PEs: PE k is process k, and they
    find each other through JAX's coordinator, whoever started them. Without it, this is
    `gpushmem.init`. Raises what that raises.
    """
    client = distributed.global_state.client
    if client is not None:
        options["process_group"] = _Processes(client)
    runtime.init(**options)


class _Processes:
    """What `gpushmem.init` needs to know of a process group, and of its store."""

    def __init__(self, client: Any) -> None:
        self.rank, self.size = jax.process_index, jax.process_count
        self._client, self.get_group_store = client, lambda: self
        self.set, self.delete_key = client.key_value_set_bytes, client.key_value_delete
        self.get = client.key_value_try_get_bytes

    def check(self, names: Sequence[str]) -> bool:
        """Whether there are all these keys."""
        try:
            return all(map(self.get, names))
        except jax.errors.JaxRuntimeError as error:
            if "NOT_FOUND" in str(error):
                return False
            raise


# --- collectives


def all_reduce(x: Any, *, op: str = "sum", team: Any = TEAM_WORLD) -> jax.Array:
    """Combine all PEs' `x`; collective over `team`, each PE of which gets the same bits.

    `x` has any shape, the same on all PEs; so has the result. `op` is "sum", "prod", "min" or
    "max", of integers also "and", "or", "xor". The elements are combined in the order of the PEs.
    The gradient, of a sum alone, is that of the result, which must be the same on all PEs, as in
    Megatron-LM and with `jax.lax.psum`: each computes the same loss. OpenSHMEM 1.5, 9.9.
    """
    if op not in REDUCTIONS[1:]:
        raise ArgumentError(f"all_reduce: op is {op!r}; there are {', '.join(REDUCTIONS[1:])}")
    return _call("all_reduce", x, team, op)


def all_gather(x: Any, *, team: Any = TEAM_WORLD) -> jax.Array:
    """Gather all PEs' `x` (...) as (n_pes, ...), in the order of the PEs; collective over `team`.

    The gradient is `reduce_scatter` of that of the result. OpenSHMEM 1.5, 9.9: fcollect.
    """
    return _call("all_gather", x, team)


def reduce_scatter(x: Any, *, team: Any = TEAM_WORLD) -> jax.Array:
    """Sum up all PEs' `x` (n_pes, ...); PE k gets row k (...). Collective over `team`.

    The gradient is `all_gather` of that of the result.
    """
    return _call("reduce_scatter", x, team, "sum")


def all_to_all(x: Any, *, team: Any = TEAM_WORLD) -> jax.Array:
    """Send row k of `x` (n_pes, ...) to PE k; row k of the result (n_pes, ...) is from PE k.

    Collective over `team`. The gradient is `all_to_all` of that of the result. OpenSHMEM 1.5, 9.9.
    """
    return _call("all_to_all", x, team)


def _call(what: str, x: Any, team: Any, op: str = "") -> jax.Array:
    x = jax.numpy.asarray(x)
    n = team.n_pes
    if x.dtype.name not in DTYPES.values() or (x.dtype == bool and op):
        raise ArgumentError(f"{what}: x is of {x.dtype}; supported are {', '.join(NUMBERS)}")
    if op in ("and", "or", "xor") and x.dtype.kind not in "iu":
        raise ArgumentError(f"{what}: {op!r} is of integers, and x of {x.dtype}")
    if what in ROWS and x.shape[:1] != (n,):
        raise ArgumentError(f"{what}: x has the shape {x.shape}, and needs ({n}, ...): {n} PEs")
    return _differentiable(what, op, here().calls(team).number, n)(x)


NUMBERS = tuple(DTYPES.values())[1:]
TRANSPOSED = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}


@cache
def _differentiable(what: str, op: str, team: int, n: int) -> Any:
    """The collective with its gradient."""
    bind = partial(collective_p.bind, team=team, n=n)
    function = jax.custom_vjp(partial(bind, what=what, op=op))
    back = TRANSPOSED.get(what, what)

    def backward(_: None, gradient: Any) -> Any:
        if op not in ("", "sum"):
            raise ArgumentError(f"{what}: only sums have gradients, not {op!r}")
        if what == "all_reduce":
            return (gradient,)
        return (bind(gradient, what=back, op="sum" if back == "reduce_scatter" else ""),)

    function.defvjp(lambda x: (function(x), None), backward)
    return function


# --- JAX's primitives

COLLECTIVE, RUN = "gpushmem_collective", "gpushmem_run"  # what XLA knows of us


class _Ordered(effects.Effect):  # type: ignore[misc]
    """What orders the calls of this module."""

    def __str__(self) -> str:
        return "gpushmem"


ORDERED = _Ordered()
for kinds in (
    effects.lowerable_effects, effects.ordered_effects, effects.control_flow_allowed_effects,
    effects.custom_derivatives_allowed_effects, effects.remat_allowed_effects,
):  # fmt: skip
    kinds.add_type(_Ordered)


def _shape(x: Any, what: str, n: int) -> tuple[int, ...]:
    """Shape of the result."""
    return {"all_gather": (n, *x.shape), "reduce_scatter": x.shape[1:]}.get(what, x.shape)


def _abstract(x: Any, *, what: str, op: str, team: int, n: int) -> Any:
    return core.ShapedArray(_shape(x, what, n), x.dtype), {ORDERED}


def _batched(args: Any, axes: Any, *, what: str, op: str, team: int, n: int) -> Any:
    """One call for all: they are side by side in each row."""
    (x,), (axis,) = args, axes
    x = jax.numpy.moveaxis(x, axis, 1 if what in ROWS else 0)
    made = collective_p.bind(x, what=what, op=op, team=team, n=n)
    return made, 1 if what in ("all_gather", "all_to_all") else 0


def _lowered(target: str, ctx: Any, *operands: Any, **numbers: int) -> Any:
    """A call of XLA's to a handler, which takes and gives a token."""
    token, kind = ctx.tokens_in.get(ORDERED), core.abstract_token
    inner = ctx.replace(avals_in=[kind, *ctx.avals_in], avals_out=[kind, *ctx.avals_out])
    lower = jax.ffi.build_ffi_lowering_function(target, has_side_effect=True)
    numbers = {name: np.int64(value) for name, value in numbers.items()}
    token, *results = lower(inner, token, *operands, **numbers).results
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({ORDERED: token})))
    return results


def _lower_collective(ctx: Any, x: Any, *, what: str, op: str, team: int, n: int) -> Any:
    return _lowered(
        COLLECTIVE, ctx, x, op=REDUCTIONS.index(op), team=team, what=WHAT.index(what)
    )  # fmt: skip


def _primitive(name: str, abstract: Any, lower: Any, several: bool) -> Any:
    made = jax.extend.core.Primitive(name)
    made.multiple_results = several
    made.def_effectful_abstract_eval(abstract)
    made.def_impl(partial(dispatch.apply_primitive, made))
    mlir.register_lowering(made, lower, platform="cpu")
    return made


collective_p = _primitive("gpushmem", _abstract, _lower_collective, several=False)
batching.primitive_batchers[collective_p] = _batched


# --- plans, and all else


def as_jax(run: Callable[..., None], *results: Any) -> Callable[..., Any]:
    """Make a function for `jax.jit` of `run(*inputs, *outputs)`, which calls plans, or kernels.

    Both are device arrays, on the memory of XLA's arrays: `run` writes all `outputs`, of the shapes
    and dtypes of `results` (`jax.ShapeDtypeStruct`), and leaves `inputs` as they are. They are
    gone when it has returned and its launches have ended. It returns a tuple, or, where there is
    one in `results`, an array. `run` is called by a thread of XLA's, in the order of all calls of
    this module; it is kept for ever. There is no gradient, and no `vmap`: see `jax.custom_vjp` and
    `jax.custom_batching`.

        gather = as_jax(lambda x, out: plan(x, out=out), jax.ShapeDtypeStruct((n, 64), "float32"))
    """
    number = secrets.randbits(62)  # of no other process: XLA's code may be kept by JAX
    avals = tuple(core.ShapedArray(each.shape, each.dtype) for each in results)
    _runs[number] = run

    def function(*inputs: Any) -> Any:
        made = run_p.bind(*map(jax.numpy.asarray, inputs), number=number, avals=avals)
        return made[0] if len(avals) == 1 else tuple(made)

    return function


_runs: dict[int, Callable[..., None]] = {}


@lru_cache(1024)
def _view(backend: Any, buffer: Buffer) -> DeviceArray:
    """The same object for the same memory, so that a plan's launch is prepared once."""
    return DeviceArray(buffer.numpy(), backend)


def _run(arguments: list[Buffer], results: list[Buffer], numbers: list[int]) -> None:
    (number,) = numbers
    if number not in _runs:
        raise ShmemError("as_jax: this function was compiled in another process: clear JAX's cache")
    backend = here().runtime.backend
    _runs[number](*(_view(backend, each) for each in (*arguments, *results)))
    runtime.synchronize()


run_p = _primitive(
    "gpushmem_run", lambda *_, number, avals: (avals, {ORDERED}),
    lambda ctx, *operands, number, avals: _lowered(RUN, ctx, *operands, number=number),
    several=True,
)  # fmt: skip

_handlers = {COLLECTIVE: collective(), RUN: handler(_run)}  # XLA has their addresses
for target, function in _handlers.items():
    jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(function), platform="cpu", api_version=1)
