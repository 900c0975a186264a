"""Ahead-of-time compilation: kernels as machine code, from the store or compiled, without a GPU."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from gpushmem import code_store
from gpushmem.artifacts import fingerprint
from gpushmem.backends.nvshmem import versions
from gpushmem.backends.nvshmem.compile.options import compiler_of
from gpushmem.ops import OPS

__all__ = [
    "Artifact", "Built", "Resources", "artifact", "build", "needs_of", "text_of",
]  # fmt: skip

fingerprint.fixed.update(op.function for op in OPS.values())
# NVSHMEM's functions that need whole warps: always, and over a network.
SUMS, GROUPS = re.compile(r"_reduce(?:scatter)?_block"), re.compile(r"_(?:warp|block)_")
RESOURCES = {
    "registers": r"Used (\d+) registers",
    "stack": r"(\d+) bytes stack frame",
    "spill_stores": r"(\d+) bytes spill stores",
    "spill_loads": r"(\d+) bytes spill loads",
    "shared": r"(\d+) bytes smem",
    "barriers": r"used (\d+) barriers",
}


class Artifact(NamedTuple):
    """A kernel's machine code and its properties."""

    about: dict[str, Any]
    code: bytes

    def dump(self) -> bytes:
        """A line of JSON, then the code."""
        return json.dumps(self.about).encode() + b"\n" + self.code

    @staticmethod
    def load(data: bytes) -> Artifact:
        """Read what `dump` wrote."""
        line, _, code = data.partition(b"\n")
        return Artifact(json.loads(line), code)


@dataclass(frozen=True)
class Resources:
    """What a kernel needs: registers and bytes per thread, shared bytes per block.

    `in_calls` are the bytes spilled by functions it calls: NVSHMEM's slow paths.
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
    compiler: str


def artifact(
    py_func: Callable[..., Any],
    argtypes: tuple[Any, ...],
    options: dict[str, Any],
    arch: str,
    kind: str = "cubin",
    traced: bool = False,
) -> Artifact:
    """A kernel's code of a kind, and its properties; raises Numba's errors.

    `traced` code records what it does. A kernel that has no fingerprint, or has `cache=False`, is
    compiled in every process.
    """
    which = compiler_of(py_func)

    def build() -> Artifact:
        return _compile(py_func, argtypes, options, arch, kind, traced, which)

    version = versions.installed(which)  # the package has the same name
    machine = which, version, arch, kind, versions.compilers(), *(("traced",) if traced else ())
    key = fingerprint.fingerprint(py_func, argtypes, options, machine)
    if key is None or not options.get("cache", True):
        return build()
    name, lasting = fingerprint.name_of(key)
    return code_store.get_or_build(name, build, Artifact.dump, Artifact.load, keep=lasting)


def _compile(
    py_func: Callable[..., Any], argtypes: tuple[Any, ...], options: dict[str, Any], arch: str,
    kind: str, traced: bool, which: str,
) -> Artifact:  # fmt: skip
    from gpushmem.backends.nvshmem.compile import compiler  # noqa: PLC0415  (takes a second)

    compiled = compiler.compile_kernel(
        py_func, argtypes, options, compiler.Arch.of(arch), traced, which
    )
    linked = compiler.link(compiled, kind)
    about = {
        "compiler": which, "entry": compiled.entry, "cooperative": compiled.cooperative,
        "shims": bool(compiled.shims), "sums": any(map(SUMS.search, compiled.shims)),
        "groups": any(map(GROUPS.search, compiled.shims)),
        "workspace": "gpushmem_words" in compiled.shims,
        "trace": compiled.trace, "needs": asdict(needs_of(linked.log, compiled.entry)),
    }  # fmt: skip
    return Artifact(about, linked.code)


def build(
    py_func: Callable[..., Any],
    argtypes: tuple[Any, ...],
    options: dict[str, Any],
    arch: str,
    kinds: Iterable[str] = ("cubin",),
    traced: bool = False,
) -> Built:
    """A kernel's code of several kinds: "cubin", "ptx", "ltoir"; raises Numba's errors."""
    kept = {
        kind: artifact(py_func, argtypes, options, arch, kind, traced) for kind in {*kinds, "cubin"}
    }
    about = kept["cubin"].about
    return Built(
        py_func.__name__, ", ".join(map(text_of, argtypes)), arch, about["entry"],
        {kind: kept[kind].code for kind in kinds}, Resources(**about["needs"]),
        about["compiler"],
    )  # fmt: skip


def text_of(typ: Any) -> str:
    """A type as written in a signature."""
    if hasattr(typ, "layout"):
        steps = {"C": ["::1"], "F": ["::1"]}.get(typ.layout, [":"])
        rest = [":"] * (typ.ndim - 1)
        axes = steps + rest if typ.layout == "F" else rest + steps
        return f"{typ.dtype}[{','.join(axes)}]" if typ.ndim else str(typ)
    return str(typ)


def needs_of(log: str, entry: str) -> Resources:
    """Read the assembler's log on a kernel, and on functions that were not inlined."""
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
