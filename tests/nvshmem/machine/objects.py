"""Kernels of rows as machine code; called in processes of their own (fixture `elsewhere`)."""

from unittest import mock

from gpushmem.ops import OPS
from tests.nvshmem.machine import reader, rows

PTX, SASS = "ptx", "sass"
KINDS = {PTX: "ptx", SASS: "cubin"}  # what the linker calls them


def built(names, arch, kinds, texts=(), which="numba-cuda"):
    """The code of the rows' kernels by kind, and each kernel's name in it.

    `texts`: changes of shims, (name of the function in NVSHMEM, what to replace, by what); `which`:
    of the compilers.
    """
    from gpushmem.backends.nvshmem.compile import compiler, shims

    kernels = {name: _compiled(compiler, OPS[name], arch, which) for name in names}
    with mock.patch.object(shims, "_texts", _changed(shims._texts(), texts).copy):
        code = {kind: compiler.link_all(list(kernels.values()), KINDS[kind]).code for kind in kinds}
    return code, {name: kernel.entry for name, kernel in kernels.items()}


def _compiled(compiler, op, arch, which):
    return compiler.compile_kernel(*rows.probe(op), {}, compiler.Arch.of(arch), which=which)


def _changed(shims, changes):
    texts = dict(shims)
    for function, old, new in changes:
        symbol = next(symbol for symbol, (name, _) in texts.items() if name == function)
        assert old in texts[symbol][1], (function, texts[symbol][1])
        texts[symbol] = function, texts[symbol][1].replace(old, new)
    return texts


def read(kind, code):
    """The functions of an object."""
    return reader.ptx(code.decode(errors="ignore")) if kind == PTX else reader.sass(code)
