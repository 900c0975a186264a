"""What programs register with numba-cuda-mlir's `extending`, for kernels on this target.

An extension in Python (`overload`, `overload_method`, `overload_attribute`, `register_jitable`) is
registered again, for this target alone, in numba-cuda's likeness: the function that chooses an
implementation gets numba-cuda-mlir's types, as it expects, and what it returns is compiled as a
device function. Types of the program's own have no contents here: constants are of them, so that
extensions can tell objects apart. Extensions whose code is MLIR (`intrinsic`, `lower_builtin`) are
refused: `why_not` says so.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache, wraps
from inspect import unwrap
from typing import Any

from numba.cuda import types
from numba.cuda.core import errors
from numba.cuda.core.imputils import Registry as CodeRegistry
from numba.cuda.datamodel.models import OpaqueModel
from numba.cuda.extending import register_model
from numba.cuda.typing import templates

from gpushmem.artifacts.mlir_aliases import (
    OPTIONS,
    ROOT,
    class_twin,
    theirs_of,
    twin,
    type_of_own,
    type_twin,
)
from gpushmem.artifacts.numba_extensions import of_mlir

__all__ = ["code", "lengths", "registry", "renew", "type_of", "why_not"]

registry, code = templates.Registry(), CodeRegistry("gpushmem.extended")
# Of these packages the extensions are known otherwise.
KNOWN = {ROOT, "gpushmem"}
# Targets of `overload` that are kept; others, numba-cuda-mlir's own, are this one.
TARGETS = {"generic", "cuda", "cpu"}
_taken: dict[int, int] = {}  # how many entries of each list are registered here


def lengths() -> list[int]:
    """How long the lists of extensions are; they only grow."""
    return [len(of) for each in of_mlir() for of in (each.functions, each.attributes)]


def renew() -> None:
    """Register what has been registered with numba-cuda-mlir since the last call."""
    for each in of_mlir():
        for entries, take in (each.functions, _take_function), (each.attributes, _take_attribute):
            for template in entries[_taken.get(id(entries), 0) :]:
                if (
                    hasattr(template, "_overload_func")
                    and _package(_made_by(template)) not in KNOWN
                ):
                    take(template, template._overload_func)
            _taken[id(entries)] = len(entries)


def _made_by(template: Any) -> Any:
    """A function of the module that has registered an extension."""
    function = template._overload_func
    return template.key if function.__qualname__.startswith("register_jitable.") else function


def _package(value: Any) -> str:
    return str(getattr(value, "__module__", "")).partition(".")[0]


def _take_function(template: Any, function: Callable[..., Any]) -> None:
    key, inline = twin(template.key), template._inline.value
    options = {k: v for k, v in template._jit_options.items() if k in OPTIONS}
    made = templates.make_overload_template(
        key, _with_their_types(function), {**options, "inline": inline}, template._strict, inline,
        template.prefer_literal, target=_target(template),
    )  # fmt: skip
    made.get_source_code_info = classmethod(_source)
    registry.register(made)
    if callable(key):
        registry.register_global(key, types.Function(made))


def _source(cls: Any, function: Any) -> Any:
    """Where a function that chooses an implementation stands: the program's, for errors."""
    return templates.FunctionTemplate.get_source_code_info.__func__(cls, unwrap(function))


def _take_attribute(template: Any, function: Callable[..., Any]) -> None:
    key = template.key
    registry.register_attr(
        templates.make_overload_attribute_template(
            class_twin(key) if isinstance(key, type) else type_twin(key),
            template._attr,
            function,  # itself an overload, which `_take_function` registers
            inline=template._inline.value,
            prefer_literal=template.prefer_literal,
            base=_Method if template.is_method else _Attribute,
            target=_target(template),
        )
    )


def _target(template: Any) -> str:
    target = template.metadata.get("target")
    return target if target in TARGETS else "cuda"


class _Attribute(templates._OverloadAttributeTemplate):
    def _get_target_registry(self, reason: str) -> CodeRegistry:
        return code


class _Method(templates._OverloadMethodTemplate):
    def _get_target_registry(self, reason: str) -> CodeRegistry:
        return code


def _with_their_types(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that chooses an implementation, called with numba-cuda's types."""

    @wraps(function)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        theirs = importlib.import_module(f"{ROOT}.numba_cuda.core.errors")
        try:
            made = function(
                *map(theirs_of, args), **{name: theirs_of(arg) for name, arg in kwargs.items()}
            )
        except theirs.NumbaError as error:
            same = getattr(errors, type(error).__name__, errors.TypingError)
            raise same(str(error)) from error
        return (type_twin(made[0]), made[1]) if isinstance(made, tuple) else made

    return chosen


# --- types of the program's own


def type_of(value: Any) -> Any:
    """The type of an object whose type is the program's own, None if it is not."""
    typ = type_of_own(value)
    if typ is not None:
        cls: Any = type(typ)
        _without_contents(cls)
    return typ


@cache
def _without_contents(cls: Any) -> None:
    register_model(cls)(OpaqueModel)
    code.lower_constant(cls)(lambda context, builder, typ, value: context.get_dummy_value())


def why_not(value: Any) -> str | None:
    """The error for something that has been registered with code for GPUs, None if it has not."""
    known = (each for registry in of_mlir() for each, _ in registry.globals)
    if _package(value) in KNOWN or not any(each is value for each in known):
        return None
    return (
        f"{getattr(value, '__qualname__', value)} has been registered with numba-cuda-mlir's "
        "extending, but its code is MLIR, for GPUs: for the CPU engine write it in Python, with "
        "numba_cuda_mlir.extending.overload, or as a device function"
    )
