"""Kernels of all sorts become machine code: options, helpers, what numba-cuda links by itself."""

import re

import pytest

pytest.importorskip("nvshmem")

from numba import cuda, types
from numba.cuda.typing.typeof import typeof

import gpushmem as shmem
from gpushmem import code_store
from gpushmem.backends.nvshmem import versions
from gpushmem.backends.nvshmem.compile import aot, compiler, shims
from gpushmem.backends.nvshmem.operations import device_calls, multimem
from gpushmem.errors import ArgumentError
from gpushmem.ops import OPS
from tests.nvshmem import kernels
from tests.nvshmem.test_machine_code import sections

F32 = types.float32[::1]
ARCH = compiler.Arch.of("sm_90a")  # that of launches: NVSHMEM's functions are in the store


def copy(dst, src, i):
    dst[i] = src[i]
    shmem.put(dst, src, 0)


def busy(team, dst, src):
    shmem.put_block(dst, src, 1)
    for i in range(dst.size):
        dst[i] += src[i] * src[dst.size - i - 1]


@pytest.fixture
def link(elsewhere):
    """`compiler.link`, in another process."""
    return lambda compiled, kind="cubin": elsewhere.submit(compiler.link, compiled, kind).result()


@pytest.fixture
def linked(link):
    """`linked(function, argtypes)`: compile and link."""

    def compiled_and_linked(function, argtypes, arch=ARCH, kind="cubin", **options):
        return link(compiler.compile_kernel(function, argtypes, options, arch), kind)

    return compiled_and_linked


@pytest.mark.parametrize(
    ("options", "has"),
    [
        ({"debug": True}, ".debug_line"),
        ({"lineinfo": True}, ".debug_line"),
        ({"fastmath": True, "opt": False}, ".text"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_options_reach_the_code(linked, options, has):
    found = sections(linked(copy, (F32, F32, types.int64), **options).code)
    assert any(name.startswith(has) for name in found)
    assert (".debug_line" in found) == (has == ".debug_line")


def test_registers_are_limited(elsewhere):
    argtypes = (types.int64, F32, F32)
    free, held = (
        elsewhere.submit(aot.build, busy, argtypes, options, "sm_90").result().needs.registers
        for options in ({}, {"max_registers": 24})
    )
    assert held <= 24 < free


def test_grids_that_synchronise_are_cooperative(linked):
    def whole(a):
        shmem.p(a, 2.0, 0)
        cuda.cg.this_grid().sync()
        a[0] = 1

    assert compiler.compile_kernel(whole, (F32,), {}, ARCH).cooperative
    code = linked(whole, (F32,)).code
    assert code[:4] == b"\x7fELF"
    assert len(code) < 250_000, "beside a library's machine code all of NVSHMEM's would be kept"
    assert not compiler.compile_kernel(copy, (F32, F32, types.int64), {}, ARCH).cooperative


def test_kernels_that_wait_are_linked_with_nothing_more():
    """The bindings call them cooperative; CUDA's library for that is for grids that meet."""

    def waits(signal):
        shmem.signal_wait_until(signal, shmem.CMP_EQ, 1)

    compiled = compiler.compile_kernel(waits, (types.uint64[::1],), {}, ARCH)
    assert compiled.cooperative
    assert [part.kind for part in compiled.parts] == ["ltoir"]


TWICE = """
.version 8.0
.target sm_75
.address_size 64
.visible .func (.param .b32 status) twice(.param .b64 result, .param .b32 x)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [result];
    ld.param.u32 %r1, [x];
    shl.b32 %r2, %r1, 1;
    st.u32 [%rd1], %r2;
    mov.u32 %r3, 0;
    st.param.b32 [status], %r3;
    ret;
}
"""


def test_files_that_a_kernel_declares_are_linked(linked, tmp_path):
    """Those of all kinds have a number in numba-cuda, but CUDA C++."""
    path = tmp_path / "twice.ptx"
    path.write_text(TWICE)
    twice = cuda.declare_device("twice", "int32(int32)", link=str(path))

    def doubled(a):
        a[0] = twice(a[0])

    assert b"twice" in linked(doubled, (types.int32[::1],)).code


def test_what_numba_has_in_c_is_linked(linked):
    def reshaped(a):
        a.reshape(2, a.size // 2)[1, 0] = 7

    assert linked(reshaped, (F32,)).code[:4] == b"\x7fELF"


@shmem.jit(device=True)
def ours(x):
    return x + shmem.my_pe()


@cuda.jit(device=True)
def numbas(x):
    return 2 * ours(x)


def test_arithmetic_of_halves_beside_operations(link):
    """numba-cuda's own functions of C++ have names like those of the bindings."""
    halves = types.float16[::1]

    def weigh(x, w):
        x[0] = w[0] * (x[1] + x[2])
        shmem.p(x, x[0], 1)

    compiled = compiler.compile_kernel(weigh, (halves, halves), {}, ARCH)
    assert [name for name in compiled.shims if "half" in name] == []
    assert link(compiled).code[:4] == b"\x7fELF"


def test_device_functions_of_both_kinds(linked):
    def calls(a):
        a[0] = numbas(ours(a[0]))

    compiled = compiler.compile_kernel(calls, (types.int64[::1],), {}, ARCH)
    assert {name for name in compiled.shims if "my_pe" in name}
    assert linked(calls, (types.int64[::1],)).log.count("Function properties") == 1  # all inlined


@pytest.mark.parametrize(
    ("arch", "count"), [pytest.param("sm_80", 0, marks=pytest.mark.sweep), ("sm_90", 1)]
)
def test_a_multicast_store_is_one_instruction_where_there_is_one(linked, arch, count):
    def code_store(array, team, value, i):
        copies = shmem.multicast_array(array, team)
        copies[i] = value

    argtypes = (F32, types.int64, types.float32, types.int64)
    ptx = linked(code_store, argtypes, compiler.Arch.of(arch), "ptx").code.decode(errors="replace")
    assert ptx.count("multimem.st.relaxed.sys.global.u32") == count


@pytest.mark.parametrize("arch", [pytest.param("sm_80", marks=pytest.mark.sweep), "sm_90"])
@pytest.mark.parametrize("width", [2, pytest.param(4, marks=pytest.mark.sweep), 8])
def test_multimem_reduce_is_the_switchs_instruction_where_there_is_one(linked, arch, width):
    """Each reduction of each dtype of this many bytes, of which one kernel calls all."""
    kinds = [(of, kind) for of, kind in multimem.KINDS.items() if of[1].bitwidth == 8 * width]
    dtypes = dict.fromkeys(dtype for (_, dtype), _ in kinds)
    names = {dtype: f"a{k}" for k, dtype in enumerate(dtypes)}
    lines = [
        f"    shmem.multimem_reduce_block({names[dtype]}, {names[dtype]}, team, {op!r})\n"
        for (op, dtype), _ in kinds
    ]
    scope = {"shmem": shmem}
    exec(f"def kernel({', '.join(names.values())}, team):\n{''.join(lines)}", scope)
    argtypes = (*map(kernels.array_of, dtypes), types.int64)
    made = linked(scope["kernel"], argtypes, compiler.Arch.of(arch), "ptx")
    found = re.findall(r"multimem\.(ld_reduce[.:\w]+) (\{?)", made.code.decode(errors="replace"))
    texts = {f"ld_reduce.relaxed.sys.global.{kind.word}" for _, kind in kinds}
    packs = {f"ld_reduce.relaxed.sys.global.{kind.pack}" for _, kind in kinds if kind.pack}
    if arch == "sm_80":
        assert not found
    else:
        assert {text for text, bracket in found if not bracket} == texts
        assert {text for text, bracket in found if bracket} == packs


def test_multimem_reduce_is_compiled_for_one_architecture_after_another(linked):
    def kernel(a, team):
        shmem.multimem_reduce(a, a, team, "xor")

    argtypes = (types.int64[::1], types.int64)
    for name, count in ("sm_80", 0), ("sm_90", 1):
        code = linked(kernel, argtypes, compiler.Arch.of(name), "ptx").code
        assert (code.count(b"multimem.ld_reduce") > 0) == count, name


def test_the_workspace_of_collect_is_read_when_the_kernel_runs(linked):
    function, argtypes = kernels.kernel_of(OPS["collect"], "int32")
    ptx = linked(function, argtypes, kind="ptx").code.decode(errors="replace")
    assert "[gpushmem_workspace]" in ptx


def test_an_unknown_option_is_refused():
    with pytest.raises(ArgumentError, match="jit has no option blocking"):
        compiler.compile_kernel(copy, (F32, F32, types.int64), {"blocking": True}, ARCH)


ARCHS = {"90": "sm_90", "10.0": "sm_100", "compute_90a": "sm_90a", " sm_120f ": "sm_120f"}


@pytest.mark.parametrize(("text", "arch"), ARCHS.items())
def test_architectures_as_people_write_them(text, arch):
    assert str(compiler.Arch.of(text)) == arch


def test_kernels_share_the_object_that_has_all_but_reductions(tmp_path, monkeypatch):
    """Its cost is NVSHMEM's headers: it must be made once, not once a kernel."""
    made = []
    monkeypatch.setenv("GPUSHMEM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(code_store, "_objects", {})
    monkeypatch.setattr(shims, "_compile", lambda source, *_: made.append(source) or b"code")

    def needs(name, dtype="int32", which=None):
        function, argtypes = kernels.kernel_of(OPS[name], dtype, which)
        return shims.compiled_for(kernels.shims_of(function, argtypes, ARCH), str(ARCH))

    for name in ("put_block", "wait_until_any", "atomic_xor", "alltoalls_warp"):
        assert needs(name) == b"code"
    assert len(made) == 1
    needs("reduce_block", which="sum")
    assert len(made) == 2
    assert len(made[1]) < len(made[0]) / 20
    assert len(list(tmp_path.iterdir())) == 2 + 1  # and when it was last pruned


def test_a_kernels_code_and_what_is_known_of_it_are_one_record():
    artifact = aot.Artifact({"entry": "k"}, b"\x00\n\xff")
    assert aot.Artifact.load(artifact.dump()) == artifact
    with pytest.raises(ValueError, match="Expecting"):
        aot.Artifact.load(b"{broken")


def test_teams_have_attributes_and_methods(link):
    """They are the operations: the same shims, whichever way they are asked for."""
    longs = types.int64[::1]

    def asked(team, out):
        out[0], out[1] = team.my_pe, shmem.TEAM_WORLD.n_pes
        out[2] = team.translate_pe(0, shmem.TEAM_NODE)
        if team:
            team.barrier()
            team.sync()

    def by_name(team, out):
        out[0], out[1] = shmem.team_my_pe(team), shmem.team_n_pes(0)
        out[2] = shmem.team_translate_pe(team, 0, 2)
        if team >= 0:
            shmem.barrier(team)
            shmem.sync(team)

    a = compiler.compile_kernel(asked, (typeof(shmem.TEAM_WORLD), longs), {}, ARCH)
    b = compiler.compile_kernel(by_name, (types.int64, longs), {}, ARCH)
    assert a.shims == b.shims != frozenset()
    assert link(a).code[:4] == b"\x7fELF"


def test_the_compilers_of_a_toolkit_without_packages_are_in_keys(monkeypatch):
    """Their packages' versions are, otherwise."""
    known = dict(versions.compilers())
    assert known["nvidia-nvvm"] or known["nvidia-cuda-nvcc-cu12"]
    assert known.keys().isdisjoint(versions.LIBRARIES)
    monkeypatch.setattr(versions, "installed", lambda package: None)
    found = dict(versions.compilers.__wrapped__())
    for name in versions.LIBRARIES:
        path, size = found[name]
        assert name.lower() in path.lower()
        assert size > 0


def test_a_put_of_nothing_is_only_its_signal():
    """NVSHMEM would send 0 bytes, which an adapter takes for 2 GiB."""

    def send(dst, src, signal, pe):
        shmem.put_signal(dst, src, signal, 1, shmem.SIGNAL_SET, pe)

    types_of_it = F32, F32, types.uint64[::1], types.int32
    names = compiler.compile_kernel(send, types_of_it, {}, ARCH).shims
    called = [name for name in names if name not in device_calls.EXTRA]
    assert len(called) == 2
    assert any("put32_signal" in name for name in called)
    assert any("signal_op" in name for name in called)
