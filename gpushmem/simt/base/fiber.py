"""Stack switching: the few instructions of the engine that Numba cannot express.

`simt_switch(save, to)` pushes the callee-saved registers, stores the stack pointer at `save`, and
continues on the stack `to`, as another switch left it or `scheduler.first_frame` laid it out.
Floating-point control words are left alone: kernels do not change them.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache

import llvmlite.binding as llvm

from gpushmem.errors import BackendUnavailable

__all__ = ["install"]

# A new fiber "returns" into simt_trampoline with thread_main in r12, its argument in r13 and the
# function that ends the fiber in r14; it never returns from that one.
X86_64 = r"""
    .text
    .globl simt_switch
simt_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .globl simt_trampoline
simt_trampoline:
    movq %r13, %rdi
    callq *%r12
    movq %r13, %rdi
    callq *%r14
    ud2
"""


@cache
def install() -> dict[str, int]:
    """Assemble the switch, make its symbols known to LLVM, and return their addresses."""
    if platform.machine() != "x86_64":
        raise BackendUnavailable(
            f"the CPU engine has no stack switch for {platform.machine()}: it runs on x86_64 only"
        )
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    escaped = "".join(f'module asm "{line}"\n' for line in X86_64.splitlines() if line)
    # Modules that hold nothing but assembly are not emitted, hence the two references.
    module = llvm.parse_assembly(
        f'target triple = "{llvm.get_process_triple()}"\n{escaped}'
        "declare void @simt_switch()\ndeclare void @simt_trampoline()\n"
        "define i64 @simt_switch_address() { ret i64 ptrtoint (ptr @simt_switch to i64) }\n"
        "define i64 @simt_trampoline_address() { ret i64 ptrtoint (ptr @simt_trampoline to i64) }\n"
    )
    machine = llvm.Target.from_default_triple().create_target_machine(
        jit=True, codemodel="jitdefault"
    )
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _keep.append(engine)
    return {name: _call(engine, name) for name in ("simt_switch", "simt_trampoline")}


_keep: list[llvm.ExecutionEngine] = []  # the code lives as long as its engine


def _call(engine: llvm.ExecutionEngine, name: str) -> int:
    get = ctypes.CFUNCTYPE(ctypes.c_int64)(engine.get_function_address(f"{name}_address"))
    address = int(get())
    llvm.add_symbol(name, address)
    return address
