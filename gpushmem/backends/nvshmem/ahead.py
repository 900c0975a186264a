"""Kernels compiled ahead of time, for GPUs that need not be here, and what they need of one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gpushmem.backends.nvshmem import compiler

__all__ = ["KINDS", "Built", "Resources", "build"]

KINDS = ("cubin", "ptx", "ltoir")
RESOURCES = {
    "registers": r"Used (\d+) registers",
    "stack": r"(\d+) bytes stack frame",
    "spill_stores": r"(\d+) bytes spill stores",
    "spill_loads": r"(\d+) bytes spill loads",
    "shared": r"(\d+) bytes smem",
    "barriers": r"used (\d+) barriers",
}


@dataclass(frozen=True)
class Resources:
    """What a kernel needs: for each thread registers, and bytes; for each block shared bytes.

    `in_calls` are the bytes that functions which it calls spill: NVSHMEM's slow paths.
    """

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared: int
    barriers: int
    in_calls: int


@dataclass(frozen=True)
class Built:
    """One kernel for one architecture: its code by kind, and what it needs."""

    kernel: str
    types: str
    arch: str
    entry: str
    code: dict[str, bytes]
    needs: Resources


def build(
    py_func: Callable[..., Any],
    argtypes: tuple[Any, ...],
    options: dict[str, Any],
    arch: compiler.Arch,
    kinds: Iterable[str] = ("cubin",),
) -> Built:
    """Compile and link a kernel; raises Numba's errors. `kinds` are some of `KINDS`."""
    options = {k: v for k, v in options.items() if k != "collective"}
    compiled = compiler.compile_kernel(py_func, argtypes, options, arch)
    linked = {kind: compiler.link(compiled, kind) for kind in {*kinds, "cubin"}}
    return Built(
        py_func.__name__, ", ".join(map(_text, argtypes)), str(arch), compiled.entry,
        {kind: linked[kind].code for kind in kinds}, _needs(linked["cubin"].log, compiled.entry),
    )  # fmt: skip


def _text(typ: Any) -> str:
    """A type as one writes it in a signature."""
    if hasattr(typ, "layout"):
        steps = {"C": ["::1"], "F": ["::1"]}.get(typ.layout, [":"])
        rest = [":"] * (typ.ndim - 1)
        axes = steps + rest if typ.layout == "F" else rest + steps
        return f"{typ.dtype}[{','.join(axes)}]" if typ.ndim else str(typ)
    return str(typ)


def _needs(log: str, entry: str) -> Resources:
    """What the assembler has said of a kernel, and of the functions that were not inlined."""
    said: dict[str, str] = {}
    for part in re.split(r"Function properties for ", log)[1:]:
        name, _, rest = part.partition("\n")
        said[name.strip()] = rest
    mine = said.get(entry, "")
    found = {name: _number(pattern, mine) for name, pattern in RESOURCES.items()}
    others = (rest for name, rest in said.items() if name != entry)
    return Resources(**found, in_calls=sum(_number(RESOURCES["spill_stores"], o) for o in others))


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    return int(match[1]) if match else 0
