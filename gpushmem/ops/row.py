"""The operation table: each operation is declared once, with all that is known of it.

A declaration is a Python function: its signature is the operation's, with roles (`roles`) as
annotations, and its docstring the contract. `declare` says the rest: in which forms the operation
comes, which memory it reads and writes, what it waits for, and what is complete on return. It adds
one row per form, `put` giving `put`, `put_nbi`, `put_warp`, `put_nbi_warp`, `put_block` and
`put_nbi_block`, and one function per row. Called on the host, that function runs the host side of
the runtime; met in a kernel, it stands for what the running backend lowers the row to. Nothing here
knows how.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from gpushmem.errors import ArgumentTypeError, NotInitializedError, ShmemError
from gpushmem.ops import roles
from gpushmem.ops.roles import Argument, Array, Result

THREAD, WARP, BLOCK = "thread", "warp", "block"
EVERY_SCOPE = (THREAD, WARP, BLOCK)
HOST = "host"  # among the scopes of a declaration: a form for hosts alone, which is no thread's
ON_THE_HOST = " on the host"  # ends the names of kernels that run an operation for the host

# --- what an operation does with memory

READS, WRITES, UPDATES = "reads", "writes", "updates"
DATA, SIGNAL, ATOMIC, UNIT, LINE = "data", "signal", "atomic", "unit", "line"
# Of words that have data and flags (`ops.ll`): bytes of data, and how many words have them.
WORDS = {UNIT: (4, 1), LINE: (240, 32)}


class Effect(NamedTuple):
    """What an operation does with the memory that one array argument names.

    `how` it is accessed: READS, WRITES or UPDATES (reads and writes at once); `kind`: as DATA, in
    pieces and without order; as a SIGNAL, which is set, or added to if the argument `op` says so;
    as an ATOMIC element, which is changed as the operation's name says; or as UNITs or LINEs, as
    many as the extent's bytes need (WORDS), in every row of a matrix. `extent` says how much: "0",
    the element 0; the name of an array, the first elements, as many as that has; of an integer, so
    many from the array's `Place` on; "stride", `nelems` elements, `{array}_stride` apart; "parts",
    as the operation's docstring says.
    """

    how: str
    array: str
    extent: str
    kind: str


def reads(array: str, extent: str = "", kind: str = DATA) -> Effect:
    """An array is read, all of it if nothing else is said."""
    return Effect(READS, array, extent or array, kind)


def writes(array: str, extent: str = "", kind: str = DATA) -> Effect:
    """An array is written."""
    return Effect(WRITES, array, extent or array, kind)


def updates(array: str, extent: str = "0", kind: str = ATOMIC) -> Effect:
    """An array is read and written in one step."""
    return Effect(UPDATES, array, extent, kind)


RETURN, FLUSH, QUIET, COPIED, PHASE = "return", "flush", "quiet", "copied", "phase"


class Completion(NamedTuple):
    """When `src` may be changed again, and when `dst` has the data.

    On RETURN, after FLUSH, which completes sources only, or after QUIET, which completes both; of
    copies to shared memory when they have been COPIED, which the thread that began them waits for,
    or when a PHASE of an mbarrier is complete, which any thread of the block waits for.
    """

    source: str
    data: str


PUT, GET = Completion(RETURN, QUIET), Completion(RETURN, RETURN)
COPY, BULK = Completion(COPIED, COPIED), Completion(PHASE, PHASE)
NONBLOCKING = {PUT: Completion(FLUSH, QUIET), GET: Completion(QUIET, QUIET)}
COMPLETIONS = {
    PUT: "On return `src` may be changed; the data has arrived after `quiet`.",
    GET: "On return `dst` has the data.",
    COPY: "Until `copy_async_wait` do not change `src`, nor read or write `dst`.",
    BULK: "Until `mbarrier_wait` for the phase do not change `src`, nor read or write `dst`.",
    NONBLOCKING[PUT]: "Non-blocking: do not change `src` until `flush` or `quiet`; the data has "
    "arrived after `quiet`.",
    NONBLOCKING[GET]: "Non-blocking: until `quiet` do not change `src`, nor read `dst`.",
}

# --- rows

SCOPE_NOTE = {
    THREAD: "",
    WARP: "Every thread of the warp calls, with the same arguments; the warp acts as one.",
    BLOCK: "Every thread of the block calls, with the same arguments; the block acts as one.",
}
LOCAL_ON_HOST = (
    "On the host the local array is device or symmetric memory, or registered (`register`); if "
    "`pe` is on another machine, symmetric or registered."
)
VECTOR = "_vector"
VECTOR_NOTE = "Each `ivars[i]` is compared with `value[i]`; the lengths are equal."
QP = "qp_"  # begins the names of operations on a queue pair
QP_NOTE = """`qp` is a number from `qp_create`, QP_DEFAULT, or QP_ANY: any queue pair. `qp_quiet`
completes the operation if its queue pair is among those given, and so do `quiet` and barriers.
`qp_fence` orders it; `fence` only if `qp` is QP_DEFAULT. Where memory of `pe` is mapped, loads and
stores are used, and no queue pair. NVSHMEM 3: nvshmemx_{}, with the dtype in its name."""


class Facts(NamedTuple):
    """What a declaration says that holds for all forms.

    `effects` on memory, in the order in which they become visible; `completion` of copies; the
    parameter that the call `waits_for`, "" if it waits for no memory; whether it `meets`: all
    members of its team have to call, or all PEs if it has none; what it `orders`: "fence", "flush"
    and "quiet", which complete sources and all, "barrier", a quiet of all members, "" if nothing;
    of copies to shared memory, "commit", the end of a group, and "copies", which completes groups;
    of mbarriers, "arrival", and "phase", which waits until one is complete.
    """

    effects: tuple[Effect, ...] = ()
    completion: Completion | None = None
    waits_for: str = ""
    meets: bool = False
    orders: str = ""


@dataclass(frozen=True, eq=False)
class Op:
    """One row: an operation in one scope and one completion mode."""

    name: str
    base: str
    scope: str
    nbi: bool
    where: Where
    roles: dict[str, type[Argument]]  # parameter -> what it takes
    returns: type[Result]
    facts: Facts
    doc: str
    function: Callable[..., Any]

    @property
    def kernel(self) -> bool:
        """Whether it can be called in kernels."""
        return self.where.kernel

    @property
    def host(self) -> bool:
        """Whether the host can call it."""
        return self.where.host

    @property
    def form(self) -> str:
        """What the name has behind the operation's: "_nbi_block", say."""
        return self.name.removeprefix(self.base)

    @cached_property
    def plain(self) -> str:
        """The base name of the same operation without a queue pair."""
        return self.base.removeprefix(QP) if self.named(roles.QueuePair) else self.base

    @cached_property
    def params(self) -> tuple[str, ...]:
        """The names of the parameters."""
        return tuple(self.roles)

    def named(self, role: type[Argument]) -> tuple[str, ...]:
        """The parameters of a role, or of one derived from it."""
        return tuple(name for name, given in self.roles.items() if issubclass(given, role))

    @cached_property
    def arrays(self) -> dict[str, type[Array]]:
        """The parameters that are arrays, with their roles."""
        return {name: role for name, role in self.roles.items() if issubclass(role, Array)}

    @cached_property
    def places(self) -> dict[str, str]:
        """The parameters that say at which element an array is meant to begin, behind it."""
        where = self.named(roles.Place)
        return {
            name: after for name, after in zip(self.params, self.params[1:], strict=False)
            if name in self.arrays and after in where
        }  # fmt: skip

    @cached_property
    def local(self) -> tuple[str, ...]:
        """The parameters that are local memory."""
        return self.named(roles.Source) + self.named(roles.Target)

    @cached_property
    def waits(self) -> bool:
        """Whether a call may have to wait for other PEs."""
        return self.facts.meets or bool(self.facts.waits_for)

    @property
    def is_event(self) -> bool:
        """Whether a call does more than to ask or to compute: what readers of events see."""
        return bool(self.facts.effects or self.waits or self.facts.orders)

    @cached_property
    def typed(self) -> bool:
        """Whether a host's call runs as a kernel that is compiled for the types of its arrays."""
        return bool(self.named(roles.Own)) or (self.facts.meets and bool(self.arrays))

    @cached_property
    def hears(self) -> bool:
        """Whether a call returns at once what other PEs may have written."""
        return not self.waits and any(
            (effect.how == READS and self.arrays[effect.array].symmetric)
            or (effect.how == UPDATES and self.returns.dtype is not None)
            for effect in self.facts.effects
        )  # fmt: skip

    def result(self, timed: bool = False) -> str | None:
        """The dtype of what a call returns, with a timeout or without; see `roles.Result`."""
        return (self.returns.timed if timed and self.returns.timed else self.returns).dtype


OPS: dict[str, Op] = {}


class Where(NamedTuple):
    """Where an operation may be called."""

    kernel: bool
    host: bool
    stream: bool  # if on the host


class Host:
    """Where host calls go: the runtime sets `call` while it is initialised."""

    call: Callable[[Op, dict[str, Any]], Any] | None = None


host = Host()


def declare(
    *effects: Effect,
    scopes: tuple[str, ...] = (THREAD,),
    nbi: bool = False,
    in_kernels: bool = True,
    on_host: bool = False,
    stream: bool = True,
    vector: bool = False,
    qp: bool = False,
    completion: Completion | None = None,
    waits_for: str = "",
    meets: bool = False,
    orders: str = "",
    note: str = "",
    host_note: str = "",
    suffix: bool = True,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the rows of the decorated operation to the table; return the first one's function.

    It has the form of every one of `scopes`, and with `nbi` a non-blocking one of each; that of
    HOST is the operation's name, for hosts alone. Host operations accept `stream=`, but those
    declared with `stream=False`: they answer at once.
    `vector` adds a form with an array as the value, `qp` an operation with the same forms, for
    kernels, whose last argument is a queue pair. `note` is a paragraph that the docstrings of a
    family have in common, `host_note` one of the forms that the host can call. Without `suffix` the
    name does not tell the scope. For the rest see `Facts`.
    """
    where = Where(in_kernels, on_host, stream)
    facts = Facts(effects, completion, waits_for, meets, orders)
    notes = Notes(note, host_note)

    def add(declaration: Callable[..., Any]) -> Callable[..., Any]:
        _check_names(declaration, facts)
        for prefix in ("", QP) if qp else ("",):
            for scope in scopes:
                for form in (False, True) if nbi else (False,):
                    _add_row(declaration, scope, form, where, facts, notes, "", prefix, suffix)
        if vector:
            _add_row(declaration, THREAD, False, where, facts, notes, VECTOR)
        return next(op.function for op in OPS.values() if op.base == declaration.__name__)

    return add


def _check_names(declaration: Callable[..., Any], facts: Facts) -> None:
    """Raise for effects, and waits, of parameters that the operation does not have."""
    params = inspect.signature(declaration).parameters
    for how, array, extent, _ in facts.effects:
        used = [array]
        if extent == "stride":
            used += [f"{array}_stride", "nelems"]
        elif extent not in ("0", "parts"):
            used.append(extent)
        for name in used:
            if name not in params:
                said = f"{array!r}" if extent in (array, "0") else f"{array!r}, {extent!r}"
                raise ValueError(f"{declaration.__name__}: {how}({said}): it has no such parameter")
    if facts.waits_for and facts.waits_for not in params:
        raise ValueError(
            f"{declaration.__name__}: waits_for={facts.waits_for!r}: it has no such parameter"
        )


class Notes(NamedTuple):
    """Paragraphs that follow a declaration's docstring: in all forms, and in those of the host."""

    every: str
    host: str


def _add_row(
    declaration: Callable[..., Any],
    scope: str,
    nbi: bool,
    where: Where,
    facts: Facts,
    notes: Notes,
    form: str = "",
    prefix: str = "",
    suffix: bool = True,
) -> None:
    base = prefix + declaration.__name__ + form
    if scope == HOST:
        scope, where = THREAD, where._replace(kernel=False, host=True)
    name = base + "_nbi" * nbi + (f"_{scope}" if suffix and scope != THREAD else "")
    if nbi and facts.completion:
        facts = facts._replace(completion=NONBLOCKING[facts.completion])
    if scope != THREAD or nbi or prefix:
        where = where._replace(host=False)
    signature, roles_ = _signature(declaration, where, form == VECTOR, prefix == QP)
    completion = COMPLETIONS[facts.completion] if facts.completion is not None else ""
    text = inspect.getdoc(declaration) or ""
    said = VECTOR_NOTE if form == VECTOR else "", notes.every, notes.host if where.host else ""
    if prefix == QP:
        plain = f"{declaration.__name__}({', '.join([*roles_][:-1])})"
        text, said = f"`{plain}` on the queue pair `qp`.", (QP_NOTE.format(base),)
        completion = completion.replace("`flush` or", "`flush`,")
        completion = completion.replace("`quiet`", "`qp_quiet` or `quiet`")
    doc = "\n\n".join(filter(None, [text, completion, *said, SCOPE_NOTE[scope]]))
    function = _function(name, doc, signature, where, declaration.__module__)
    returns = _role(declaration, inspect.signature(declaration).return_annotation)
    OPS[name] = Op(name, base, scope, nbi, where, roles_, returns, facts, doc, function)


def _role(declaration: Callable[..., Any], annotation: Any) -> Any:
    if annotation in (None, "None"):
        return Result
    found = getattr(roles, annotation, None) if isinstance(annotation, str) else annotation
    assert isinstance(found, type), f"{declaration.__name__}: {annotation} is no role"
    return found


def _signature(
    declaration: Callable[..., Any], where: Where, vector: bool, qp: bool
) -> tuple[inspect.Signature, dict[str, type[Argument]]]:
    """What a program calls, with types as annotations; and the parameters' roles."""
    signature = inspect.signature(declaration)
    roles_ = {p.name: _role(declaration, p.annotation) for p in signature.parameters.values()}
    if vector:
        roles_["value"] = roles.WantedArray
    params = [p.replace(annotation=roles_[p.name].stub) for p in signature.parameters.values()]
    if qp:
        roles_["qp"] = roles.QueuePair
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        params.append(inspect.Parameter("qp", kind, annotation=roles.QueuePair.stub))
    if where.host and where.stream:
        params.append(inspect.Parameter("stream", inspect.Parameter.KEYWORD_ONLY, default=None))
    returns = _role(declaration, signature.return_annotation)
    return inspect.Signature(params, return_annotation=returns.stub), roles_


def _function(
    name: str, doc: str, signature: inspect.Signature, where: Where, module: str
) -> Callable[..., Any]:
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
