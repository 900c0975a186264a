"""A library of device functions in LLVM bitcode: what a function needs of it, as LLVM's text.

The text is what LLVM prints, without what says nothing on a CPU: address spaces, attributes of
functions, metadata. Loads of a constant that the embedder knows (`Facts`) are replaced by it, and
LLVM removes the branches that are then never taken.
"""

from __future__ import annotations

import hashlib
import pickle
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from gpushmem import code_store
from gpushmem.errors import BackendUnavailable
from gpushmem.simt.base import llvm_passes
from gpushmem.simt.base.llvm_contexts import new_context

__all__ = ["NAME", "NO_METADATA", "Facts", "Source", "unquoted"]

NAME = r'"[^"]+"|[\w.$-]+'
REFERENCE = re.compile(rf"@({NAME})")
TYPE_NAME = re.compile(rf"%((?:struct|union|class)\.[\w.$-]+|{NAME})")
NO_METADATA = "!0 = !{}"
NEVER = "(?!)"  # a pattern that no name fits
# A definition or declaration in a module's text; the name begins with @ or %.
PART = re.compile(
    rf"^define [^@\n]*(@(?:{NAME}))\([^\n]*\n(?:[^}}\n][^\n]*\n|\n)*\}}$"
    rf"|^declare [^@\n]*(@(?:{NAME}))\([^\n]*$"
    rf"|^([@%](?:{NAME})) = [^\n]*$",
    re.MULTILINE,
)
ERASED = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"!invariant\.load !\d+", "!invariant.load !0"),
        (r",? !(?!invariant)[\w.]+ !\d+", ""),  # other metadata
        (r"(?<=[)\w]) #\d+", ""),  # attributes of functions
        (rf"addrspacecast \(ptr(?: addrspace\(\d\))? (@(?:{NAME})) to ptr(?: addrspace\(\d\))?\)",
         r"\1"),
        (r" addrspace\(\d\)", ""),
        (r"= addrspacecast ptr", "= bitcast ptr"),
        (r"\b(?:dso_local|local_unnamed_addr|unnamed_addr|fastcc|internal|externally_initialized"
         r"|private|linkonce_odr|linkonce|weak_odr|weak) ", ""),
        (r",? comdat(?:\([^)]*\))?", ""),
    )
]  # fmt: skip
DROPPED = re.compile(
    r"\s*(?:#dbg_|(?:tail |notail )?call void @llvm\.(?:experimental\.noalias\.scope\.decl|dbg\.))"
)


@dataclass(frozen=True)
class Facts:
    """What the embedder knows of a library's global variables, by their names.

    `known`: (variable, offset) -> the integer that is there as long as the process lives.
    `places`: the variables that are elsewhere, whose addresses the embedder's code gives.
    `seldom`: a pattern of names: functions that are split off if a kernel calls one of them only.
    """

    known: dict[tuple[str, int], int] = field(default_factory=dict)
    places: frozenset[str] = frozenset()
    seldom: str = NEVER


class Source:
    """A bitcode file."""

    def __init__(self, path: Path, facts: Facts) -> None:
        self.path, self.facts = path, facts
        self._loads = [
            (re.compile(
                rf"= load (i\d+), ptr getelementptr inbounds(?: nuw)? \(i8, ptr @{name}, "
                rf"i64 {offset}\), align \d+"
            ), rf"= add \1 0, {value}")
            for (name, offset), value in facts.known.items()
        ]  # fmt: skip

    @cached_property
    def texts(self) -> dict[str, bytes]:
        """Its functions, variables and structures, by name, as compressed text of LLVM.

        Made once: it takes half a minute for the largest library there is.
        """
        return self._split_without(NEVER)

    @cached_property
    def usual(self) -> dict[str, bytes]:
        """The same without what is seldom called: it takes a dozen seconds."""
        return self._split_without(self.facts.seldom)

    def _split_without(self, without: str) -> dict[str, bytes]:
        how = Path(__file__).read_bytes(), tuple(sorted(self.facts.known.items())), without
        name = code_store.key("bitcode", self.digest, llvm.llvm_version_info, *how)
        build = partial(self._split, without)
        return code_store.get_or_build(name, build, pickle.dumps, pickle.loads)

    def types(self) -> dict[str, str]:
        """Its structures: the definition of each, by name; kept for who needs no more."""
        name = code_store.key(
            "types of bitcode", self.digest, llvm.llvm_version_info, self.facts.seldom
        )

        def build() -> dict[str, str]:
            return {
                name[1:]: zlib.decompress(text).decode().partition(" = type ")[2]
                for name, text in self.usual.items() if name[0] == "%"
            }  # fmt: skip

        return code_store.get_or_build(name, build, pickle.dumps, pickle.loads)

    @cached_property
    def digest(self) -> str:
        """A digest of the file."""
        return hashlib.sha256(self._read()).hexdigest()

    def _read(self) -> bytes:
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise BackendUnavailable(f"cannot read {self.path}: {error.strerror}") from error

    def _split(self, without: str) -> dict[str, bytes]:
        try:
            module = llvm.parse_bitcode(self._read(), new_context())
        except RuntimeError as error:
            raise BackendUnavailable(f"{self.path} is not LLVM bitcode: {error}") from error
        left_out = [f for f in module.functions if re.fullmatch(without, f.name)]
        if left_out:
            _make_internal(left_out)
            llvm_passes.over_module(module, ("global_dead_code_eliminate",))
        text = str(module)
        parts = {unquoted(m[1] or m[2] or m[3]): m[0] for m in PART.finditer(text)}
        for name, part in parts.items():
            if any(f"@{of} to ptr), i64 {at})" in part for of, at in self.facts.known):
                parts[name] = self._specialised(name, parts)
        return {name: zlib.compress(part.encode(), 1) for name, part in parts.items()}

    def _specialised(self, name: str, parts: dict[str, str]) -> str:
        """A function without the branches that known loads never take."""
        text = erased(parts[name])
        for load, value in self._loads:
            text = load.sub(value, text)
        others = {f"@{unquoted(n)}" for n in REFERENCE.findall(text)} - {name}
        context = [part for key, part in parts.items() if key[0] == "%"]
        context += [_declared(other, parts[other]) for other in others]
        module = _module("\n".join([*context, text]), name[1:])
        return str(module.get_function(name[1:]))

    def needed_by(self, name: str) -> str:
        """A module of the function and of all that it needs, as text."""
        texts = self.texts if re.fullmatch(self.facts.seldom, name) else self.usual
        if f"@{name}" not in texts:
            raise BackendUnavailable(f"{self.path} has no function {name}")
        found: dict[str, str] = {}
        todo = [name]
        while todo:
            wanted = todo.pop()
            if wanted in found:
                continue
            found[wanted] = text = self._text(wanted, texts)
            todo.extend(unquoted(n) for n in dict.fromkeys(REFERENCE.findall(text)))
        body = "\n".join(reversed(found.values()))
        return str(_module("\n".join([*_types_in(body, texts), body]), name))

    def _text(self, name: str, texts: dict[str, bytes]) -> str:
        """A function or variable."""
        if name in self.facts.places:
            return f"@{name} = external global i8"
        if f"@{name}" not in texts:
            raise BackendUnavailable(f"{self.path} refers to {name} and does not have it")
        return erased(zlib.decompress(texts[f"@{name}"]).decode())


def _types_in(text: str, texts: dict[str, bytes]) -> Iterable[str]:
    """The definitions of the structures that a text names."""
    found: dict[str, str] = {}
    todo = [text]
    while todo:
        for name in dict.fromkeys(map(unquoted, TYPE_NAME.findall(todo.pop()))):
            if f"%{name}" in texts and name not in found:
                found[name] = zlib.decompress(texts[f"%{name}"]).decode()
                todo.append(found[name].partition("=")[2])
    return found.values()


def unquoted(name: str) -> str:
    """A name as LLVM writes it, without the quotes."""
    return name.replace('"', "")


def erased(text: str) -> str:
    """A definition without what says nothing on a CPU."""
    lines = [line for line in text.strip().splitlines() if not DROPPED.match(line)]
    text = "\n".join(line for line in lines if not line.startswith(";"))
    for pattern, replacement in ERASED:
        text = pattern.sub(replacement, text)
    return text


def _declared(name: str, text: str) -> str:
    """A declaration of what a text defines."""
    head = erased(text.partition("\n")[0])
    if head.startswith("define"):
        return head.replace("define", "declare", 1).removesuffix("{")
    return head if head.startswith("declare") else f"{name} = external global i8"


def _module(text: str, root: str) -> Any:
    """The module without the branches that are never taken, and what only these need."""
    module = llvm.parse_assembly(f"{text}\n{NO_METADATA}", new_context())
    _make_internal(v for v in [*module.functions, *module.global_variables] if v.name != root)
    llvm_passes.over_module(
        module, ("sccp", "simplify_cfg", "dead_code_elimination", "global_dead_code_eliminate")
    )
    return module


def _make_internal(values: Iterable[Any]) -> None:
    """Let LLVM remove what of these nothing refers to."""
    for value in values:
        if not value.is_declaration:
            value.linkage = "internal"
