"""Wrong calls of operations in kernels: one short error that names the operation and the argument.

Each row is called with every parameter given types that it does not take, with an argument too few,
one too many and a keyword that there is not. Nothing is compiled: what is wrong is found before.
"""

import inspect

import pytest
from numba.cuda import types
from numba.cuda.core.errors import TypingError

from gpushmem.backends.cpu import lowering
from gpushmem.ops import OPS
from gpushmem.simt.compiler.target import compile_function, simt_target

ROWS = [op for op in OPS.values() if op.kernel]
SAMPLE = (
    "p",
    "put",
    "put_signal_block",
    "atomic_add",
    "wait_until_some",
    "reduce_warp",
    "gemm_block",
    "multimem_reduce_block",
    "load_vector",
    "copy_async",
    "copy_async_wait",
    "mbarrier_wait",
    "copy_bulk",
)
LONGEST = 400  # characters


def array(dtype, ndim=1):
    return types.Array(dtype, ndim, "C")


WORDS, NUMBERS = array(types.int32), array(types.float32)
TEXT = types.unicode_type
PAIR = types.UniTuple(types.int64, 2)
# What is right for a parameter, and what is wrong.
KINDS = {
    "Symmetric": (WORDS, (types.int64, types.none, PAIR, TEXT)),
    "Array": (WORDS, (types.float64, types.none, PAIR)),
    "Array | None": (types.none, (NUMBERS, types.int64, PAIR)),
    "Scalar": (types.int32, (WORDS, types.none, PAIR, TEXT)),
    "int": (types.int64, (types.float64, types.none, WORDS, PAIR, TEXT)),
    "int | None": (types.none, (types.float64, WORDS, PAIR)),
    "Team": (types.int64, (types.float64, types.none, WORDS)),
    "bool": (types.boolean, (types.none, WORDS)),
    "str": ('"sum"', (types.int64, types.none)),
    "tuple[Scalar, ...]": (PAIR, (WORDS, types.int64, types.none)),
}
OTHERS = {"access": '"weak"', "n": "2"}  # what is right if it is not that of the kind
VECTOR = (WORDS, (types.int64, types.none, NUMBERS))
UNITS, MATRIX = array(types.uint64), array(types.float32, 2)
# What is right for the arrays of some rows, for which WORDS are wrong.
PARTICULAR = {
    "gemm": {"dst": MATRIX, "a": MATRIX, "b": MATRIX},
    "put_ll": {"dst": UNITS}, "put_ll128": {"dst": UNITS},
    "reduce_ll": {"src": array(types.uint64, 2)}, "reduce_ll128": {"src": array(types.uint64, 2)},
    "reduce_rows": {"src": array(types.int32, 2)},
    "sum_rows": {"dst": NUMBERS, "src": MATRIX, "weights": NUMBERS},
}  # fmt: skip


def kinds_of(op):
    """What is right and wrong for each parameter of a row."""
    kinds = {}
    for name, parameter in inspect.signature(op.function).parameters.items():
        if name in op.params:
            vector = name == "indices" or (name == "value" and parameter.annotation == "Array")
            right, wrong = VECTOR if vector else KINDS[parameter.annotation]
            right = OTHERS.get(name, right)
            if name in ("signal", "bars"):
                right, wrong = array(types.uint64), (*wrong, WORDS)
            elif name in PARTICULAR.get(op.base, ()):
                right, wrong = PARTICULAR[op.base][name], (*wrong, WORDS)
            kinds[name] = right, wrong
    return kinds


def refusal(op, given):
    """Compile a kernel with this call, in which what is a text is written so; the error."""
    taken = {name: typ for name, typ in given.items() if not isinstance(typ, str)}
    call = ", ".join(f"{n}={n if n in taken else given[n]}" for n in given)
    scope = {"operation": op.function}
    exec(f"def kernel({', '.join(taken)}):\n    operation({call})", scope)
    with pytest.raises(TypingError) as error:
        compile_function(scope["kernel"], tuple(taken.values()))
    return str(error.value)


@pytest.mark.cpu_backend
@pytest.mark.parametrize(
    "op",
    [
        pytest.param(op, id=op.name, marks=() if op.name in SAMPLE else pytest.mark.sweep)
        for op in ROWS
    ],
)
def test_a_wrong_call_gives_one_short_error(op):
    lowering.install()
    right = {name: kind[0] for name, kind in kinds_of(op).items()}
    for name, (_, wrongs) in kinds_of(op).items():
        for wrong in wrongs:
            said = refusal(op, right | {name: wrong})
            assert said.startswith(f"{op.name}: {name} "), (name, wrong, said)
            assert len(said) < LONGEST, said
    without = dict(list(right.items())[1:])
    for call, about in (
        (right | {"nonsense": types.int64}, "has no argument 'nonsense'"),
        (without, f"missing a required argument: {next(iter(right), None)!r}"),
    )[: 2 if right else 1]:
        said = refusal(op, call)
        assert said.startswith(f"{op.name}(")
        assert about in said
        assert len(said) < LONGEST, said


@pytest.mark.cpu_backend
def test_right_calls_of_the_sweep_are_taken():
    """What `test_a_wrong_call_gives_one_short_error` changes one argument of is right itself."""
    lowering.install()
    for name in SAMPLE:
        op = OPS[name]
        right = [kind[0] for kind in kinds_of(op).values()]
        taken = tuple(types.literal(eval(t)) if isinstance(t, str) else t for t in right)
        callee = simt_target.typing_context.resolve_value_type(op.function)
        assert simt_target.typing_context.resolve_function_type(callee, taken, {}) is not None
