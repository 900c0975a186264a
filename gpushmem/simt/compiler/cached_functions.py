"""Device functions of an embedder that are kept in the store, each with all that it calls.

An operation of an embedder is dozens of small functions. They are compiled for the first kernel
that calls it with arguments of some types; other kernels, of this process and of others, find their
code in the store, as one LLVM module. In there everything but the function itself is internal, so
that no name means two things where several of these modules are linked; and but other functions
that are kept, which have names of their own, and of which a kernel needs one copy.
"""

from __future__ import annotations

import pickle
import re
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from llvmlite.binding import Linkage
from numba.cuda import types
from numba.cuda.compiler import CUDACompileResult
from numba.cuda.core.funcdesc import ExternalFunctionDescriptor

from gpushmem import code_store
from gpushmem.artifacts.fingerprint import digest_of
from gpushmem.artifacts.numba_extensions import extensions
from gpushmem.artifacts.toolchain import engine
from gpushmem.simt.base import llvm_passes
from gpushmem.simt.base.function_attributes import with_attributes
from gpushmem.simt.compiler import observer
from gpushmem.simt.compiler.symbols import FAILURE, OBSERVED, SHARED
from gpushmem.simt.compiler.target import (
    SimtCallConv,
    SimtDispatcher,
    SimtLibrary,
    compile_function,
    compiling,
    exceptions,
    made_of,
    simt_target,
)

__all__ = [
    "ALL",
    "BARRIER",
    "ITSELF",
    "LANES",
    "ONCE",
    "WARPS",
    "Barrier",
    "KeptDispatcher",
    "Lanes",
    "Warps",
    "kept",
    "kept_names",
    "meetings",
    "outlined",
]


class Code(NamedTuple):
    """A function with all that it calls: what a `SimtLibrary` knows of it."""

    signature: Any
    name: str
    shared: frozenset[str]  # names of functions that are kept, this one's and those it calls
    bitcode: bytes
    reduced: bytes  # the same, for code that is made quickly
    exceptions: dict[int, Any]  # those that it may raise, by status code
    embedded: bool
    cooperative: bool
    local_bytes: int
    const_bytes: int


ITSELF = "itself"


class Barrier(NamedTuple):
    """Of a function in which a block's threads only meet: what one does that comes there alone."""

    alone: Any


class Lanes(NamedTuple):
    """Of a function whose results differ: one that computes those of all threads of the block.

    It gets the addresses of arrays with a word for each thread, one of each argument, and one for
    the results; and how many threads there are. If the first argument is a mask of lanes, it is
    called if all take part. `alike` is called where only one argument, the one at `varies`, differs
    from thread to thread, and gets the others themselves.
    """

    of_all: Any
    masked: bool = True
    alike: Any = None
    varies: int = 0


class Warps(NamedTuple):
    """Of a function that all threads of a warp call with the same arguments, and one acts.

    `of_each` is called for one thread after the other, in order, with its arguments; its index is
    in THREAD. It acts in the last of each warp, and returns 1 there if the warp's arguments differ,
    else 0.
    """

    of_each: Any


class Meeting(NamedTuple):
    """How the threads of a block make a call together: by a function, named as in LLVM code."""

    how: int
    called: str
    alike: str = ""  # see `Lanes`
    varies: int = 0


# LLVM name of a kept function that waits -> its meeting; see `blocks.meetings` about the numbers.
meetings: dict[str, Meeting] = {}
BARRIER, ONCE, LANES, ALL, WARPS = range(5)


class KeptDispatcher(SimtDispatcher):
    """A device function whose meaning is given by `label`, and by the source of its package.

    `together` is how all threads of a block call it that are in lockstep, with the same arguments:
    a function that is called once for all, ITSELF, a `Barrier`, `Lanes`, or `Warps`.
    """

    def __init__(self, py_func: Any, label: str, together: Any = None, **options: Any) -> None:
        super().__init__(py_func, options)
        self.label, self.together = label, together

    def compile_device(self, args: Any, return_type: Any = None) -> Any:
        """Compile for Numba types `args`, or take what has been kept.

        Numbers that are written in the call are numbers like others: no operation asks for them.
        """
        args = tuple(map(types.unliteral, args))
        with compiling():  # before the store's own lock, as kernels do
            if args not in self.overloads:
                digest = digest_of(args)
                if digest is None:
                    return super().compile_device(args)
                made = _linkable(self._code(args, digest))
                self._meet(made, args)
                self.overloads[args] = made
                made.target_context.insert_user_function(
                    made.entry_point, made.fndesc, [made.library]
                )
            return self.overloads[args]

    def _meet(self, made: Any, args: Any) -> None:
        """Enter how threads call the function together; have its code linked, too."""
        name, together = made.fndesc.llvm_func_name, self.together
        if together == ITSELF:
            meetings[name] = Meeting(ONCE, name)
        elif isinstance(together, Lanes):
            how, args = LANES if together.masked else ALL, (types.intp,) * (len(args) + 2)
            alike = "" if together.alike is None else _linked(together.alike, args, made)
            called = _linked(together.of_all, args, made)
            meetings[name] = Meeting(how, called, alike, together.varies)
        elif isinstance(together, Warps):
            meetings[name] = Meeting(WARPS, _linked(together.of_each, args, made))
        elif isinstance(together, Barrier):
            meetings[name] = Meeting(BARRIER, _linked(together.alone, args, made))
        elif together is not None:
            meetings[name] = Meeting(ONCE, _linked(together, args, made))

    def _code(self, args: Any, digest: bytes) -> Code:
        known = extensions()
        of_all = self.label, digest, known, engine(), observer.name()
        name = code_store.key("function", *of_all, *made_of) + code_store.ENGINE

        def build() -> Code:
            return _merged(compile_function(self.py_func, args, **self.targetoptions), name)

        return code_store.get_or_build(name, build, _dump, pickle.loads, keep=known is not None)


def _linked(function: Any, args: Any, made: Any) -> str:
    """The LLVM name of a function, whose code is linked where `made` is."""
    called = function.compile_device(args)
    made.library.add_linking_library(called.library)
    return str(called.fndesc.llvm_func_name)


def kept(py_func: Any = None, **options: Any) -> Any:
    """Compile a function of a module for calls from kernels, as `device` does, and keep it."""
    if py_func is None:
        return partial(kept, **options)
    return KeptDispatcher(py_func, f"{py_func.__module__}.{py_func.__qualname__}", **options)


def outlined(py_func: Any, label: str | None = None) -> Any:
    """The same, for a function whose code is to be in none of its callers.

    A kernel is compiled in half the time if what it seldom runs, or waits in, is outside. A
    function that looks at THREAD keeps it in memory, so kernels that are loops must not call it.
    `label` is for one that is made several times.
    """
    vars(py_func)["simt_outlined"] = True
    return KeptDispatcher(py_func, label or f"{py_func.__module__}.{py_func.__qualname__}")


# In a name: how many functions Numba had compiled. Two processes may make the same code at the same
# time; a kernel with operations of both has it once if it has the same name.
VERSION = re.compile(r"B\d+v\d+")
kept_names: set[str] = set()  # of kept functions that this process knows, in LLVM code


def _merged(cres: Any, key: str) -> Code:
    """What was compiled as one module, in which all names are its own."""
    libraries = cres.library.everything()
    module = cres.library.linked()
    entry = module.get_function(cres.fndesc.llvm_func_name)
    entry.name = f"{VERSION.sub('', entry.name)}.{key[:16]}"
    entry.linkage = Linkage.weak_odr  # linked also where nothing calls it: see `meetings`
    shared = {entry.name}
    for value in [*module.functions, *module.global_variables]:
        if value.is_declaration:
            for prefix in (SHARED, OBSERVED):  # places, which `entry` tells apart by their names
                if value.name.startswith(prefix):
                    value.name = f"{prefix}{key[:16]}.{value.name.removeprefix(prefix)}"
        elif value.name in kept_names:
            shared.add(value.name)
        elif value.name != entry.name and not value.name.startswith(FAILURE):
            value.linkage = Linkage.internal
    if any(library.referenced_objects for library in libraries):
        raise AssertionError(f"{cres.fndesc.qualname} refers to an object of this process")
    bitcode = module.as_bitcode()
    name = entry.name
    module = _reduced(module)
    return Code(
        signature=cres.signature,
        name=name,
        shared=frozenset(shared),
        bitcode=bitcode,
        reduced=module.as_bitcode(),
        exceptions={code: exceptions[code] for lib in libraries for code in lib.codes},
        embedded=any(library.embedded for library in libraries),
        cooperative=cres.library.use_cooperative,
        local_bytes=sum(library.local_bytes for library in libraries),
        const_bytes=sum(library.const_bytes for library in libraries),
    )


def _reduced(module: Any) -> Any:
    """Put what is internal where it is called, and do once what each kernel would begin with.

    For the quick tier: from such code LLVM's optimiser makes small all-reduces that are slower.
    """
    inlined = [
        function.name
        for function in module.functions
        if function.linkage == Linkage.internal
        and b"noinline" not in b" ".join(function.attributes)
    ]
    module = with_attributes(module, dict.fromkeys(inlined, ("alwaysinline",)))
    llvm_passes.over_module(module, ("always_inliner", "global_dead_code_eliminate"))
    defined = [function for function in module.functions if not function.is_declaration]
    llvm_passes.over_functions(defined, llvm_passes.SIMPLIFYING)
    return module


def _linkable(code: Code) -> Any:
    """The result of compiling it, as Numba calls functions."""
    context, signature = simt_target.target_context, code.signature
    exceptions.update(code.exceptions)
    kept_names.update(code.shared)
    library = SimtLibrary(context.codegen(), code.name)
    library.bitcode.append(code.bitcode)
    library.reduced.append(code.reduced)
    library.codes |= code.exceptions.keys()
    library.embedded, library.use_cooperative = code.embedded, code.cooperative
    library.local_bytes, library.const_bytes = code.local_bytes, code.const_bytes
    described = ExternalFunctionDescriptor(
        code.name, signature.return_type, signature.args, SimtCallConv(context)
    )
    known = dict.fromkeys(CUDACompileResult._fields) | {
        "signature": signature,
        "library": library,
        "fndesc": described,
        "target_context": context,
        "objectmode": False,
    }
    return CUDACompileResult(**known)


def _dump(code: Code) -> bytes | None:
    with suppress(Exception):  # a type that cannot be pickled, for example
        return pickle.dumps(code)
    return None
