"""LLVM contexts that Python's collector finds in a cycle."""

import subprocess
import sys

PROGRAM = """
import gc
import llvmlite.binding as llvm
from gpushmem.simt.base import llvm_contexts

for k in range(20):
    context = llvm_contexts.new_context()
    cycle = [context, llvm.parse_assembly("define i32 @f() { ret i32 1 }", context)]
    cycle.append(cycle)
    del context, cycle
    gc.collect()
print(len(llvm_contexts._put_aside))
"""


def test_a_context_outlives_its_modules_in_any_order():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


LINK = """
import gc
import llvmlite.binding as llvm
from llvmlite.binding import ffi
from gpushmem.simt.base import llvm_contexts

class Late(Exception):
    pass

class Library:  # in which the handler of a signal raises when LLVM has returned
    def __init__(self, library):
        self.library = library

    def __getattr__(self, name):
        function = getattr(self.library, name)
        return self.link if name == "LLVMPY_LinkModules" else function

    def link(self, *args):
        self.library.LLVMPY_LinkModules(*args)
        raise Late

ffi.lib = Library(ffi.lib)
for k in range(20):
    context = llvm_contexts.new_context()
    whole, part = (
        llvm.parse_assembly(f"define i32 @{name}() {{ ret i32 1 }}", context) for name in "fg"
    )
    try:
        whole.link_in(part)
    except Late:
        assert "@g" in str(whole)
    del part
    gc.collect()
print(k)
"""


def test_a_handler_that_raises_when_modules_are_linked_does_no_harm():
    done = subprocess.run(
        [sys.executable, "-c", LINK], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "19\n", "")
