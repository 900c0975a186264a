"""LLVM contexts that Python's collector finds in a cycle."""

import subprocess
import sys

PROGRAM = """
import gc
import llvmlite.binding as llvm
from gpushmem.simt.base import contexts

for k in range(20):
    context = contexts.new_context()
    cycle = [context, llvm.parse_assembly("define i32 @f() { ret i32 1 }", context)]
    cycle.append(cycle)
    del context, cycle
    gc.collect()
print(len(contexts._put_aside))
"""


def test_a_context_outlives_its_modules_in_any_order():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
