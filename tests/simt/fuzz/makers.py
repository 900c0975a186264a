"""The kinds of lines that random kernels are made of."""

from tests.simt.fuzz.generate import (
    ANY,
    ATOMIC_TYPES,
    FLAGS,
    MAX_SHARED_THREADS,
    MEETING,
    SLOTS,
    Line,
    makes,
)
from tests.simt.fuzz.language import INTEGERS


def shallow(scope):
    return scope.depth < 3


def once(scope):
    return scope.loops == 0


def together(scope):
    return scope.uniform


# --- values

# type -> how it is made of an integer, and what is read from it
SCALARS = {
    **{name: (f"{name}({{e}})", ["int64({s}) % 1009"]) for name in INTEGERS},
    "float16": ("float16(({e}) & 31)", ["int64(float32({s}))"]),
    "bfloat16": ("float32(bfloat16(float32(({e}) & 31)))", ["int64({s})"]),
    "float32": ("float32(({e}) & 63) * float32(0.25)", ["int64({s} * float32(4))"]),
    "float64": ("(({e}) & 63) / 8", ["int64({s} * 8)"]),
    "fp8": ("fp8_e4m3(float32(({e}) & 15))", ["int64(float32({s}))"]),
    "fp8s": ("fp8_e5m2(float32(({e}) & 7))", ["int64(float32({s}))"]),
    "complex": ("complex64(({e}) & 15)", ["int64({s}.real)", "int64(({s} * {s}).real)"]),
    "bool": ("({e}) % 3 == 0", ["int64({s})"]),
    "float32x2": ("cuda.float32x2(float32(t & 7), float32(({e}) & 63))",
                  ["int64({s}.y)", "int64({s}.x + {s}.y)"]),
    "int32x3": ("cuda.int32x3(int32(({e}) & 63), int32(t), int32(5))", ["int64({s}.x)"]),
    "float64x4": ("cuda.float64x4(float64(({e}) & 63), float64(t), 0.5, 1.5)",
                  ["int64({s}.x + {s}.y)", "int64({s}.z * 2)"]),
    "uint8x4": ("cuda.uint8x4(uint8(t & 63), uint8(({e}) & 63), uint8(1), uint8(2))",
                ["int64({s}.y)", "int64({s}.x)"]),
    "tuple": ("(({e}), float32(t & 7), ({e}) & 1)", ["{s}[0]", "int64({s}[1])", "{s}[2]"]),
    "pair": ("(int64(t), int64({e}))", ["{s}[0]", "{s}[(v) % 2]"]),
    "nested": ("((t, {e}), u)", ["{s}[0][1]", "{s}[0][0] + {s}[1]"]),
}  # fmt: skip


@makes(8)
def scalar(w, scope):
    how, uses = w.one(list(SCALARS.values()))
    s = w.name("s")
    text = how.format(e=w.number(scope))
    scope.numbers += [f"({use.format(s=s)})" for use in uses]
    return [Line(f"{s} = {text}")]


@makes(3)
def mixed(w, scope):
    return [w.update(scope)]


@makes(2)
def unpacked(w, scope):
    a, b, c = (w.name("s") for _ in range(3))
    line = Line(f"{a}, ({b}, {c}) = {w.number(scope)}, (t, {w.number(scope)})")
    scope.numbers += [a, b, c]
    return [line]


@makes(1, fits=shallow)
def perhaps(w, scope):
    """A variable that is None in some threads."""
    s, inner = w.name("s"), scope.inner()
    lines = [
        Line(f"{s} = None"),
        Line(f"if {w.condition(scope, False)}:", [Line(f"{s} = {w.number(scope)}")]),
        *w.block(inner),
        Line(f"if {s} is not None:", [w.update(scope, s)]),
    ]
    scope.left |= inner.left
    return lines


# --- arrays


@makes(5, fits=once)
def local_array(w, scope):
    a, size = w.name("a"), w.random.randint(2, 5)
    fill = Line(f"{a}[k] = (t * 10 + k * {w.random.randint(1, 9)} + b) % 1009")
    scope.arrays.append((a, size, True, "C"))
    return [
        Line(f"{a} = cuda.local.array({size}, int64)"),
        Line(f"for k in range({size}):", [fill]),
    ]


@makes(3, fits=once)
def local_matrix(w, scope):
    a, rows, columns = w.name("a"), w.random.randint(2, 3), w.random.randint(2, 3)
    fill = Line(f"{a}[j, k] = (t * 10 + k + 5 * j) % 1009")
    scope.matrices.append((a, rows, columns, True, "C"))
    return [
        Line(f"{a} = cuda.local.array(({rows}, {columns}), int64)"),
        Line(f"for j in range({rows}):", [Line(f"for k in range({columns}):", [fill])]),
    ]


@makes(2, fits=once)
def local_records(w, scope):
    a, r, size = w.name("a"), w.name("r"), 3
    fill = [
        Line(f'{a}[k]["a"] = t * 10 + k'),
        Line(f'{a}[k]["b"] = float32(({w.number(scope)}) & 63)'),
        Line(f'{a}[k]["c"] = (t + k) & 63'),
    ]
    lines = [
        Line(f"{a} = cuda.local.array({size}, PAIR)"),
        Line(f"for k in range({size}):", fill),
        Line(f"{r} = {a}[{w.index(scope, size)}]"),
    ]
    scope.records.append(r)
    scope.numbers += [f'{r}["a"]', f'int64({r}["b"])', f'int64({a}[{w.index(scope, size)}]["c"])']
    return lines


@makes(1, fits=lambda scope: scope.records)
def record_write(w, scope):
    return [Line(f'{w.one(scope.records)}["a"] = ({w.number(scope)}) % 1009')]


@makes(6)
def view(w, scope):
    """A part of an array, or the array in another way."""
    a = w.name("a")
    if w.chance(0.5):
        name, rows, columns, own, layout = w.one(scope.matrices)
        row, column = w.index(scope, rows), w.index(scope, columns)
        size, text, made = w.one([
            (columns, f"{name}[{row}]", layout if layout == "C" else "A"),
            (columns, f"{name}[{row}, :]", "A"),
            (rows, f"{name}[:, {column}]", "A"),
            (columns, f"same({name})[{row}]", layout if layout == "C" else "A"),
            (rows * columns, f"{name}.reshape({rows * columns})", "C") if layout == "C"
            else (columns, f"{name}[{row}]", "A"),
        ])  # fmt: skip
    else:
        name, size, own, layout = w.one(scope.arrays)
        if size < 2:
            return None
        size, text, made = w.one([
            (size - 1, f"{name}[1:]", layout),
            (size - 1, f"{name}[{w.index(scope, 2)}:]", "A"),  # or one more: not to be reshaped
            (size, f"{name}[::-1]", "A"),
            ((size + 1) // 2, f"{name}[::2]", "A"),
            (size, f"same({name})", layout),
            (size, f"with_number({name}, t)[1]", layout),
            (size, f"({w.number(scope)}, {name})[1]", layout),
        ])  # fmt: skip
    scope.arrays.append((a, size, own, made))
    return [Line(f"{a} = {text}")]


@makes(2)
def as_matrix(w, scope):
    even = [a for a in scope.arrays if a[1] % 2 == 0 and a[3] == "C" and a[0] != "x"]
    a = w.name("a")
    if even and w.chance(0.6):
        name, size, own, _ = w.one(even)
        scope.matrices.append((a, 2, size // 2, own, "C"))
        return [Line(f"{a} = {name}.reshape(2, {size // 2})")]
    name, rows, columns, own, layout = w.one(scope.matrices)
    turned = {"C": "F", "F": "C"}.get(layout, "A")
    scope.matrices.append((a, columns, rows, own, turned))
    return [Line(f"{a} = {name}.T")]


@makes(1)
def as_words(w, scope):
    plain = [a for a in scope.arrays if a[3] == "C" and a[0] != "x"]
    if not plain:
        return None
    name, size, _, _ = w.one(plain)
    a = w.name("a")
    scope.numbers.append(f"int64({a}[{w.index(scope, size)}])")
    return [Line(f"{a} = {name}.view(np.uint64)")]


@makes(2)
def one_of_two(w, scope):
    """A variable that points to one array or another."""
    own = [a for a in scope.arrays if a[2] and a[3] == "C"]
    if len(own) < 2:
        return None
    (p, p_size, _, _), (q, q_size, _, _) = w.random.sample(own, 2)
    a = w.name("a")
    scope.arrays.append((a, min(p_size, q_size), True, "C"))
    return [Line(f"{a} = {p} if {w.condition(scope, False)} else {q}")]


@makes(4)
def array_write(w, scope):
    own = [a for a in scope.arrays if a[2]]
    if not own:
        return None
    name, size, _, _ = w.one(own)
    index, value = w.index(scope, size), f"({w.number(scope)}) % 1009"
    if w.chance(0.3):
        a = w.name("a")
        scope.arrays.append((a, size, True, "?"))
        return [Line(f"{a} = bumped({name}, {index}, {value})")]
    return [Line(f"{name}[{index}] = {value}")]


@makes(1)
def summed(w, scope):
    return [w.update(scope, f"total({w.one(scope.arrays)[0]})")]


# --- branches and loops


@makes(4, fits=shallow)
def branch(w, scope):
    uniform = w.chance(0.4)
    lines = [
        Line(f"if {w.condition(scope, uniform)}:", w.nested(scope, uniform=uniform)),
    ]
    if w.chance(0.4):
        lines.append(Line("else:", w.nested(scope, uniform=uniform)))
    return lines


@makes(7, fits=lambda scope: scope.loops < 2 and scope.depth < 3)
def loop(w, scope):
    """A loop over one of the things that can be looped over."""
    i, y, z = w.name("i"), w.name("y"), w.name("z")
    (a, *_), (c, *_) = w.one(scope.arrays), w.one(scope.arrays)
    m, _, columns, own, _ = w.one(scope.matrices)
    k = w.random.randint(1, 3)
    some = w.number(scope, 1)
    ways = [
        (f"for {i} in range({k}):", [i]),
        (f"for {i} in range(t % {k + 1}):", [i]),
        (f"for {i} in range(({some}) & 3):", [i]),
        (f"for {i} in range(u):", [i]),
        (f"for {i} in range({k} + 3, 1, -2):", [i]),
        (f"for {i}, {y} in enumerate({a}):", [i, y]),
        (f"for {i}, {y} in enumerate({a}, t):", [i, y]),
        (f"for {y}, {z} in zip({a}, {c}):", [y, z]),
        (f"for {i}, ({y}, {z}) in enumerate(zip({a}, {c})):", [i, y, z]),
        (f"for ({i}, {y}), {z} in zip(enumerate({a}), range(t, t + 3)):", [i, y, z]),
        (f"for {i}, {y} in np.ndindex(2, {k}):", [i, y]),
        (f"for {i}, {y} in np.ndindex(t % 2 + 1, 2):", [i, y]),
        (f"for ({i}, {y}), {z} in np.ndenumerate({m}):", [i, y, z]),
        (f"for {y} in {m}.flat:", [y]),
        (f"for {y} in {a}:", [y]),
        (f"for {y} in same({a}):", [y]),
        (f"for {y} in (int64(t), int64({some}), int64(7)):", [y]),
        (f"for {y} in np.nditer({m}):", [f"{y}.item()"]),
        (f"for {y} in {m}:", []),
    ]
    text, names = w.one(ways)
    arrays = [] if names else [(y, columns, own, "A")]
    body = w.nested(scope, loop=True, uniform=False, numbers=names, arrays=arrays)
    return [Line(text, body)]


@makes(2, MEETING, lambda scope: scope.loops < 2 and scope.depth < 2)
def loop_together(w, scope):
    i = w.name("i")
    return [Line(f"for {i} in range({w.one(['2', '3', 'u'])}):", steady(w, scope, i))]


def steady(w, scope, i):
    """The body of a loop whose turns all threads make together."""
    inner = scope.inner(loop=True)
    inner.numbers.append(i)
    lines = w.block(inner)
    scope.left |= inner.left
    return lines


@makes(2, fits=lambda scope: scope.loops < 2 and scope.depth < 3)
def while_loop(w, scope):
    i = w.name("i")
    body = w.nested(scope, loop=True, uniform=False, numbers=[i])
    return [
        Line(f"{i} = ({w.number(scope, 1)}) & 3"),
        Line(f"while {i} > 0:", [Line(f"{i} -= 1"), *body]),
    ]


@makes(4, MEETING, lambda scope: scope.loops < 2 and scope.depth < 2)
def moving(w, scope):
    """A loop in which variables move along; threads meet in some turns, and some leave it."""
    i, inner = w.name("i"), scope.inner(loop=True, uniform=False)
    names = [w.name("s") for _ in range(w.random.randint(2, 4))]
    values = ["7", "u", "n", "t", "v % 97", w.number(scope, 1)]
    lines = [Line(f"{s} = {w.one(values)}") for s in names]
    inner.numbers += [i, *names]
    turn = [f"{i} == 1", f"{i} % 2 == b % 2", f"x[{i}] % 2 == 1", f"m[{i} % 3, 1] > 5", "u > 2"]
    pieces = [
        *(Line(f"{a} = {b}") for a, b in (w.random.sample(names, 2) for _ in names)),
        Line(f"{w.one(names)} = " + w.one([f"{i} & 15", f"{i} * 3 + u", w.number(inner, 1)])),
        Line(f"if {w.one(turn)}:", [Line("cuda.syncthreads()")]),
        w.update(inner, w.one(names)),
    ]
    for word in w.random.choices(["break", "continue", "return"], [4, 2, 1], k=w.one([1, 1, 2])):
        last = [Line("out[g] = v")] if word == "return" else []
        condition = w.one([w.condition(inner, False), w.condition(inner, True), f"t > {i} + u"])
        pieces.append(Line(f"if {condition}:", [*last, Line(word)]))
        inner.left |= word == "return"
    w.random.shuffle(pieces)
    if w.chance(0.3):  # in their order: one may use what another makes
        k = w.random.randrange(len(pieces) + 1)
        pieces[k:k] = w.lines(inner)
    scope.left |= inner.left
    scope.numbers += names
    k = w.random.randint(2, 4)
    if w.chance(0.5):
        return [*lines, Line(f"for {i} in range({w.one([k, 'u', 't % 4 + 1'])}):", pieces)]
    return [*lines, Line(f"{i} = 0"), Line(f"while {i} < {k}:", [Line(f"{i} += 1"), *pieces])]


@makes(1)
def by_hand(w, scope):
    """An iterator that is advanced where it is needed."""
    a, size, _, _ = w.one(scope.arrays)
    it = w.name("it")
    made = w.one([f"iter({a})", f"iter(enumerate({a}))", f"iter(zip({a}, {a}))"])
    lines = [Line(f"{it} = {made}")]
    for _ in range(w.random.randint(1, min(3, size))):
        s, inner = w.name("s"), scope.inner()
        lines += [Line(f"{s} = next({it})"), *w.block(inner)]
        lines.append(w.update(scope, s if made == f"iter({a})" else f"{s}[1]"))
        scope.left |= inner.left
    return lines


@makes(1.5, fits=lambda scope: scope.depth < 2)
def leave(w, scope):
    condition = w.condition(scope, w.chance(0.2))
    scope.left = True
    return [Line(f"if {condition}:", [Line("out[g] = v"), Line("return")])]


# --- barriers


@makes(9, MEETING, lambda scope: scope.uniform or scope.depth < 3)
def barrier(w, scope):
    return [Line("cuda.syncthreads()")]


@makes(4, MEETING, together)
def exchange(w, scope):
    """Each thread reads what another one has written."""
    k = w.random.randint(1, 9)
    lines = [
        Line("cuda.syncthreads()"),
        Line("board[t] = v % 1009"),
        Line("cuda.syncthreads()"),
        *(w.lines(scope) if w.chance(0.4) else []),
    ]
    return [*lines, w.update(scope, f"board[(t + {k}) % n]")]


@makes(2, MEETING, lambda scope: scope.uniform and not scope.left and not scope.loops)
def shared_matrix(w, scope):
    """A row of shared memory each, and what another has there."""
    s, row = w.name("shared"), w.name("row")
    how = w.one([f"{s}[t]", f"same({s})[t]", f"{s}[t, :]"])
    lines = [
        Line(f"{s} = cuda.shared.array(({MAX_SHARED_THREADS}, 2), int64)"),
        Line(f"{row} = {how}"),
        Line(f"{row}[0], {row}[1] = ({w.number(scope)}) % 1009, t"),
        Line("cuda.syncthreads()"),
    ]
    scope.numbers += [f"{row}[v % 2]", f"{s}[(t + {w.random.randint(0, 5)}) % n, 0]"]
    return lines


@makes(1, ANY, together)
def counted(w, scope):
    name = w.one(["syncthreads_count", "syncthreads_and", "syncthreads_or"])
    return [w.update(scope, f"cuda.{name}(int32({w.condition(scope, False)}))")]


@makes(0.5, ANY, lambda scope: scope.uniform and not scope.depth)
def grid_barrier(w, scope):
    return [Line("cuda.cg.this_grid().sync()")]


# --- warps

WARP = {
    "shfl_sync": ["{m}, int32({e}), ({f}) & 31", "{m}, int64({e}), t & 31"],
    "shfl_up_sync": ["{m}, int64({e}), {k}", "{m}, float32(({e}) & 63), {k}"],
    "shfl_down_sync": ["{m}, int32({e}), {k}", "{m}, float64(({e}) & 63), {k}"],
    "shfl_xor_sync": ["{m}, int32({e}), {k}", "{m}, float32(({e}) & 63), {k}"],
    "all_sync": ["{m}, ({e}) > 9"], "any_sync": ["{m}, ({e}) > 9"], "eq_sync": ["{m}, ({e}) > 0"],
    "ballot_sync": ["{m}, ({e}) % 3 == 0"],
    "match_any_sync": ["{m}, int32(({e}) & 3)", "{m}, int64(({e}) % 5)"],
}  # fmt: skip


def warp_line(w, scope, mask):
    kind = w.random.random()
    if kind < 0.1:
        return Line(f"cuda.syncwarp({mask})")
    if kind < 0.2:
        return w.update(scope, "cuda.popc(cuda.activemask())")
    if kind < 0.3:
        call = f"cuda.match_all_sync({mask}, int32(({w.number(scope)}) & 1))"
        return w.update(scope, f"int64({call}[{w.random.randint(0, 1)}]) % 1009")
    name = w.one(list(WARP))
    args = w.one(WARP[name])
    args = args.format(m=mask, e=w.number(scope), f=w.number(scope), k=w.one([1, 2, 4, 16]))
    return w.update(scope, f"int64(cuda.{name}({args})) % 1009")


@makes(6, ANY, together)
def warp(w, scope):
    return [warp_line(w, scope, "FULL")]


@makes(2, ANY, lambda scope: scope.uniform and scope.depth < 3)
def half_warps(w, scope):
    """Halves of a warp, each with operations of its own."""
    even = [warp_line(w, scope, "0x55555555") for _ in range(w.random.randint(1, 2))]
    odd = [warp_line(w, scope, "0xAAAAAAAA") for _ in range(w.random.randint(1, 2))]
    return [Line("if t % 2 == 0:", even), Line("else:", odd)]


# --- atomic operations

COMMUTING = {
    **dict.fromkeys(("add", "max", "min", "nanmax", "nanmin"), ATOMIC_TYPES),
    "sub": ("int32", "uint32", "float32", "float64"),
    **dict.fromkeys(("and_", "or_", "xor"), ("int32", "uint32", "int64", "uint64")),
    **dict.fromkeys(("inc", "dec"), ("uint32", "uint64")),
}  # fmt: skip
OWN = {**COMMUTING, "exch": ("int32", "uint32", "int64", "uint64")}


def operand(w, scope, name, op):
    if name.startswith("float"):
        return f"{name}(({w.number(scope)}) & 15)"
    return f"{name}({w.random.randint(2, 9)})" if op in ("inc", "dec") else (
        f"{name}(({w.number(scope)}) & 63)"
    )  # fmt: skip


@makes(4)
def atomic(w, scope):
    """All threads change one element; the order makes no difference."""
    op = w.one(list(COMMUTING))
    name = w.one(COMMUTING[op])
    slot = w.slots[name]
    if slot == SLOTS:
        return None
    w.slots[name] += 1
    return [Line(f"cuda.atomic.{op}(c_{name}, {slot}, {operand(w, scope, name, op)})")]


@makes(4)
def own_atomic(w, scope):
    """Each thread changes an element of its own, and uses what was there."""
    op = w.one([*OWN, "cas"])
    name = w.one(OWN.get(op, OWN["exch"]))
    value = operand(w, scope, name, op)
    if op == "cas":
        value = f"{name}({w.random.randint(0, 3)}), {value}"
    s = w.name("s")
    scope.numbers.append(f"(int64({s}) % 1009)")
    return [Line(f"{s} = cuda.atomic.{op}(c_{name}, {SLOTS} + g, {value})")]


@makes(1)
def first_of_all(w, scope):
    """One thread wins; how many did is counted."""
    if w.slots["int32"] >= SLOTS - 1:
        return None
    slot = w.slots["int32"]
    w.slots["int32"] += 2
    won = Line(f"cuda.atomic.add(c_int32, {slot + 1}, 1)")
    return [Line(f"if cuda.atomic.cas(c_int32, {slot}, 0, 7) == 0:", [won])]


@makes(2, MEETING, lambda scope: scope.uniform and not scope.left)
def shared_atomic(w, scope):
    op = w.one(list(COMMUTING))
    name = w.one(COMMUTING[op])
    s, slot = w.name("shared"), w.random.randrange(4)
    return [
        Line(f"{s} = cuda.shared.array(4, {name})"),
        Line("if t == 0:", [Line("for k in range(4):", [Line(f"{s}[k] = k")])]),
        Line("cuda.syncthreads()"),
        Line(f"cuda.atomic.{op}({s}, {slot}, {operand(w, scope, name, op)})"),
        *(w.lines(scope) if w.chance(0.3) else []),
        Line("cuda.syncthreads()"),
        w.update(scope, f"int64({s}[{slot}]) % 1009"),
        Line("cuda.syncthreads()"),
    ]


# --- polling


def polled(scope):
    return scope.uniform and not scope.left and not scope.depth


def column(w):
    w.flags += 1
    return None if w.flags > FLAGS else w.flags - 1


@makes(1.5, ANY, polled)
def flag(w, scope):
    """All wait for one thread."""
    f = column(w)
    if f is None:
        return None
    first = "g - t"
    store = w.one([
        f"flags[{first}, {f}] = v % 97 + 1", f"cuda.atomic.exch(flags, ({first}, {f}), v % 97 + 1)"
    ])  # fmt: skip
    turn = [Line("pass")] if w.chance(0.7) else [Line("cuda.nanosleep(10)")]
    return [
        Line("if t == n - 1:", [Line(store)]),
        Line(f"while flags[{first}, {f}] == 0:", turn),
        w.update(scope, f"flags[{first}, {f}]"),
    ]


@makes(1.5, ANY, polled)
def chain(w, scope):
    """Each waits for the one before, in other blocks too."""
    f = column(w)
    if f is None:
        return None
    s = w.name("s")
    scope.numbers.append(s)
    return [
        Line(f"{s} = 5"),
        Line("if g > 0:", [
            Line(f"while flags[g - 1, {f}] == 0:", [Line("pass")]),
            Line(f"{s} = flags[g - 1, {f}]"),
        ]),
        Line("cuda.threadfence()"),
        Line(f"flags[g, {f}] = ({s} + v) % 1009 + 1"),
    ]  # fmt: skip


@makes(1, ANY, polled)
def lock(w, scope):
    f = column(w)
    if f is None or w.slots["int64"] == SLOTS:
        return None
    slot = w.slots["int64"]
    w.slots["int64"] += 1
    return [
        Line(f"while cuda.atomic.cas(flags, (0, {f}), 0, 1) != 0:", [Line("pass")]),
        Line("cuda.threadfence()"),
        Line(f"c_int64[{slot}] += ({w.number(scope)}) & 63"),
        Line("cuda.threadfence()"),
        Line(f"cuda.atomic.exch(flags, (0, {f}), 0)"),
    ]
