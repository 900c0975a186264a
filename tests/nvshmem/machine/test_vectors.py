"""Copies and sums of a block have loads of 16 bytes, several of them in flight, and no spills."""

import re
from collections import Counter

import pytest

pytest.importorskip("nvshmem")

from gpushmem.ops import OPS
from tests.nvshmem import kernels
from tests.nvshmem.machine import reader
from tests.nvshmem.machine.reader import LOAD, STORE, SYS

# Loads side by side, and stores.
LINES = {
    "copy_block": (8, 4), "multimem_store_block": (8, 8), "reduce_rows_block": (4, 4),
    "reduce_local_block": (4, 4), "sum_rows_block": (4, 4),
}  # fmt: skip

pytestmark = pytest.mark.skipif(not reader.disassembler(), reason="nvdisasm is not installed")


UNITS = "put_ll_block", "reduce_ll_block"


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
def test_units_are_loaded_and_stored_by_16_bytes_without_a_fence(elsewhere, dtype):
    code = elsewhere.submit(built, dtype, UNITS).result()
    for name, there in code.items():
        assert not [one for one in there if one.space == "local"], name
        assert not [one for one in there if "MEMBAR" in one.opcode or "CCTL" in one.opcode], name
    stored, loaded = (
        [one for one in code[name] if one.strong and one.kind == kind]
        for name, kind in zip(UNITS, (STORE, LOAD), strict=True)
    )
    for some in stored, loaded:
        assert {one.width for one in some} == {8, 16}  # 8: at ends
        assert {one.scope for one in some} == {SYS}
    # Two of each of eight rows, before a thread looks at one.
    kinds = "".join(
        "l" if one in loaded and one.width == 16 else "b"
        for one in code["reduce_ll_block"] if one in loaded or one.opcode.startswith("YIELD")
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
