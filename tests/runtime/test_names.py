"""Public names mean the same whatever has been imported before."""

import subprocess
import sys
from pathlib import Path

import pytest

import gpushmem

ROOT = Path(gpushmem.__file__).parent
ORDERS = """
import itertools, sys
STATEMENTS = (
    "import gpushmem",
    "from gpushmem.kernel import Kernel",
    "import gpushmem.kernel",
    "from gpushmem import jit",
    "import gpushmem.start.launch.local, gpushmem.memory.array",
)
for first in itertools.permutations(STATEMENTS, int(sys.argv[1])):
    order = *first, *(each for each in STATEMENTS if each not in first)
    for name in [name for name in sys.modules if name.partition(".")[0] == "gpushmem"]:
        del sys.modules[name]
    scope = {}
    for statement in order:
        exec(statement, scope)
    shmem, module = sys.modules["gpushmem"], sys.modules["gpushmem.kernel"]
    made = shmem.jit(lambda x: None)
    assert type(made) is scope["Kernel"] is module.Kernel, order
    assert scope["jit"] is shmem.jit is module.jit is scope["gpushmem"].jit, order
    assert shmem.kernel is module, order
print("all")
"""


@pytest.mark.parametrize("n", [2, pytest.param(5, marks=pytest.mark.sweep)])
def test_jit_is_the_function_in_every_order_of_imports(n):
    """In all orders of the first `n` imports."""
    done = subprocess.run(
        [sys.executable, "-c", ORDERS, str(n)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("all\n", "")


def test_no_public_name_is_a_module_of_the_package():
    """Importing such a module would put it in the name's place."""
    modules = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert modules & set(gpushmem.__all__) == set()
