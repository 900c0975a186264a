"""docs/machine-code.md, from the machine code: python -m tests.nvshmem.machine.page."""

from pathlib import Path

from gpushmem.ops import OPS
from gpushmem.ops.row import THREAD
from tests.nvshmem import kernels
from tests.nvshmem.machine import objects, questions, rows
from tests.nvshmem.machine.objects import SASS
from tests.nvshmem.machine.reader import FENCE, INVALIDATE, LOAD

PAGE = Path(__file__).parents[3] / "docs/machine-code.md"
ARCHS = ("sm_80", "sm_90")
SHOWN = [
    op.name for op in kernels.rows()
    if op.scope == THREAD and op.base != "gemm" and not (op.facts.meets and op.arrays)
    and not rows.wanted(op) <= {rows.NO_LOCAL}
]  # fmt: skip
TOP = """\
# Machine code

What the machine code of operations was seen to do, where the other PE's memory is mapped. Each
line is a kernel of one thread that calls the operation with elements of 8 bytes; if it returns
what other PEs write, in a loop until they have. Listed are its accesses to global memory of 8
bytes and more, those of NVSHMEM's own state included, and its fences, in the order of the code;
not the calls of NVSHMEM's functions for networks. `STRONG.SYS` is an access that other GPUs and
the host see, and that is never taken from this GPU's L1 cache; `MEMBAR.SC.SYS` is a fence of the
system, `CCTL.IVALL` empties the L1 cache, so that plain loads after it are not older. sm_90a is as
sm_90.

What is missing in `g` is where NVSHMEM's own `g` follows, for addresses outside the heap, as does
the plain store of `p`. Plain accesses of atomics are the assembler's, for addresses in shared or
local memory.

The table is made by `python -m tests.nvshmem.machine.page`, from what nvdisasm shows of the linked
cubin; a test compares it. What each operation is asked for, and that it has it, is tested in
`tests/nvshmem/machine`, for every scope. Nothing here has run on a GPU ([gpu.md](gpu.md)).

## Copies and sums

`copy_block` and `multimem_store_block` have eight loads of 16 bytes (`LD.E.128`) before their first
store, which for the latter is one of the switch where there is one (`STG.E.128.STRONG.SYS`; in PTX
`multimem.st`). `reduce_rows_block`, `reduce_local_block` and `sum_rows_block` have four or more
before they use the first, for all dtypes of 2 to 8 bytes. `reduce_ll_block` and
`reduce_ll128_block` have two loads (`LDG.E.128.STRONG.SYS`) for each of up to eight rows before
they look at a flag, and neither they nor `put_ll_block` and `put_ll128_block` have a fence; the
latter has two stores, `STG.E.128.STRONG.SYS`, behind a `WARPSYNC.ALL`. `multimem_reduce_block` has
four loads of the switch (`LDGMC`) before it stores. None of them has memory on the stack; a test
looks (`tests/nvshmem/machine/test_vectors.py`). With 256 threads on a multiprocessor a copy has 32
KB in flight; by Little's law an H100 needs 15 KB for its HBM (3.35 TB/s, 0.6 us, 132
multiprocessors). Both figures are computed, not measured.

## Vectors of one thread

`load_vector` and `store_vector` are one access of their size: `LD.E.128`, `ST.E.128` for 16 bytes;
`.EF` (evict first) for "stream"; `.STRONG.SM`, `.STRONG.GPU`, `.STRONG.SYS` for the scopes of
"relaxed". "acquire" is followed by `CCTL.IVALL`, "release" comes after a `MEMBAR` of its scope. The
same test looks.

`copy_async` is a `LDGSTS.E`, `LDGSTS.E.64` or `LDGSTS.E.BYPASS.128` for 4, 8 or 16 bytes; no data
pass through registers. `copy_async_commit` is `LDGDEPBAR`, `copy_async_wait` `DEPBAR.LE`.

`copy_bulk` is a `UBLKCP.S.G` behind a `FENCE.VIEW.ASYNC`; mbarriers are `SYNCS`.

## Rows

"""


def seen(functions, entry):
    """The instructions that are listed, each once."""
    met, _ = questions.walk(functions, entry, None, lambda instruction, state: state)
    shown = {}
    for instruction, _ in met:
        listed = instruction.space == "global" and instruction.width >= rows.WIDTH
        listed &= not (instruction.kind == LOAD and "CONSTANT" in instruction.opcode)
        if listed or instruction.kind in (FENCE, INVALIDATE):
            shown[instruction.opcode] = None
    return ", ".join(f"`{opcode}`" for opcode in shown)


def cells(arch, names):
    """Row -> its cell for an architecture."""
    code, entries = objects.built(names, arch, [SASS])
    functions = objects.read(SASS, code[SASS])
    return {name: seen(functions, entry) for name, entry in entries.items()}


def page(found):
    """The whole page, of the cells of each architecture."""
    lines = [f"| operation | {' | '.join(ARCHS)} | missing |", "| --- | --- | --- | --- |"]
    for name in SHOWN:
        gaps = ", ".join(sorted(rows.defects(OPS[name])))
        lines.append(f"| `{name}` | {' | '.join(cell[name] for cell in found)} | {gaps} |")
    return TOP + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page([cells(arch, SHOWN) for arch in ARCHS]))
