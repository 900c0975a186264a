"""What the rows of the operation table ask of machine code, and kernels to see it in.

`wanted` derives it from what a row says of itself: which memory it reads and writes, what it waits
for, orders and returns. The kernel of a row (`probe`) calls it once; if the call returns what other
PEs write, in a loop until they have.
"""

from gpushmem.ops import roles
from gpushmem.ops.row import ATOMIC, BULK, COPY, DATA, READS, SIGNAL, THREAD, UPDATES, WRITES
from tests.nvshmem import kernels
from tests.nvshmem.machine import questions, reader
from tests.nvshmem.machine.questions import DIRTY, FENCED, NOTHING

WIDTH, TWO = 8, 16  # bytes of the elements; of a piece of a line (LL128)
NONE_YET = {"any": "{} < 0", "some": "{} == 0", "all": "not {}", "test": "not {}"}
FIXED = {"cmp": "0", "status": "None"}
REDUCTIONS = ("reduce", "reducescatter")  # by NVSHMEM
COMBINING = (*REDUCTIONS, *kernels.LOCAL, "multimem_reduce")


def probe(op):
    """The kernel of a row, and the types of its arguments."""
    which = "sum" if op.base in COMBINING else None
    there = kernels.dtypes_of(op, which)
    dtype = next((name for name in ("uint64", "int64", "float64") if name in there), there[0])
    function, argtypes = kernels.kernel_of(op, dtype, which)
    names = function.__code__.co_varnames[: len(argtypes)]
    written = kernels.WRITTEN | ({"op": repr(which)} if which else {})
    given = [FIXED.get(n, n) if n in names else written[n] for n in op.params
             if n in names or n in written]  # fmt: skip
    call = f"operation({', '.join(given)})"
    if _polls(op):
        family = op.base.removesuffix("_vector").rpartition("_")[2]
        call = f"while {NONE_YET.get(family, '{} != 1').format(call)}:\n        pass"
    elif _gives_array(op):
        call = f"{call}[0] = 1"
    elif op.result():
        call = f"out[0] = {call}"
    scope = {"operation": op.function}
    exec(f"def {op.name}({', '.join(names)}):\n    {call}", scope)
    return scope[op.name], argtypes


def _polls(op):
    return op.hears and op.result() is not None


def _gives_array(op):
    return issubclass(op.returns, roles.View | roles.MulticastView)


# --- what a row asks for. A look takes the functions of an object, and the name of the kernel.


def wanted(op):
    """The names of what a row asks for, in `LOOKS`."""
    facts, names = op.facts, set()
    effects = [e for e in facts.effects if not issubclass(op.arrays[e.array], roles.Barriers)]
    kinds = {(effect.how, effect.kind) for effect in effects}
    one = bool(effects) and all(effect.extent == "0" for effect in effects)
    if one:
        names |= {LOADED if how == READS else STORED for how, _ in kinds}
    elif DATA in {kind for _, kind in kinds} and not (facts.meets or _own(op) or _async(op)):
        names.add(COPIED)
    if _gives_array(op):
        names.add(ASSIGNED)
    if _polls(op) or facts.waits_for:
        names.add(POLLED)
    if _polls(op) and one and READS in {how for how, _ in kinds}:
        names.add(NOT_DEAF)
    if _own(op):
        names.add(ACQUIRED if one and op.result() != "bool" else ACQUIRED_IF)
        names |= {ONCE} if one else set()
    if facts.orders in ("fence", "quiet", "barrier"):
        names.add(FENCES)
    if facts.meets:
        names |= {MEETING} if op.arrays else {MEETING, RELEASED}
    else:
        names.add(NO_LOCAL)
    if kinds >= {(WRITES, DATA), (UPDATES, SIGNAL)}:
        names.add(SIGNALLED)
    return names


def _own(op):
    """Whether it looks at words of its own PE that others write to tell of their data."""
    return any(
        effect.kind in (SIGNAL, ATOMIC)
        and issubclass(op.arrays[effect.array], roles.Own | roles.OwnSignal)
        for effect in op.facts.effects
    )


def _async(op):
    """Whether one instruction copies, which neither loads nor stores."""
    return op.facts.completion in (COPY, BULK)


LOADED = "a strong load of the element, by the system"
STORED = "a strong store of the element, by the system"
ASSIGNED = "a store of the element"
COPIED = "loads and stores of whole elements"
POLLED = "in a loop it loads each time"
NOT_DEAF = "no loop without a load"
ACQUIRED = "a fence after the load, on every path"
ACQUIRED_IF = "a fence after the load, on a path"
ONCE = "no plain load of the element"
FENCES = "a fence of the system"
MEETING = "a fence after what the others said"
RELEASED = "a fence before the others are told"
SIGNALLED = "a fence between data and signal"
NO_LOCAL = "no local memory"


def _loaded(functions, entry):
    return any(kind != reader.STORE for kind in _strong(functions, entry))


def _stored(functions, entry):
    return any(kind != reader.LOAD for kind in _strong(functions, entry))


def _strong(functions, entry):
    """How elements are accessed so that other PEs see it."""
    found = questions.accesses(functions, entry)
    return {kind for kind, width, strong, scope in found if (width, scope) == (WIDTH, reader.SYS)}


def _copied(functions, entry):
    found = questions.accesses(functions, entry)
    return {reader.LOAD, reader.STORE} <= {kind for kind, width, *_ in found if width >= WIDTH}


def _once(functions, entry):
    found = questions.accesses(functions, entry)
    return not any(a[:3] == (reader.LOAD, WIDTH, False) for a in found)


def _assigned(functions, entry):
    found = questions.accesses(functions, entry)
    return (reader.STORE, WIDTH) in {(kind, width) for kind, width, *_ in found}


def _signalled(functions, entry):
    return FENCED in (told := questions.told(functions, entry, NOTHING)) and DIRTY not in told


def _no_local(functions, entry):
    return all(instruction.space != "local" for instruction in functions[entry].code)


LOOKS = {
    LOADED: _loaded,
    STORED: _stored,
    ASSIGNED: lambda f, entry: (
        (reader.STORE, WIDTH) in {a[:2] for a in questions.accesses(f, entry)}
    ),
    COPIED: _copied,
    POLLED: lambda functions, entry: any(
        questions.is_polled(functions[entry], width) for width in (WIDTH, TWO)
    ),
    NOT_DEAF: lambda functions, entry: not questions.is_deaf(functions[entry], WIDTH),
    ACQUIRED: lambda functions, entry: questions.heard(functions, entry) == {FENCED},
    ACQUIRED_IF: lambda functions, entry: FENCED in questions.heard(functions, entry),
    ONCE: _once,
    FENCES: questions.is_fenced,
    MEETING: lambda functions, entry: DIRTY not in questions.heard(functions, entry),
    RELEASED: lambda functions, entry: questions.told(functions, entry) == {FENCED},
    SIGNALLED: _signalled,
    NO_LOCAL: _no_local,
}


def missing(functions, entry, op):
    """What a row asks for and its kernel's code does not have."""
    return {name for name in wanted(op) if not LOOKS[name](functions, entry)}


# --- what is not there


def defects(op):
    """What a row asks for that is known to be missing, and why; what is mended has to go."""
    if op.facts.orders == "barrier" and op.scope != THREAD:
        return {RELEASED: ELECTED}
    if op.base == "qp_quiet":
        return {NO_LOCAL: TWICE} | ({FENCES: ELECTED} if op.scope != THREAD else {})
    return {NOT_DEAF: OUTSIDE} if op.plain == "g" else {}


ELECTED = "thread 0 fences for its group, between two barriers of it: a path has no such fence"
TWICE = "a list of one queue pair is copied to the stack, and doubled, for NVSHMEM over IBGDA"
OUTSIDE = (
    "NVSHMEM's own g, whose plain load is taken out of loops, is for addresses outside the heap"
)
