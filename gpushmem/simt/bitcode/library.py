"""Calls of a bitcode library's functions from kernels.

A function is translated when a kernel first calls it, and kept in the store with all that it
needs; a kernel's code contains it, so a kernel from the store needs no library.
"""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from gpushmem import code_store
from gpushmem.artifacts.toolchain import sources_digest
from gpushmem.native.memory import i8p
from gpushmem.simt.base.llvm_contexts import new_context
from gpushmem.simt.bitcode import intrinsics
from gpushmem.simt.bitcode.extraction import Facts, Source
from gpushmem.simt.bitcode.translate import Translation, translate
from gpushmem.simt.compiler import observer
from gpushmem.simt.compiler.target import SITE_ARG, THREAD_ARG, SimtLibrary, simt_target

__all__ = ["Bitcode"]


class Bitcode:
    """A bitcode library."""

    def __init__(self, path: Path, facts: Facts | None = None) -> None:
        self.path, self._source = path, Source(path, facts or Facts())
        self._linked: dict[tuple[str, str], tuple[Translation, SimtLibrary]] = {}

    @property
    def digest(self) -> str:
        """A digest of the file."""
        return self._source.digest

    @property
    def _suffix(self) -> str:
        """What the names of its functions end with in kernels, which may call several libraries."""
        return f" of {self.digest[:16]}"

    def types(self) -> dict[str, str]:
        """The library's structures, as LLVM's text, by name."""
        return self._source.types()

    def function(self, name: str) -> Translation:
        """A function for this machine; raises `BackendUnavailable` if that cannot be."""
        observed = observer.moves()
        facts = self._source.facts
        key = code_store.key(
            "bitcode function", self._source.digest, name, observed, sources_digest(),
            llvm.llvm_version_info, tuple(sorted(facts.known.items())), tuple(sorted(facts.places)),
        )  # fmt: skip

        def build() -> Translation:
            needed = self._source.needed_by(name)
            return translate(needed, name, facts.places, observed, self._suffix)

        return code_store.get_or_build(key, build, pickle.dumps, pickle.loads)

    def call(self, builder: Any, name: str, arguments: list[Any]) -> Any:
        """Generate a call of the function in a kernel; its arguments are of LLVM's types."""
        translation, library = self._library(name)
        builder.simt_context.active_code_library.add_linking_library(library)
        result, *kinds = map(
            intrinsics.typed, (translation.signature.result, *translation.signature.arguments)
        )
        symbol = name + self._suffix
        declared = builder.module.globals.get(symbol)
        if declared is None:
            declared = ir.Function(
                builder.module, ir.FunctionType(result, [i8p, i8p, i8p, *kinds]), symbol
            )
        given = [
            builder.bitcast(value, i8p) if isinstance(kind, ir.PointerType) else value
            for value, kind in zip(arguments, kinds, strict=True)
        ]
        thread, site = builder.function.args[THREAD_ARG], builder.function.args[SITE_ARG]
        hidden = i8p(None), thread, builder.simt_site or site
        return ir.IRBuilder.call(builder, declared, [*hidden, *given])

    def _library(self, name: str) -> tuple[Translation, SimtLibrary]:
        key = name, observer.name()
        if key not in self._linked:
            translation = self.function(name)
            self._linked[key] = translation, _linkable(name, translation)
        return self._linked[key]


def _linkable(name: str, translation: Translation) -> SimtLibrary:
    """A translated function as the engine links functions: with its leaves."""
    context = simt_target.target_context
    library = context.codegen().create_library(f"bitcode.{name}")
    module = library.create_ir_module(f"bitcode.{name}.leaves")
    seen = nullcontext() if observer.moves() else observer.unseen()
    with context.push_code_library(library), seen:
        for leaf in translation.leaves:
            intrinsics.define(module, leaf)
    library.add_ir_module(module)
    library.finalize()
    parsed = llvm.parse_assembly(
        f'target datalayout = "{module.data_layout}"\ntarget triple = "{module.triple}"\n'
        + translation.text,
        new_context(),
    )
    library.bitcode.insert(0, parsed.as_bitcode())  # a linker takes what is referred to by then
    library.local_bytes += translation.local_bytes
    return library
