"""What a kernel does, by CPython: each thread is a Python generator, which yields where it waits.

The kernel's own source is run; only calls that wait for other threads become `yield`s, and loops
that poll yield in each turn. A program whose result CUDA leaves open is `Rejected`: one with a
race in shared memory, a deadlock, or a number that would overflow.
"""

import ast
import sys
from itertools import product
from types import SimpleNamespace

import numpy as np

from tests.simt.fuzz import language

WARP = 32
MAX_ROUNDS = 20_000


class Rejected(Exception):
    """The program is no test: CUDA does not say what it does."""


# --- the kernel as a generator

BLOCK_WAITS = {"syncthreads", "syncthreads_count", "syncthreads_and", "syncthreads_or"}
WARP_WAITS = {
    "syncwarp", "shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync", "all_sync",
    "any_sync", "eq_sync", "ballot_sync", "match_any_sync", "match_all_sync", "activemask",
}  # fmt: skip
OTHER_WAITS = {"nanosleep", "sync"}


class _Yielding(ast.NodeTransformer):
    def visit_Call(self, node):
        self.generic_visit(node)
        waits = BLOCK_WAITS | WARP_WAITS | OTHER_WAITS
        if isinstance(node.func, ast.Attribute) and node.func.attr in waits:
            return ast.copy_location(ast.Yield(node), node)
        return node

    def visit_While(self, node):
        self.generic_visit(node)
        if all(isinstance(s, ast.Pass) for s in node.body):
            poll = ast.parse("yield ('poll',)").body[0]
            node.body = [ast.copy_location(poll, node)]
        return node


def compiled(source):
    """The function `kernel(cuda, ...)` that the kernel's source stands for."""
    tree = _Yielding().visit(ast.parse(language.FUNCTIONS + source))
    kernel = tree.body[-1]
    kernel.args.args.insert(0, ast.arg("cuda"))
    kernel.body.append(ast.parse("yield").body[0])  # a generator, if nothing else makes it one
    scope = {**language.PYTHON, "cuda": SimpleNamespace(jit=lambda device: lambda f: f)}
    exec(compile(ast.fix_missing_locations(tree), "<reference>", "exec"), scope)
    return scope["kernel"]


# --- memory

ATOMICALLY = -1  # who accesses, if it is an atomic operation


class Shared:
    """A view of shared memory; two threads may not meet in a cell between barriers."""

    def __init__(self, memory, cells):
        self.memory, self.cells = memory, cells
        self.shape, self.dtype = cells.shape, memory.values.dtype

    def __getitem__(self, index):
        cells = self.cells[index]
        if isinstance(cells, np.ndarray):
            return Shared(self.memory, cells)
        self.memory.note(cells, writes=False)
        return self.memory.values[cells]

    def __setitem__(self, index, value):
        self.memory.note(self.cells[index], writes=True)
        self.memory.values[self.cells[index]] = value

    def __len__(self):
        return len(self.cells)

    def __iter__(self):
        return (self[k] for k in range(len(self)))

    def reshape(self, *shape):
        return Shared(self.memory, self.cells.reshape(*shape))


def filled(shape, dtype, byte):
    """An array of which all bytes are `byte`: what is there before anything is written."""
    array = np.zeros(shape, dtype)
    array.view(np.uint8)[...] = byte
    return array


class Memory:
    """The cells of one shared array, and who used them since the last barrier."""

    def __init__(self, block, shape, dtype):
        self.block = block
        self.values = filled(shape, dtype, block.fill).reshape(-1)
        self.view = Shared(self, np.arange(self.values.size).reshape(shape))
        self.epoch, self.used, self.written = 0, {}, set()

    def note(self, cell, writes, who=None):
        if (not writes or who == ATOMICALLY) and cell not in self.written:
            raise Rejected("it reads shared memory that nobody has written")
        self.written.add(cell)
        if self.epoch != self.block.epoch:
            self.epoch, self.used = self.block.epoch, {}
        who = self.block.running if who is None else who
        for other, wrote in self.used.get(cell, ()):
            if other != who and (writes or wrote):
                raise Rejected(f"a race in shared memory, line {sys._getframe(2).f_lineno}")
        self.used.setdefault(cell, set()).add((who, writes))


# --- atomic operations

# name -> what is stored, of (old, value)
CHANGES = {
    "add": lambda old, value: old + value, "sub": lambda old, value: old - value,
    "max": max, "min": min, "nanmax": max, "nanmin": min,
    "and_": lambda old, value: old & value, "or_": lambda old, value: old | value,
    "xor": lambda old, value: old ^ value, "exch": lambda old, value: value,
    "inc": lambda old, value: 0 if old >= value else old + 1,
    "dec": lambda old, value: value if old == 0 or old > value else old - 1,
}  # fmt: skip


def update(array, index, new):
    """Change an element; returns what was there."""
    if isinstance(array, Shared):
        cell = array.cells[index]
        array.memory.note(cell, writes=True, who=ATOMICALLY)
        array, index = array.memory.values, cell
    old = array[index].item()
    value = new(old)
    if array.dtype.kind in "iu":
        value = language._whole(array.dtype)(value)
    array[index] = value
    return old


def _cas(array, index, old, value):
    return update(array, index, lambda seen: value if seen == old else seen)


ATOMIC = SimpleNamespace(
    cas=_cas,
    compare_and_swap=lambda array, old, value: _cas(array, 0, old, value),
    **{
        name: lambda array, index, value, f=change: update(array, index, lambda old: f(old, value))
        for name, change in CHANGES.items()
    },
)


# --- what a thread sees as `cuda`


def _asks(kind, name):
    def ask(*args):
        return kind, name, args, sys._getframe(1).f_lineno

    return ask


ASKING = {name: _asks("block", name) for name in BLOCK_WAITS}
ASKING |= {name: _asks("warp", name) for name in WARP_WAITS}
ASKING |= {"nanosleep": lambda ns: ("poll",), "threadfence": lambda: None}
ASKING["cg"] = SimpleNamespace(
    this_grid=lambda: SimpleNamespace(sync=lambda: ("grid", "sync", (), 0))
)


class Thread:
    def __init__(self, kernel, block, tid, lane, grid, args):
        self.block, self.lane = block, lane
        self.local = {}
        (bx, gx), (by, gy) = zip(block.shape, grid, strict=True)
        cuda = SimpleNamespace(
            threadIdx=SimpleNamespace(x=tid[0], y=tid[1]),
            blockIdx=SimpleNamespace(x=block.index[0], y=block.index[1]),
            blockDim=SimpleNamespace(x=bx, y=by),
            gridDim=SimpleNamespace(x=gx, y=gy),
            grid=lambda n: block.index[0] * bx + tid[0],
            gridsize=lambda n: bx * gx,
            laneid=lane % WARP,
            local=SimpleNamespace(array=self._local_array),
            shared=SimpleNamespace(array=block.shared_array),
            atomic=ATOMIC,
            popc=lambda x: int(x).bit_count(),
            **VECTORS,
            **ASKING,
        )
        self.steps = kernel(cuda, *args)
        self.asks = self.answer = None

    def _local_array(self, shape, dtype):
        line = sys._getframe(1).f_lineno
        return self.local.setdefault(line, filled(shape, dtype.dtype, self.block.fill))

    def advance(self):
        """Run to the next wait; False at the end."""
        self.block.running = self.lane
        answer, self.answer, self.asks = self.answer, None, None
        try:
            self.asks = self.steps.send(answer)
        except StopIteration:
            return False
        return self.asks is not None or self.advance()


VECTORS = {
    "float32x2": lambda x, y: language.vector(x=x, y=y),
    "int32x3": lambda x, y, z: language.vector(x=x, y=y, z=z),
    "float64x4": lambda x, y, z, w: language.vector(x=x, y=y, z=z, w=w),
    "uint8x4": lambda x, y, z, w: language.vector(x=x, y=y, z=z, w=w),
}


class Block:
    def __init__(self, index, shape, fill):
        self.index, self.shape, self.epoch, self.running = index, shape, 0, 0
        self.fill = fill
        self.shared, self.threads = {}, []

    def shared_array(self, shape, dtype):
        line = sys._getframe(1).f_lineno
        if line not in self.shared:
            self.shared[line] = Memory(self, shape, dtype.dtype)
        return self.shared[line].view


# --- meeting


def _give(threads, answers):
    for thread, answer in zip(threads, answers, strict=True):
        thread.asks, thread.answer = None, answer
    return True


def meet_block(block):
    threads = block.threads
    if not threads or any(t.asks is None or t.asks[0] != "block" for t in threads):
        return False
    names = {t.asks[1] for t in threads}
    if len(names) > 1:
        raise Rejected("different barriers meet")
    votes = [bool(t.asks[2][0]) if t.asks[2] else False for t in threads]
    result = {
        "syncthreads": None, "syncthreads_count": sum(votes),
        "syncthreads_and": int(all(votes)), "syncthreads_or": int(any(votes)),
    }[names.pop()]  # fmt: skip
    block.epoch += 1
    return _give(threads, [result] * len(threads))


def meet_warp(lanes):
    """`lanes`: the living threads of one warp."""
    moved = False
    for thread in lanes:
        if thread.asks is None or thread.asks[0] != "warp" or thread.asks[1] == "activemask":
            continue
        mask = thread.asks[2][0]
        group = [t for t in lanes if mask >> t.lane % WARP & 1]
        if thread not in group:
            raise Rejected("a lane that is not in its mask")
        same = (thread.asks[1], mask)
        if all(t.asks and t.asks[0] == "warp" and (t.asks[1], t.asks[2][0]) == same for t in group):
            moved |= _give(group, WARP_RESULTS[same[0]](group, [t.asks[2][1:] for t in group]))
    return moved or _active(lanes)


def _active(lanes):
    """A lane gets the lanes that wait with it on its line, when all of its warp wait."""
    asking = [t for t in lanes if t.asks and t.asks[1:2] == ("activemask",)]
    if not asking or any(t.asks is None or t.asks[0] == "poll" for t in lanes):
        return False
    group = [t for t in asking if t.asks[3] == asking[0].asks[3]]
    bits = sum(1 << t.lane % WARP for t in group)
    return _give(group, [bits] * len(group))


def _shuffled(source):
    def results(group, args):
        values = {t.lane % WARP: value for t, (value, _) in zip(group, args, strict=True)}
        for t, (value, argument) in zip(group, args, strict=True):
            yield values.get(source(t.lane % WARP, argument), value)

    return results


def _voted(decide):
    def results(group, args):
        bits = [bool(a[0]) for a in args]
        return [decide(bits, group)] * len(group)

    return results


def _ballot(bits, group):
    """A mask, which numba-cuda gives as an int32."""
    mask = sum(1 << t.lane % WARP for t, bit in zip(group, bits, strict=True) if bit)
    return language.PYTHON["int32"](mask)


def _match_any(group, args):
    return [_ballot([a == b for b in args], group) for a in args]


def _match_all(group, args):
    same = all(a == args[0] for a in args)
    return [(_ballot([same] * len(group), group), same)] * len(group)


WARP_RESULTS = {
    "syncwarp": lambda group, args: [None] * len(group),
    "shfl_sync": _shuffled(lambda lane, k: k % WARP),
    "shfl_up_sync": _shuffled(lambda lane, k: lane - k),
    "shfl_down_sync": _shuffled(lambda lane, k: lane + k),
    "shfl_xor_sync": _shuffled(lambda lane, k: lane ^ k),
    "all_sync": _voted(lambda bits, group: all(bits)),
    "any_sync": _voted(lambda bits, group: any(bits)),
    "eq_sync": _voted(lambda bits, group: len(set(bits)) == 1),
    "ballot_sync": _voted(_ballot),
    "match_any_sync": _match_any,
    "match_all_sync": _match_all,
}


# --- a launch


def run(kernel, grid, block, args, fill):
    """Run a `compiled` kernel; `grid` and `block` are pairs, `fill` is in memory before."""
    blocks = [Block((x, y), block, fill) for y, x in product(range(grid[1]), range(grid[0]))]
    for b in blocks:
        for lane, (y, x) in enumerate(product(range(block[1]), range(block[0]))):
            b.threads.append(Thread(kernel, b, (x, y), lane, grid, args))
    idle = 0
    with np.errstate(all="raise"):
        for _ in range(MAX_ROUNDS):
            if not any(b.threads for b in blocks):
                return
            moved = [_round(b) for b in blocks]
            everyone = [t for b in blocks for t in b.threads]
            if everyone and all(t.asks and t.asks[0] == "grid" for t in everyone):
                for b in blocks:
                    b.epoch += 1
                moved.append(_give(everyone, [None] * len(everyone)))
            idle = 0 if any(moved) else idle + 1
            if idle > 50:  # polling alone changes nothing
                raise Rejected("a deadlock")
    raise Rejected("too long")


def _round(block):
    """Give each thread that can run a turn; whether anybody got anywhere."""
    moved = False
    living = []
    for thread in block.threads:
        polls = thread.asks is not None and thread.asks[0] == "poll"
        if thread.asks is None or polls:
            alive = thread.advance()
            moved |= not (polls and alive and thread.asks[0] == "poll")
            if not alive:
                continue
        living.append(thread)
    block.threads = living
    if meet_block(block):
        return True
    for first in range(0, block.shape[0] * block.shape[1], WARP):
        moved |= meet_warp([t for t in living if first <= t.lane < first + WARP])
    return moved
