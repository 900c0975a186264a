"""Whether the engine does with a program what CPython does; and programs that are made smaller."""

import copy
import re
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random

import numpy as np

from gpushmem.artifacts.launch_shape import shape_of
from gpushmem.simt.run.kernel import Kernel
from tests.simt.conftest import spread
from tests.simt.fuzz import language, reference
from tests.simt.fuzz.generate import ATOMIC_TYPES, FLAGS, PARAMETERS, SLOTS
from tests.simt.fuzz.reference import Rejected

# What CPython raises for programs that mean nothing, as one that was made smaller may.
UNDEFINED = (ArithmeticError, AttributeError, LookupError, NameError, RuntimeError, TypeError)
FILLS = (0, 1)  # what is in memory before anything is written: it makes no difference
MANY_BLOCKS = 16  # from which on a launch is spread over cores


@dataclass
class Fault:
    """What was wrong with a program, in words."""

    way: str
    what: str


def arguments(seed, shape):
    """A kernel's arguments, by name."""
    threads = int(np.prod(shape))
    args = {
        "out": np.full(threads, -1, np.int64),
        "x": np.array([3, 1, 4, 1, 5, 9, 2, 6]),
        "m": np.arange(12).reshape(3, 4) * 7 % 11,
        "u": seed % 4 + 1,
        "flags": np.zeros((threads, FLAGS), np.int64),
    }
    for name in ATOMIC_TYPES:
        args[f"c_{name}"] = (np.arange(SLOTS + threads) % 4).astype(name)
    return args


@cache
def folder():
    """Where sources are kept: Numba shows their lines, and its cache wants files."""
    return tempfile.TemporaryDirectory(prefix="fuzz")


def load(source):
    """The kernel's function, from a file of its own."""
    text = f"{language.ENGINE}{language.FUNCTIONS}\n{source}"
    path = Path(folder().name) / f"k{abs(hash(text))}.py"
    path.write_text(text)
    scope = {"__name__": path.stem, "__file__": str(path)}
    exec(compile(text, str(path), "exec"), scope)
    return scope["kernel"]


def expected(program, source):
    """By shape, the arguments as CPython leaves them; raises `Rejected`."""
    try:
        kernel, results = reference.compiled(source), []
    except SyntaxError as error:
        raise Rejected(f"{error!r}") from None
    for grid, block in program.shapes:
        same = [arguments(program.seed, (*grid, *block)) for _ in FILLS]
        try:
            for args, fill in zip(same, FILLS, strict=True):
                reference.run(kernel, grid, block, list(args.values()), fill)
        except UNDEFINED as error:
            raise Rejected(f"{error!r}") from None
        if any(not np.array_equal(same[0][name], same[1][name]) for name in PARAMETERS):
            raise Rejected("it reads memory that nobody has written")
        results.append(same[0])
    return results


def ways(program):
    """The ways to run a program: name -> first lines, options."""
    random = Random(program.seed)
    some = {"as it is": ((), {})}
    if program.mode != "any" and random.random() < 0.35:
        some["in lockstep"] = (("cuda.syncwarp()",), {})
        some["on fibers"] = (("cuda.syncwarp()",), {"lockstep": False})
    if program.mode == "none":
        some["between barriers"] = (("cuda.syncthreads()",), {})
    if random.random() < 0.1:
        some["kept on disk"] = ((), {"cache": True})
        some["loaded from disk"] = ((), {"cache": True})
    return some


def check(program, only=None):
    """The first `Fault` of a program, or None; raises `Rejected`."""
    wanted = expected(program, program.source())
    for name, (first, options) in ways(program).items():
        if only in (None, name):
            fault = _check_way(program, name, load(program.source(first)), options, wanted)
            if fault:
                return fault
    return None


def _check_way(program, name, function, options, wanted):
    kernel = Kernel(function, **program.options, **options)
    for (grid, block), right in zip(program.shapes, wanted, strict=True):
        args = arguments(program.seed, (*grid, *block))
        try:
            running = kernel.prepare(shape_of(grid, block), tuple(args.values()))
            with _spread(grid):
                running()
        except Exception as error:
            return Fault(name, f"{type(error).__name__}: {error}")
        kinds[running.entry.kind] = kinds.get(running.entry.kind, 0) + 1
        for what in PARAMETERS:
            if not np.array_equal(args[what], right[what]):
                return Fault(name, _difference(what, args[what], right[what], grid, block))
    return None


kinds = {}  # how often kernels ran as loops, blocks, fibers


def _spread(grid):
    """Large grids on two cores, whatever it costs."""
    many = grid[0] * grid[1] >= MANY_BLOCKS
    return spread(2) if many else nullcontext()


def _difference(what, got, wanted, grid, block):
    at = np.argwhere(np.asarray(got) != np.asarray(wanted))
    index = tuple(map(int, at[0]))
    return (
        f"{what}{list(index)} is {got[index]}, CPython says {wanted[index]} "
        f"({len(at)} of {got.size} differ), [{grid}, {block}]"
    )


# --- making programs smaller


def smallest(program, fault):
    """The fault of a program, and a smaller program that has the like."""

    def kind(fault):
        """What error was raised, without its numbers; None for a difference."""
        if "CPython says" in fault.what:
            return None
        return [re.sub(r"\d+", "", line) for line in fault.what.splitlines()[:4]]

    def still(candidate):
        nonlocal fault
        try:
            found = check(candidate, fault.way)
        except Rejected:
            return False
        if found is None or kind(found) != kind(fault):
            return False
        fault = found
        return True

    return smaller(program, still), fault


def report(program, fault):
    """A fault in words, and a file that shows it."""
    (grid, block), options = program.shapes[0], {**program.options}
    first = next(first for name, (first, _) in ways(program).items() if name == fault.way)
    return f"""seed {program.seed}, {fault.way}: {fault.what}

{language.ENGINE}{language.FUNCTIONS}
{program.source(first)}

from gpushmem.artifacts.launch_shape import shape_of
from gpushmem.simt.run.kernel import Kernel
from tests.simt.fuzz.check import arguments

args = arguments({program.seed}, ({grid} + {block}))
Kernel(kernel, **{options}).prepare(shape_of({grid}, {block}), tuple(args.values()))()
print(args)
"""


def smaller(program, still):
    """A program with as few lines and shapes as possible of which `still(program)` holds."""
    for shapes in [[s] for s in program.shapes]:
        candidate = replace(program, shapes=shapes)
        if still(candidate):
            program = candidate
            break
    size = len(program.lines)
    while size := size // 2:
        for start in reversed(range(0, len(program.lines), size)):
            rest = program.lines[:start] + program.lines[start + size :]
            if still(candidate := replace(program, lines=rest)):
                program = candidate
    changed = True
    while changed:
        changed = False
        for path in list(_paths(program.lines)):
            for change in (_without, _unwrapped):
                lines = _changed(change, program.lines, path)
                if lines is not None and still(candidate := replace(program, lines=lines)):
                    program, changed = candidate, True
                    break
    return program


def _paths(lines, before=()):
    """Where each line is, from the end, so that what is left to visit stays where it is."""
    for k in reversed(range(len(lines))):
        yield (*before, k)
        yield from _paths(lines[k].body or [], (*before, k))


def _changed(change, lines, path):
    """The lines after a change, or None; what was at the path may have gone meanwhile."""
    try:
        return change(copy.deepcopy(lines), path)
    except (IndexError, TypeError):
        return None


def _parent(lines, path):
    for k in path[:-1]:
        lines = lines[k].body
    return lines


def _without(lines, path):
    del _parent(lines, path)[path[-1]]
    return lines


def _unwrapped(lines, path):
    parent, k = _parent(lines, path), path[-1]
    if not parent[k].body:
        return None
    parent[k : k + 1] = parent[k].body
    return lines
