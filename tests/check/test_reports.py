"""What reports say: the names of memory, and cures, which make a program clean."""

import json

NAMES = """
import gpushmem as shmem
from numba import cuda

ROWS = 4

@cuda.jit(device=True)
def inside(t):
    inner = cuda.shared.array(64, "int16")
    inner[t % 63] = t

@shmem.jit
def kernel():
    t = cuda.threadIdx.x
    table = cuda.shared.array(shape=(ROWS, 16), dtype="int32")
    first, unused = cuda.shared.array(32, "float32"), cuda.shared.array(32, "float32")
    first[t % 32] = t
    if t < 2:
        table[2, 3] = t
        all_of_it = cuda.shared.array(0, "float64")
        again, part = cuda.shared.array(0, "uint8"), all_of_it[4:]
        part[3] = t
        again[1] = t
    inside(t)

@shmem.jit
def rows(x):
    x[3, 1] = cuda.threadIdx.x

shmem.init(heap_size="1M")
kernel[1, 64, 0, 128]()
x = shmem.zeros((4, 8))
rows[1, 2](x)
shmem.finalize()
"""


def found(run_cli, path, *args, pes=1, options=()):
    """What is found in a program."""
    done = run_cli(
        "run", "--backend", "cpu", "--check", "--check-format", "json", *options, "-n", pes, path,
        *args,
    )  # fmt: skip
    assert done.returncode in (0, 66), done.stderr
    return json.loads(done.stdout[done.stdout.index("[") :])


def test_shared_arrays_have_their_names_and_indices(run_cli, tmp_path):
    path = tmp_path / "names.py"
    path.write_text(NAMES)
    memories = {one["memory"].split(", allocated")[0] for one in found(run_cli, path)}
    block = "in shared memory of block 0 on PE 0"
    assert memories == {
        f"`first[0]` {block} (float32, shape (32,)", f"`table[2, 3]` {block} (int32, shape (4, 16)",
        f"`all_of_it[7]` {block} (float64, dynamic", f"`again[1]` {block} (uint8, dynamic",
        f"`inner[0]` {block} (int16, shape (64,)", "`x[3, 1]` on PE 0 (float64, shape (4, 8)",
    }  # fmt: skip
