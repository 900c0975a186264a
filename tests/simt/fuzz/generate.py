"""Random kernels as trees of lines.

A kernel computes a number `v` in each thread. What it makes on the way (scalars of all types,
tuples, arrays and views of them, records, iterators) goes into `v` some time later, so whatever is
lost across a barrier shows at the end. Integers stay small, and floats have values that all
their types represent, so that the order of sums, or fastmath, changes nothing.
"""

from dataclasses import dataclass, field
from random import Random

SLOTS = 6  # elements for atomics that all threads use; each thread has one of its own after them
FLAGS = 4  # columns of flags to poll
ATOMIC_TYPES = ("int32", "uint32", "int64", "uint64", "float32", "float64")
PARAMETERS = ["out", "x", "m", "u", "flags", *(f"c_{name}" for name in ATOMIC_TYPES)]
MAX_SHARED_THREADS = 128


@dataclass
class Line:
    """A line of the kernel, with the lines that are indented under it."""

    text: str
    body: list["Line"] | None = None

    def source(self, depth=1):
        own = "    " * depth + self.text
        if self.body is None:
            return [own]
        inner = [s for line in self.body for s in line.source(depth + 1)]
        return [own, *(inner or ["    " * (depth + 1) + "pass"])]


@dataclass
class Program:
    """A kernel, how it is compiled, and with which shapes it is launched."""

    seed: int
    mode: str  # how its threads meet: "none", "block" or "any"
    flat: bool  # one dimension only
    lines: list[Line]
    options: dict
    shapes: list  # of (grid, block), each a pair

    def source(self, first=()):
        """The kernel's source; `first` are lines to put before all others."""
        head = [f"def kernel({', '.join(PARAMETERS)}):", *(f"    {line}" for line in first)]
        return "\n".join([*head, *(s for line in self.lines for s in line.source())]) + "\n"


@dataclass
class Scope:
    """What the lines at some place can use."""

    depth: int = 0
    loops: int = 0
    uniform: bool = True  # whether all threads that have not returned come here together
    left: bool = False  # whether some may have returned
    numbers: list = field(default_factory=lambda: ["t", "b", "n", "u", "v", "v"])
    arrays: list = field(default_factory=lambda: [("x", 8, False, "C")])  # name, size, own, layout
    matrices: list = field(default_factory=lambda: [("m", 3, 4, False, "C")])
    records: list = field(default_factory=list)

    def inner(self, loop=False, uniform=True):
        copies = {k: list(getattr(self, k)) for k in ("numbers", "arrays", "matrices", "records")}
        return Scope(
            self.depth + 1, self.loops + loop, self.uniform and uniform, self.left, **copies
        )


class Writer:
    """Writes one program."""

    def __init__(self, seed):
        self.random = random = Random(seed)
        self.count = 0
        self.slots = dict.fromkeys(ATOMIC_TYPES, 0)
        self.flags = 0
        self.mode = random.choices(["none", "block", "any"], [1, 7, 3])[0]
        self.budget = random.randint(8, 22)
        flat = random.random() < 0.7
        scope = Scope()
        lines = [Line(text) for text in [*HEADS[flat], *(BOARD if self.mode != "none" else [])]]
        lines += self.block(scope)
        lines += self.use(scope, len(scope.numbers) - 6)
        lines.append(Line("out[g] = v"))
        self.program = Program(seed, self.mode, flat, lines, self.options(), self.shapes(flat))

    # --- choices

    def name(self, prefix):
        self.count += 1
        return f"{prefix}{self.count}"

    def one(self, items):
        return self.random.choice(items)

    def chance(self, p):
        return self.random.random() < p

    def options(self):
        options = {}
        if self.chance(0.15):
            options["fastmath"] = True
        if self.chance(0.12):
            options["debug"] = True
        return options

    def shapes(self, flat):
        if flat:
            shapes = [((2, 1), (self.one([1, 2, 3]), 1)), ((3, 1), (self.one([32, 33, 45]), 1))]
        else:
            shapes = [((2, 1), (3, 2)), ((1, 2), (8, 5))]
        if self.chance(0.15) and self.mode != "any":
            shapes.append(((37, 1), (self.one([4, 20]), 1)) if flat else ((7, 5), (4, 2)))
        return shapes

    def number(self, scope, depth=2):
        """An expression of a small integer."""
        if depth == 0 or self.chance(0.3):
            return self.leaf(scope)
        a, b = self.number(scope, depth - 1), self.number(scope, depth - 1)
        return self.one(FORMS).format(a=a, b=b, k=self.random.randint(1, 7))

    def leaf(self, scope):
        kind = self.random.random()
        if kind < 0.15:
            return str(self.random.randint(-9, 99))
        if kind < 0.4 and scope.arrays:
            name, size, _, _ = self.one(scope.arrays)
            return f"{name}[{self.index(scope, size)}]"
        if kind < 0.5 and scope.matrices:
            name, rows, columns, _, _ = self.one(scope.matrices)
            return f"{name}[{self.index(scope, rows)}, {self.index(scope, columns)}]"
        return self.one(scope.numbers)

    def index(self, scope, size):
        if self.chance(0.5):
            return str(self.random.randrange(size))
        return f"({self.one(scope.numbers)}) % {size}"

    def condition(self, scope, uniform):
        if uniform:
            return self.one(["u > 3", "b % 2 == 0", "n > 2", "u % 2 == 1", "b < 1"])
        k = self.random.randint(2, 5)
        return self.one(["t % {k} == {r}", "t % {k} != {r}", "v % {k} == {r}", "t < {k}"]).format(
            k=k, r=self.random.randrange(k)
        )

    # --- lines

    def block(self, scope):
        lines = []
        for _ in range(self.random.randint(1, 4) if scope.depth else 99):
            if self.budget <= 0:
                break
            self.budget -= 1
            lines += self.lines(scope)
        return lines

    def lines(self, scope):
        """A few lines that belong together."""
        while True:
            made = self.random.choices(list(MAKERS), [w[0] for w in MAKERS.values()])[0]
            _, modes, fits = MAKERS[made]
            if self.mode in modes and fits(scope):
                lines = made(self, scope)
                if lines is not None:
                    return lines

    def update(self, scope, extra=None):
        extra = extra or self.number(scope)
        return Line(f"v = mix(v, {extra})")

    def use(self, scope, most):
        """Lines in which `v` takes up what is in variables."""
        names = scope.numbers[6:]
        return [self.update(scope, name) for name in names[-most:] if most > 0]

    def nested(self, scope, loop=False, uniform=True, **things):
        inner = scope.inner(loop, uniform)
        for kind, items in things.items():
            getattr(inner, kind).extend(items)
        before = len(inner.numbers)
        lines = self.block(inner)
        if self.chance(0.6):
            lines += [self.update(scope, name) for name in inner.numbers[before:][:2]]
        if loop and self.chance(0.2):
            word = self.one(["break", "continue"])
            at = self.random.randint(0, len(lines))
            lines.insert(at, Line(f"if {self.condition(scope, uniform=False)}:", [Line(word)]))
        scope.left |= inner.left
        return lines


HEADS = {
    True: ["t = cuda.threadIdx.x", "n = cuda.blockDim.x", "b = cuda.blockIdx.x",
           "g = cuda.grid(1)", "v = t + 1"],
    False: ["t = cuda.threadIdx.x + cuda.blockDim.x * cuda.threadIdx.y",
            "n = cuda.blockDim.x * cuda.blockDim.y",
            "b = cuda.blockIdx.x + cuda.gridDim.x * cuda.blockIdx.y",
            "g = b * n + t", "v = t * 3 + b"],
}  # fmt: skip
BOARD = [f"board = cuda.shared.array({MAX_SHARED_THREADS}, int64)", "board[t] = t"]
FORMS = [
    "({a} + {b})", "({a} - {b})", "({a} * {k})", "({a} & {k})", "({a} ^ {k})", "({a} | {k})",
    "({a} >> {k})", "({a} // {k})", "({a} % {k})", "min({a}, {b})", "max({a}, {b})", "abs({a})",
    "int64({a} < {b})", "(-{a})", "({a} if {a} < {b} else {k})",
]  # fmt: skip
MAKERS = {}  # how a writer makes lines -> weight, modes, whether it fits a scope
ALL, MEETING, ANY = ("none", "block", "any"), ("block", "any"), ("any",)


def makes(weight, modes=ALL, fits=lambda scope: True):
    def enter(function):
        MAKERS[function] = weight, modes, fits
        return function

    return enter


def generate(seed):
    from tests.simt.fuzz import makers  # noqa: F401  (which fills the table)

    return Writer(seed).program
