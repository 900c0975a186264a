"""Attributes for functions that LLVM has already.

llvmlite 0.47, which numba 0.65 has, gives them to what a function returns: of a function that is to
be inlined always LLVM then inlines nothing, and it refuses to read the module's text. There they
are written into the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import llvmlite.binding as llvm

__all__ = ["with_attributes"]

# The name of a function, and what stands before its attributes, or what comes in their place.
_head = re.compile(
    r'^(define [^@\n]*@(?:"(?P<quoted>[^"\n]*)"|(?P<plain>[-\w$.]+))\(.*\)'
    r"(?: unnamed_addr| local_unnamed_addr)?)(?= [^()\n]*\{$)",
    re.MULTILINE,
)


def with_attributes(module: Any, attributes: Mapping[str, Iterable[str]]) -> Any:
    """Add attributes to functions, by their names. Returns the module, or one to take its place."""
    if not _are_misplaced():
        for name, added in attributes.items():
            for attribute in added:
                module.get_function(name).add_function_attribute(attribute)
        return module
    return llvm.parse_assembly(written(str(module), attributes), module._context)


@cache
def _are_misplaced() -> bool:
    module = llvm.parse_assembly("define void @f() { ret void }")
    module.get_function("f").add_function_attribute("noinline")
    return "define noinline" in str(module)


def written(text: str, attributes: Mapping[str, Iterable[str]]) -> str:
    """Return a module's text with attributes added to functions that it defines."""
    left = dict(attributes)

    def head(match: re.Match[str]) -> str:
        return " ".join([match[1], *left.pop(match["quoted"] or match["plain"], ())])

    text = _head.sub(head, text)
    if left:
        raise AssertionError(f"functions whose definition was not found: {', '.join(left)}")
    return text
