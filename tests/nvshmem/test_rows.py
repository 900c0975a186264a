"""Every row of the operation table compiles for GPUs, and links to machine code."""

from dataclasses import replace
from importlib.util import find_spec

import pytest

pytest.importorskip("nvshmem")

from numba.core.errors import NumbaError
from numba.cuda import types
from numba.cuda.descriptor import cuda_target

import gpushmem as shmem
from gpushmem.backends import argument_types
from gpushmem.backends.nvshmem.compile import compiler, shims
from gpushmem.backends.nvshmem.operations import (
    accesses,
    composed,
    device_calls,
    elements,
    lowering,
    multimem,
)
from gpushmem.backends.nvshmem.trace import ranges
from gpushmem.ops import OPS
from tests.nvshmem import kernels

SM_90 = compiler.Arch.of("sm_90")
ARCHS = ("sm_80", "sm_90", "sm_100")
REDUCTIONS = ("reduce", "reducescatter")  # by NVSHMEM
COMBINING = (*REDUCTIONS, *kernels.LOCAL, "multimem_reduce")


@pytest.mark.parametrize("all_dtypes", [False, pytest.param(True, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("op", kernels.rows(), ids=lambda op: op.name)
def test_a_row_compiles_for_every_dtype(elsewhere, op, all_dtypes):
    elsewhere.submit(_compile, op.name, all_dtypes).result()


@pytest.mark.parametrize(
    "op", [op for op in kernels.rows() if op.base in lowering.CALLS], ids=lambda op: op.name
)
def test_nvshmem_has_a_function_for_every_dtype(op):
    """The names alone, which is quick: those of all dtypes that are not compiled, too."""
    for which, dtype, timeout in kernels.forms(op):
        _, argtypes = kernels.kernel_of(op, dtype, which, timeout)
        given = dict(zip([p for p in op.params if p != "op" or not which], argtypes, strict=False))
        if which is not None:
            given["op"] = types.literal(which)
        name = lowering._name(op, lowering.CALLS[op.base], given)
        assert device_calls.signature_of(name) is not None, (which, dtype)


SIZES = ("int8", "float16", "float32", "int64", "complex128", "bfloat16")  # of what is copied


def _sample(op):
    """Each form once: of each reduction one dtype, of what is copied a dtype of each size.

    Of what waits, or tests, every fifth: with a timeout and without in turn.
    """
    forms = kernels.forms(op)
    if op.base not in COMBINING:
        copied = {dtype for _, dtype, _ in forms} >= set(SIZES)
        waits = not {"ivar", "ivars"}.isdisjoint(op.params)
        several = forms[::5] if waits else forms
        return [form for form in several if not copied or form[1] in SIZES]
    of = {which: [form for form in forms if form[0] == which] for which, *_ in forms}
    return [several[k % len(several)] for k, several in enumerate(of.values())]


FEW = "my_pe", "p", "put_signal_nbi_warp", "wait_until_any", "collect_block"


@pytest.mark.skipif(find_spec("numba_cuda_mlir") is None, reason="no numba-cuda-mlir")
@pytest.mark.parametrize(
    ("names", "all_dtypes"),
    [
        (FEW, False),
        pytest.param([op.name for op in kernels.rows()], True, marks=pytest.mark.sweep),
    ],
    ids=["few", "all"],
)
def test_rows_call_the_same_functions_in_kernels_of_either_compiler(elsewhere, names, all_dtypes):
    wanted = [name for name in names if OPS[name].base not in kernels.NOT_BY_MLIR]
    assert elsewhere.submit(_compare, wanted, all_dtypes).result() == {}


EIGHT_BITS = "fp8_e4m3", "fp8_e5m2"  # numba-cuda-mlir 0.6 compiles no such number


def _compare(names, all_dtypes):
    """The forms for which the compilers' kernels call different functions of NVSHMEM."""
    found = {}
    for op in map(OPS.get, names):
        for form in kernels.forms(op) if all_dtypes else _sample(op)[:1]:
            which, dtype, timeout = form
            if dtype in EIGHT_BITS and op.base in ("p", "g"):
                continue
            function, argtypes = kernels.kernel_of(op, dtype, which, timeout)
            calls = [
                kernels.shims_of(function, argtypes, SM_90, compiler)
                for compiler in ("numba-cuda", "numba-cuda-mlir")
            ]
            if calls[0] != calls[1]:
                found[(op.name, *form)] = sorted(calls[0] ^ calls[1])
    return found


def _compile(name, all_dtypes):
    op = OPS[name]
    for which, dtype, timeout in kernels.forms(op) if all_dtypes else _sample(op):
        function, argtypes = kernels.kernel_of(op, dtype, which, timeout)
        calls = kernels.shims_of(function, argtypes, SM_90)
        assert bool(calls) == (op.base not in kernels.OWN), f"{op.name} of {dtype}"


# Around NVSHMEM's function.
BOTH = ("broadcast", "iput", "iget", "put_signal", "qp_put_signal", "signal_fetch")


def test_every_row_is_lowered_in_one_way():
    lowering.install()
    ways = (
        lowering.CALLS, elements.DEFINITIONS, composed.CHOICES, multimem.NAMES,
        ranges.DEFINITIONS, accesses.DEFINITIONS,
    )  # fmt: skip
    for op in kernels.rows():
        found = [way for way in ways if op.base in way]
        assert len(found) == (2 if op.base in BOTH else 1), op.name
    bases = {op.base for op in kernels.rows()}
    assert {name for way in ways for name in way} <= bases


def test_an_argument_can_be_a_constant():
    site = lowering.Site(cuda_target.target_context, None, {})
    assert site.argument("SIGNAL_ADD").code.constant == shmem.SIGNAL_ADD


def test_a_row_without_a_lowering_is_named():
    choose = composed.body_of(replace(OPS["flush"], base="signal_add"), {})
    with pytest.raises(LookupError, match=r"^signal_add has no lowering: .* to CALLS in backends"):
        choose()


def test_functions_of_the_table_are_in_the_bindings():
    """What names with a dtype stand for is looked at by the rows' own tests."""
    for base, call in lowering.CALLS.items():
        if "{" not in call.name:
            signature = device_calls.signature_of(call.name)
            assert signature is not None, base
            assert len(signature.args) == len(call.arguments.split()), base


LARGE = ("broadcast", "collect", "fcollect", "reducescatter")  # seconds each to link
ALL_OTHERS, OF_REDUCTIONS = "all others", "reductions"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("rows", "archs", "some"),
    [
        (ALL_OTHERS, ("sm_90",), True),
        pytest.param(ALL_OTHERS, ARCHS, False, marks=pytest.mark.sweep),
        pytest.param(OF_REDUCTIONS, ARCHS, False, marks=pytest.mark.sweep),
    ],
)
def test_rows_link(elsewhere, rows, archs, some):
    """One object with a kernel for each row; `some`: of threads, but for the large ones."""
    ops = [op for op in kernels.rows() if (op.base in REDUCTIONS) == (rows == OF_REDUCTIONS)]
    if some:
        ops = [op for op in ops if op.scope == "thread" and op.base not in LARGE]
    without = {"sm_80": kernels.NEEDS_TMA}
    names = {a: [op.name for op in ops if op.base not in without.get(a, ())] for a in archs}
    made = [elsewhere.submit(_link, arch, names[arch]) for arch in archs]
    for arch, (entries, linked) in zip(archs, (m.result() for m in made), strict=True):
        assert entries >= len(names[arch]) >= 1, arch
        assert linked == entries, arch


def test_the_functions_for_a_reduction_compile(elsewhere):
    """From NVSHMEM's headers. To link one takes a quarter of a minute: see above."""
    assert elsewhere.submit(_functions_of, "reduce").result() > 10_000


def _functions_of(name):
    function, argtypes = kernels.kernel_of(OPS[name], "int32", "sum")
    return len(shims.compiled_for(kernels.shims_of(function, argtypes, SM_90), str(SM_90)))


def _link(arch, names):
    """Link the rows of these names; how many kernels there were, and are."""
    compiled = []
    for op in map(OPS.get, names):
        which = "sum" if op.base in COMBINING else None
        for timeout in (False, True) if "timeout_ns" in op.params else (False,):
            dtypes = kernels.dtypes_of(op, which)
            dtype = "int32" if "int32" in dtypes else dtypes[0]
            function, argtypes = kernels.kernel_of(op, dtype, which, timeout)
            compiled.append(kernels.compiled(function, argtypes, compiler.Arch.of(arch)))
    linked = compiler.link_all(compiled)
    return len(compiled), linked.log.count("Compiling entry function")


REFUSED = [
    ("reduce", "complex64", "prod", "NVSHMEM has \"prod\" not of complex64"),
    ("reduce_warp", "float32", "and", "is of integers, not of float32"),
    ("atomic_and", "float32", None, "atomic_and: dst must be an array of int32"),
    ("wait_until", "int8", None, "ivar must be an array of int16"),
    ("put_signal", "boolean", None, None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "dtype", "which", "said"), REFUSED)
def test_what_there_is_not_is_refused_when_compiling(name, dtype, which, said):
    function, argtypes = kernels.kernel_of(OPS[name], dtype, which)
    if said is None:
        assert kernels.shims_of(function, argtypes, SM_90)
        return
    with pytest.raises(NumbaError) as error:
        kernels.shims_of(function, argtypes, SM_90)
    assert said in str(error.value)


@pytest.mark.parametrize("name", kernels.NEEDS_TMA)
def test_what_gpus_without_tma_lack_is_refused_when_compiling(name):
    kernel = kernels.kernel_of(OPS[name], kernels.dtypes_of(OPS[name])[0])
    with pytest.raises(NumbaError, match=r"compute capability 9\.0 .* for 8\.0: use copy_async"):
        kernels.shims_of(*kernel, compiler.Arch.of("sm_80"))


def test_maxloc_is_what_nvshmem_has_of_it():
    pair = types.Record.make_c_struct([("value", types.float64), ("place", types.float64)])
    arrays = (types.int64, kernels.array_of(pair), kernels.array_of(pair))

    def of_block(team, dst, src):
        OPS_BLOCK(team, dst, src, "maxloc")

    def of_thread(team, dst, src):
        OPS_THREAD(team, dst, src, "maxloc")

    assert kernels.shims_of(of_block, arrays, SM_90)
    with pytest.raises(NumbaError, match="in reduce_block only"):
        kernels.shims_of(of_thread, arrays, SM_90)


OPS_BLOCK, OPS_THREAD = OPS["reduce_block"].function, OPS["reduce"].function


def test_reductions_take_what_the_table_says():
    known = {"sum", "prod", "min", "max", "and", "or", "xor", "maxloc"}
    assert set(argument_types.REDUCTIONS) == known
