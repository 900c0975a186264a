"""The operation table: each operation is declared once, with the forms it comes in.

A declaration is a Python function: its signature is the operation's, its docstring the contract.
`declare` adds one row per form, `put` giving `put`, `put_nbi`, `put_warp`, `put_nbi_warp`,
`put_block` and `put_nbi_block`, and one function per row. Called on the host, that function runs
the host side of the runtime; met in a kernel, it stands for what the running backend lowers the
row to. Nothing here knows how.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gpushmem.errors import ArgumentTypeError, NotInitializedError, ShmemError

__all__ = ["BLOCK", "OPS", "THREAD", "WARP", "Op", "declare", "host"]

THREAD, WARP, BLOCK = "thread", "warp", "block"

SCOPE_NOTE = {
    THREAD: "",
    WARP: "Every thread of the warp calls, with the same arguments; the warp acts as one.",
    BLOCK: "Every thread of the block calls, with the same arguments; the block acts as one.",
}
VECTOR = "_vector"
VECTOR_NOTE = (
    "`value` is an array as long as `ivars`: each element is compared with the one beside it."
)
NBI_NOTE = "Non-blocking: `src` and `dst` may be touched again only after `quiet`."


@dataclass(frozen=True, eq=False)
class Op:
    """One row: an operation in one scope and one completion mode."""

    name: str
    base: str
    scope: str
    nbi: bool
    kernel: bool  # callable in kernels
    host: bool  # callable on the host
    params: tuple[str, ...]
    kinds: dict[str, str]  # parameter -> what it takes, as the declaration annotates it
    doc: str
    function: Callable[..., Any]

    @property
    def form(self) -> str:
        """What the name has behind the operation's: "_nbi_block", say."""
        return self.name.removeprefix(self.base)


OPS: dict[str, Op] = {}


@dataclass(frozen=True)
class Where:
    """Where an operation may be called."""

    kernel: bool
    host: bool
    stream: bool  # if on the host


class Host:
    """Where host calls go: the runtime sets `call` while it is initialised."""

    call: Callable[[Op, dict[str, Any]], Any] | None = None


host = Host()


def declare(
    *,
    scopes: tuple[str, ...] = (THREAD,),
    nbi: bool = False,
    in_kernels: bool = True,
    on_host: bool = False,
    stream: bool = True,
    vector: bool = False,
    note: str = "",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the rows of the decorated operation to the table; return the first one's function.

    What is on the host takes its turn on a `stream`, too, unless it only answers a question.
    `vector` adds a form with an array as the value, `note` is a paragraph that the docstrings of a
    family have in common.
    """
    where = Where(in_kernels, on_host, stream)

    def add(declaration: Callable[..., Any]) -> Callable[..., Any]:
        for scope in scopes:
            for form in (False, True) if nbi else (False,):
                _add_row(declaration, scope, form, where, [note])
        if vector:
            _add_row(declaration, THREAD, False, where, [VECTOR_NOTE, note], VECTOR)
        return next(op.function for op in OPS.values() if op.base == declaration.__name__)

    return add


def _add_row(
    declaration: Callable[..., Any],
    scope: str,
    nbi: bool,
    where: Where,
    notes: list[str],
    form: str = "",
) -> None:
    base = declaration.__name__ + form
    name = base + ("_nbi" if nbi else "") + ("" if scope == THREAD else f"_{scope}")
    notes = [*notes, SCOPE_NOTE[scope], NBI_NOTE if nbi else ""]
    doc = "\n\n".join([inspect.getdoc(declaration) or "", *filter(None, notes)])
    signature = inspect.signature(declaration)
    if form == VECTOR:
        signature = _annotated(signature, "value", "Array")
    if scope != THREAD or nbi:
        where = replace(where, host=False)
    function = _function(name, doc, signature, where, declaration.__module__)
    kinds = {param.name: param.annotation for param in signature.parameters.values()}
    OPS[name] = Op(
        name, base, scope, nbi, where.kernel, where.host, tuple(kinds), kinds, doc, function
    )


def _annotated(signature: inspect.Signature, name: str, kind: str) -> inspect.Signature:
    params = signature.parameters.values()
    return signature.replace(
        parameters=[p.replace(annotation=kind) if p.name == name else p for p in params]
    )


def _function(
    name: str, doc: str, signature: inspect.Signature, where: Where, module: str
) -> Callable[..., Any]:
    if where.host and where.stream:
        stream = inspect.Parameter("stream", inspect.Parameter.KEYWORD_ONLY, default=None)
        signature = signature.replace(parameters=[*signature.parameters.values(), stream])

    def operation(*args: Any, **kwargs: Any) -> Any:
        if not where.host:
            raise ShmemError(f"{name} can be called inside kernels only")
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentTypeError(f"{name}{_plain(signature)}: {error}") from None
        if host.call is None:
            raise NotInitializedError(f"{name}: call gpushmem.init() first")
        bound.apply_defaults()
        try:
            return host.call(OPS[name], bound.arguments)
        except ShmemError as error:  # as `arguments.public`
            raise error.with_traceback(None)  # noqa: B904

    operation.__name__ = operation.__qualname__ = name
    operation.__doc__ = doc
    operation.__module__ = module
    operation.__signature__ = signature  # type: ignore[attr-defined]
    return operation


def _plain(signature: inspect.Signature) -> inspect.Signature:
    """The signature without annotations, as a message shows it."""
    params = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return signature.replace(parameters=params, return_annotation=signature.empty)
