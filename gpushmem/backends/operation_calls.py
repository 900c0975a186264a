"""Calls of operations in kernels, as Numba sees them, on every backend.

An operation's name stands for an `Operation`, which checks a call by the row and passes it on
to the running backend's function for the row.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from difflib import get_close_matches
from functools import cached_property
from typing import Any

from numba.cuda import types
from numba.cuda.core.errors import TypingError
from numba.cuda.cudadecl import register_attr
from numba.cuda.datamodel.models import OpaqueModel
from numba.cuda.models import register_model
from numba.cuda.typing.templates import AttributeTemplate

from gpushmem.artifacts.compile_errors import Refused
from gpushmem.artifacts.compile_time_name import KernelName
from gpushmem.backends import argument_types
from gpushmem.backends.team_type import numbered
from gpushmem.ops import Op

__all__ = ["Operation"]


class Operation(KernelName, types.Callable):
    """Type of an operation's name in a kernel.

    Numba calls what `lower()` returns in its place; `lower` is called when a kernel first has the
    name. `check(row, types of arguments)` raises for what this backend alone cannot do.
    """

    def __init__(
        self,
        op: Op,
        lower: Callable[[], Any],
        check: Callable[[Op, dict[str, Any]], Any] | None = None,
        *, polls: bool = False,
    ) -> None:  # fmt: skip
        self.op, self.label, self._lower, self._check = op, op.name, lower, check
        self.polls = polls
        self._callee: Any = None
        super().__init__(op.name)

    @property
    def key(self) -> Any:
        """Operations of different backends differ."""
        return self.op.name, id(self._lower)

    @cached_property
    def meaning(self) -> Any:
        """What Numba is to call."""
        return self._lower()

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        """Check the call, and type it as a call of `meaning`."""
        args = tuple(map(numbered, args))
        kws = {name: numbered(typ) for name, typ in kws.items()}
        try:
            given = argument_types.check_call(
                self.op, args, kws,
                lambda given, wanted: context.can_convert(given, wanted) is not None,
            )  # fmt: skip
            if self._check is not None:
                self._check(self.op, given)
        except TypingError as error:
            raise Refused(str(error)) from None
        self._callee = context.resolve_value_type(self.meaning)
        return context.resolve_function_type(self._callee, args, kws)

    def get_call_signatures(self) -> Any:
        """The signatures that Numba lists in errors: none."""
        return [], True

    def get_impl_key(self, sig: Any) -> Any:
        """The key by which Numba finds the code of a typed call."""
        return self._callee.get_impl_key(sig)


register_model(Operation)(OpaqueModel)

HOST_ONLY = {
    "trace_range": "trace_range_start and trace_range_end", "gemm_scaled": "gemm_block",
    "gemm_batched": "gemm_block",
}  # fmt: skip


@register_attr
class OperationsByName(AttributeTemplate):
    """`gpushmem.name` in a kernel: an unknown name is an error with the kernel's line."""

    key = types.Module(sys.modules["gpushmem"])

    def generic_resolve(self, module: Any, name: str) -> Any:
        """Raise for unknown names; Numba resolves the others."""
        if not hasattr(module.pymod, name):
            near = get_close_matches(name, module.pymod.__all__, 3)
            hint = f": did you mean {' or '.join(near)}?" if near else ""
            raise Refused(f"gpushmem has no {name}{hint}")
        if name in HOST_ONLY:
            raise Refused(f"{name} is for the host; in kernels use {HOST_ONLY[name]}")
