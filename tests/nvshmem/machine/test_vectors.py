"""Copies and sums of a block have loads of 16 bytes, several of them in flight, and no spills."""

import re
from collections import Counter

import pytest

pytest.importorskip("nvshmem")

from numba import cuda

import gpushmem as shmem
from gpushmem.ops import OPS
from gpushmem.ops.roles import LoadAccess
from tests.nvshmem import kernels
from tests.nvshmem.machine import reader
from tests.nvshmem.machine.reader import FENCE, INVALIDATE, LOAD, STORE, SYS

# Loads side by side, and stores.
LINES = {
    "copy_block": (8, 4), "multimem_store_block": (8, 8), "reduce_rows_block": (4, 4),
    "reduce_local_block": (4, 4), "sum_rows_block": (4, 4),
}  # fmt: skip

pytestmark = pytest.mark.skipif(not reader.disassembler(), reason="nvdisasm is not installed")


UNITS = [(f"put_{name}_block", f"reduce_{name}_block") for name in ("ll", "ll128")]


def built(dtype, names=tuple(LINES)):
    """The instructions of each operation's kernel."""
    from gpushmem.backends.nvshmem.compile import compiler

    found, arch = {}, compiler.Arch.of("sm_90a")
    for name in names:
        which = "sum" if "op" in OPS[name].params else None
        function, argtypes = kernels.kernel_of(OPS[name], dtype, which)
        compiled = compiler.compile_kernel(function, argtypes, {}, arch)
        code = compiler.link(compiled, "cubin").code
        found[name] = reader.sass(code)[compiled.entry].code
    return found


@pytest.mark.parametrize("dtype", ["float16", pytest.param("float32", marks=pytest.mark.sweep)])
def test_words_are_loaded_together(elsewhere, dtype):
    for name, code in elsewhere.submit(built, dtype).result().items():
        memory = [one for one in code if one.kind in (LOAD, STORE)]
        assert not [one for one in memory if one.space == "local"], name
        words = [one for one in memory if one.width == 16]
        kinds = "".join("l" if one.kind == LOAD else "s" for one in words)
        loads, stores = LINES[name]
        assert "l" * loads + "s" * stores in kinds, (name, kinds)
        # The rest is for ends, and for places that are not aligned alike.
        assert {one.width for one in memory if one.space == "global"} <= {16, 2, 4, 8}, name


@pytest.mark.parametrize("dtype", ["float16", pytest.param("int64", marks=pytest.mark.sweep)])
@pytest.mark.parametrize("names", UNITS)
def test_units_are_loaded_and_stored_by_16_bytes_without_a_fence(elsewhere, names, dtype):
    code = elsewhere.submit(built, dtype, names).result()
    for name, there in code.items():
        assert not [one for one in there if one.space == "local"], name
        assert not [one for one in there if "MEMBAR" in one.opcode or "CCTL" in one.opcode], name
    stored, loaded = (
        [one for one in code[name] if one.strong and one.kind == kind]
        for name, kind in zip(names, (STORE, LOAD), strict=True)
    )
    for some in stored, loaded:
        assert {one.width for one in some} == ({16} if "ll128" in names[0] else {8, 16})  # 8: ends
        assert {one.scope for one in some} == {SYS}
    # Two of each of eight rows, before a thread looks at one.
    kinds = "".join(
        "l" if one in loaded and one.width == 16 else "b"
        for one in code[names[1]] if one in loaded or one.opcode.startswith("YIELD")
    )  # fmt: skip
    assert "l" * 16 in kinds, kinds


def stores_of_the_switch(arch):
    from gpushmem.backends.nvshmem.compile import compiler

    function, argtypes = kernels.kernel_of(OPS["multimem_store_block"], "float32")
    compiled = compiler.compile_kernel(function, argtypes, {}, compiler.Arch.of(arch))
    return re.findall(r"multimem\.st\S+", compiler.link(compiled, "ptx").code.decode())


@pytest.mark.parametrize("arch", [pytest.param("sm_80", marks=pytest.mark.sweep), "sm_90a"])
def test_what_all_members_get_is_stored_by_the_switch_where_there_is_one(elsewhere, arch):
    found = Counter(elsewhere.submit(stores_of_the_switch, arch).result())
    words, ends = "v4.f32", "u32"
    if arch == "sm_80":
        assert not found
    else:
        assert found["multimem.st.relaxed.sys.global." + words] >= 8
        assert {text.rpartition(".global.")[2] for text in found} == {words, ends}


def combined_by_the_switch():
    """The instructions of `multimem_reduce_block`."""
    return built("float16", ("multimem_reduce_block",))["multimem_reduce_block"]


def test_the_switch_has_four_words_under_way(elsewhere):
    code = elsewhere.submit(combined_by_the_switch).result()
    words = [one for one in code if one.kind in (LOAD, STORE) and one.width == 16]
    kinds = "".join(
        "s" if one.kind == STORE else "m" if one.opcode.startswith("LDGMC") else "l"
        for one in words
    )  # fmt: skip
    assert "mmmmssss" in kinds, kinds


# --- vectors that one thread accesses

ACCESSES = {  # access -> what is in the opcodes of its loads and stores
    "weak": "", "stream": ".EF", "relaxed.cta": ".STRONG.SM", "relaxed.gpu": ".STRONG.GPU",
    "relaxed.sys": ".STRONG.SYS", "acquire.sys": ".STRONG.SYS", "release.sys": ".STRONG.SYS",
    "acquire.gpu": ".STRONG.GPU", "release.gpu": ".STRONG.GPU",
}  # fmt: skip
SHAPES = [("float32", 4), ("float16", 8), ("int8", 4), ("float64", 1), ("bfloat16", 1)]


def accesses():
    """The accesses to memory and fences of kernels: one access of each kind and size."""
    from gpushmem.backends.nvshmem.compile import compiler

    found, compiled, arch = {}, {}, compiler.Arch.of("sm_90a")
    for access in ACCESSES:
        for dtype, n in SHAPES if access in ("weak", "relaxed.sys") else SHAPES[:1]:
            loads = access in LoadAccess.names
            lines = [
                f"v = shmem.load_vector(a, i, {n})",
                f"shmem.store_vector(b, i, v, {access!r})",
            ]
            if loads:
                lines = [
                    f"v = shmem.load_vector(a, i, {n}, {access!r})",
                    "shmem.store_vector(b, i, v)",
                ]
            scope = {"shmem": shmem}
            exec(f"def kernel(a, b, i):\n    {lines[0]}\n    {lines[1]}", scope)
            array = kernels.array_of(kernels.dtype_of(dtype))
            argtypes = (array, array, kernels.types.int64)
            compiled[access, dtype, n] = compiler.compile_kernel(
                scope["kernel"], argtypes, {}, arch
            )
    linked = compiler.link_all(list(compiled.values()), "cubin").code
    functions = reader.sass(linked)
    for case, kernel in compiled.items():
        code = functions[kernel.entry].code
        found[case] = [
            one for one in code
            if one.kind in (LOAD, STORE, FENCE, INVALIDATE) and one.space != "constant"
        ]  # fmt: skip
    return found


def test_a_vector_is_one_access(elsewhere):
    for (access, dtype, n), code in elsewhere.submit(accesses).result().items():
        loads = access in LoadAccess.names
        size = n * kernels.dtype_of(dtype).bitwidth // 8
        memory = [one for one in code if one.kind in (LOAD, STORE)]
        assert [one.width for one in memory] == [size, size], (access, dtype)
        assert ACCESSES[access] in memory[not loads].opcode, access
        kinds = "".join(
            {LOAD: "l", STORE: "s", FENCE: "f", INVALIDATE: "i"}[one.kind] for one in code
        )
        ordered = {"acquire": "lis", "release": "lfs"}.get(access.partition(".")[0], "ls")
        assert kinds == ordered, (access, kinds)


# --- copies to shared memory


def tile(out, x, i):
    tile, t = cuda.shared.array(1024, "float32", alignment=16), cuda.threadIdx.x
    shmem.copy_async(tile, 4 * t, x, i, 4)
    shmem.copy_async(tile, 2 * t, x, i, 2)
    shmem.copy_async(tile, t, x, i, 1)
    shmem.copy_async_commit()
    shmem.copy_async_commit()
    shmem.copy_async_wait(1)
    cuda.syncthreads()
    out[t] = tile[1023 - t]


def async_copies():
    """The opcodes of a kernel that copies to shared memory; those of them that copy or wait."""
    from gpushmem.backends.nvshmem.compile import compiler

    array = kernels.array_of(kernels.types.float32)
    argtypes = (array, array, kernels.types.int64)
    compiled = compiler.compile_kernel(tile, argtypes, {}, compiler.Arch.of("sm_90a"))
    linked = compiler.link_all([compiled], "cubin").code
    opcodes = [one.opcode for one in reader.sass(linked)[compiled.entry].code]
    return opcodes, [one for one in opcodes if one.startswith(("LDGSTS", "LDGDEPBAR", "DEPBAR"))]


def test_an_asynchronous_copy_is_one_instruction(elsewhere):
    """Of each size; no data pass through registers, and nothing is asked when it runs."""
    opcodes, found = elsewhere.submit(async_copies).result()
    assert found[:3] == ["LDGSTS.E.BYPASS.128", "LDGSTS.E.64", "LDGSTS.E"]
    assert found[3:] == ["LDGDEPBAR", "LDGDEPBAR", "DEPBAR.LE"]
    assert not any(one.startswith("BPT") for one in opcodes)
    assert not any(one.startswith(("LDG.", "STS")) for one in opcodes)


def bulk_tile(out, x, i, n):
    tile, t = cuda.shared.array(1024, "float32", alignment=16), cuda.threadIdx.x
    bars = cuda.shared.array(1, "uint64")
    if t == 0:
        shmem.mbarrier_init(bars, 0, cuda.blockDim.x)
    cuda.syncthreads()
    if t == 0:
        shmem.mbarrier_arrive_and_expect_tx(bars, 0, 4 * n)
        shmem.copy_bulk(tile, 0, x, i, n, bars, 0)
    else:
        shmem.mbarrier_arrive(bars, 0)
    shmem.mbarrier_wait(bars, 0, 0)
    out[t] = tile[1023 - t]


def without_tma(out, i):
    bars = cuda.shared.array(1, "uint64")
    if cuda.threadIdx.x == 0:
        shmem.mbarrier_init(bars, 0, cuda.blockDim.x)
    cuda.syncthreads()
    shmem.mbarrier_arrive(bars, 0)
    shmem.mbarrier_wait(bars, 0, i)


def bulk_copies(arch):
    """The instructions of a kernel that counts copies in bulk, or of one that does not."""
    from gpushmem.backends.nvshmem.compile import compiler

    array, word = kernels.array_of(kernels.types.float32), kernels.types.int64
    kernel, argtypes = bulk_tile, (array, array, word, word)
    if arch == "sm_80":
        kernel, argtypes = without_tma, (array, word)
    compiled = compiler.compile_kernel(kernel, argtypes, {}, compiler.Arch.of(arch))
    linked = compiler.link_all([compiled], "cubin").code
    return [one.opcode for one in reader.sass(linked)[compiled.entry].code]


OF_TMA = [
    "SYNCS.EXCH.64", "SYNCS.ARRIVE.TRANS64", "FENCE.VIEW.ASYNC.G", "FENCE.VIEW.ASYNC.S",
    "UBLKCP.S.G", "SYNCS.ARRIVE.TRANS64.A1T0", "SYNCS.PHASECHK.TRANS64.TRYWAIT",
]  # fmt: skip
SWEPT = [pytest.param(arch, marks=pytest.mark.sweep) for arch in ("sm_80", "sm_100")]


@pytest.mark.parametrize("arch", ["sm_90a", *SWEPT])
def test_mbarriers_and_copies_in_bulk_are_instructions(elsewhere, arch):
    """One copy of any size, behind fences; before TMA an mbarrier is a word in shared memory."""
    opcodes = elsewhere.submit(bulk_copies, arch).result()
    if arch == "sm_80":
        assert "ATOMS.ARRIVE.64" in opcodes
        return
    assert set(OF_TMA) <= set(opcodes)
    assert opcodes.count("UBLKCP.S.G") == 1
    before = opcodes[: opcodes.index("UBLKCP.S.G")]
    expected = before.index("SYNCS.ARRIVE.TRANS64")
    assert {"FENCE.VIEW.ASYNC.G", "FENCE.VIEW.ASYNC.S"} <= set(before[expected:])
    assert not any(one.startswith(("LDG.", "STS")) for one in opcodes)
