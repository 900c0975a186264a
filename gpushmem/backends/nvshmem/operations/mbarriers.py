"""mbarriers, and copies in bulk by TMA, in kernels: an instruction of PTX each.

Addresses are generic, and made ones of shared memory beside the instruction. TMA is another proxy:
it sees what threads have stored, the mbarrier's word too, and overwrites what they have loaded,
after a fence between the two, which stands before each copy. Who has waited for the phase needs
none (PTX ISA, "async proxy").
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.core.errors import NumbaTypeError

from gpushmem.backends.codegen import with_signature
from gpushmem.backends.nvshmem.operations.device_calls import compute_capability, itemsize_of
from gpushmem.backends.nvshmem.operations.ordering import assembly
from gpushmem.backends.vector_accesses import place_of
from gpushmem.ops import OPS, Op

__all__ = ["DEFINITIONS", "TEXTS", "check"]

TMA = 9, 0  # the compute capability from which on GPUs have it
I32 = ir.IntType(32)
BAR = "{{ .reg .u64 bar, was; .reg .pred done; cvta.to.shared.u64 bar, $0; {} }}"
WAIT = "again: mbarrier.{}_wait.parity.shared.b64 done, [bar], $1; @!done bra again;"
# What is done with an mbarrier -> the instructions.
TEXTS = {
    "init": BAR.format("mbarrier.init.shared.b64 [bar], $1;"),
    "arrive": BAR.format("mbarrier.arrive.shared.b64 was, [bar];"),
    "expect": BAR.format("mbarrier.arrive.expect_tx.shared.b64 was, [bar], $1;"),
    "wait": BAR.format(WAIT.format("try")),
    "wait before TMA": BAR.format(WAIT.format("test")),
    "copy": BAR.format(
        ".reg .u64 to; cvta.to.shared.u64 to, $1; "
        "fence.proxy.async.global; fence.proxy.async.shared::cta; "
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [to], [$2], $3, [bar];"
    ),
}


def has_tma() -> bool:
    """Whether what is compiled now is for GPUs that have it."""
    capability = compute_capability()
    return capability is None or tuple(capability[:2]) >= TMA


def check(op: Op) -> None:
    """Raise for what GPUs that are compiled for do not have."""
    if op.base in ("copy_bulk", "mbarrier_arrive_and_expect_tx") and not has_tma():
        raise NumbaTypeError(
            f"{op.name}: TMA counts bytes for mbarriers on GPUs of compute capability 9.0 and up; "
            f"this kernel is compiled for {'.'.join(map(str, compute_capability()[:2]))}: use "
            "copy_async"
        )


def _assembly(builder: Any, what: str, *given: Any) -> None:
    """Instructions with the address of an mbarrier, others, and a number of 32 bits."""
    kind = ir.FunctionType(ir.VoidType(), [value.type for value in given])
    registers = ",".join("r" if value.type == I32 else "l" for value in given)
    assembly(builder, kind, TEXTS[what], registers, *given)


def _definition(name: str, what: str) -> Any:
    """That of a row with an mbarrier, and perhaps a number."""

    def define(typingctx: Any, bars: Any, *numbers: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            place, _ = place_of(context, builder, bars, args)
            instead = what == "wait" and not has_tma()
            words = [builder.trunc(number, I32) for number in args[2:]]
            _assembly(builder, "wait before TMA" if instead else what, place, *words)
            return context.get_dummy_value()

        return types.void(bars, *[types.intp] * len(numbers)), codegen

    names = ["typingctx", *OPS[name].params]
    return with_signature(name, names, lambda given: define(*given))


def copy_bulk(typingctx: Any, dst: Any, i: Any, src: Any, j: Any, n: Any, bars: Any, k: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        places = [
            place_of(context, builder, array, args[at:])[0]
            for array, at in ((bars, 5), (dst, 0), (src, 2))
        ]
        nbytes = builder.mul(args[4], args[4].type(itemsize_of(src)))
        _assembly(builder, "copy", *places, builder.trunc(nbytes, I32))
        return context.get_dummy_value()

    word = types.intp
    return types.void(dst, word, src, word, word, bars, word), codegen


DEFINITIONS = {
    "mbarrier_init": _definition("mbarrier_init", "init"),
    "mbarrier_arrive": _definition("mbarrier_arrive", "arrive"),
    "mbarrier_arrive_and_expect_tx": _definition("mbarrier_arrive_and_expect_tx", "expect"),
    "mbarrier_wait": _definition("mbarrier_wait", "wait"),
    "copy_bulk": copy_bulk,
}
