"""Instructions for the lanes of a vector: see `vectors`, which writes groups with them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from gpushmem.simt.blocks.emit import size_of, takes_thread
from gpushmem.simt.blocks.group import Group
from gpushmem.simt.blocks.lane_shapes import UNIFORM, VECTOR, Shape, Shapes, check_type, parsed
from gpushmem.simt.blocks.llvm_code import Inst, callee_of, substituted
from gpushmem.simt.compiler.symbols import OWN
from gpushmem.simt.compiler.target import Unfit

__all__ = ["FULL", "MASK", "NONE", "WIDTH", "Wide", "wide"]

WIDTH = 8
MOST_SERIAL = 480  # instructions that are written for lanes one by one
FULL, NONE = "splat (i1 true)", "zeroinitializer"
MASK = f"<{WIDTH} x i1>"
BITS = f"i{WIDTH}"
SMALL = ("i8", "i16", "half", "bfloat")  # of which masked accesses are slow
_constant = re.compile(r"-?\d|0x|true$|false$|null$|poison$|undef$|zeroinitializer$")
SUFFIXES = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16", "ptr": "p0"}


class Wide:
    """Writes what the lanes that are on (`mask`) do together, or one after the other."""

    known: dict[str, tuple[Shape, str]]  # value -> its name: of a vector, or the first lane's
    mask: str
    where: tuple[str, str, str]  # the index of the first lane's thread, x, y and z
    lane: str  # its number in the block
    bail: str  # the label where all lanes start over, one by one
    bails: bool  # whether there is a way there

    def __init__(self, to: Any, group: Group, used: list[str]) -> None:
        self.to, self.group, self.used = to, group, used
        self.shapes = Shapes(to, group)
        self.members = {id(inst) for inst in self.shapes.insts}

    def put(self, text: str, hint: str = "v") -> str:
        """Write an instruction; returns the name of its result."""
        name = self.to.fresh(hint)
        self.to.put(f"{name} = {text}")
        return str(name)

    # --- values

    def _have_at_hand(self) -> None:
        """Load or compute what the group uses of others."""
        to, analysis = self.to, self.to.analysis
        own = self.shapes.home
        lanes = [i.name for i in self.shapes.insts if i.name in analysis.lane_loads]
        for name in dict.fromkeys([*lanes, *self.used]):
            if name in self.known or name == to.thread or name not in analysis.defs:
                continue
            if name in analysis.lane_loads:
                self._index(name)
            elif name in own:
                continue
            elif name in analysis.recipes:
                self.shapes.outside(name)
                for step in analysis.recipes[name]:
                    if step.name in analysis.lane_loads:
                        self._index(step.name or "")
                    elif step.name not in self.known:
                        self._inst(step)
            elif name in analysis.per_lane:
                self.known[name] = self.shapes.outside(name), to.address(name, self.lane)
            elif to.is_uniform(name):
                self.known[name] = UNIFORM, to.uniform(name)
            else:
                self.known[name] = VECTOR, self._load_place(name)

    def _index(self, name: str) -> None:
        axis = self.to.analysis.lane_loads[name]
        if name not in self.known:
            index = self.where[axis]
            if index.startswith("%"):
                index = self.put(f"trunc nuw nsw i64 {index} to i32", "t")
            self.known[name] = self.shapes.outside(name), index

    def _load_place(self, name: str) -> str:
        kind, at = self.to.analysis.defs[name].type, self.to.address(name, self.lane)
        check_type(kind)
        if kind == "i1":
            bytes_ = self.put(f"load <{WIDTH} x i8>, ptr {at}, align 1")
            return self.put(f"trunc <{WIDTH} x i8> {bytes_} to {MASK}")
        return self.put(f"load {wide(kind)}, ptr {at}, align {size_of(kind)}")

    def _store_place(self, inst: Inst, value: str) -> None:
        """Store the lanes' values of an instruction to their places, of those that are on."""
        at, kind = self.to.address(inst.name, self.lane), inst.type
        check_type(kind)
        if kind == "i1":
            kind, value = "i8", self.put(f"zext {MASK} {value} to <{WIDTH} x i8>")
        self._store_row(kind, value, at, str(size_of(kind)))

    def get(self, value: str) -> tuple[Shape, str]:
        """The shape of a value here, and its name: a vector's, or that of the first lane's."""
        if value in self.known:
            return self.known[value]
        if value.startswith("%") and value in self.to.analysis.defs:
            if value in self.to.analysis.allocas or self.to.is_uniform(value):
                return UNIFORM, self.to.uniform(value)
            raise Unfit(f"{value} is not at hand")
        return UNIFORM, value

    def scalar(self, value: str) -> str:
        return self.get(value)[1]

    def vector(self, value: str, kind: str) -> str:
        """A value in all lanes."""
        return self.as_vector(*self.get(value), kind)

    def as_vector(self, shape: Shape, text: str, kind: str) -> str:
        if shape.step is None:
            return text
        if shape.step == 0:
            return self.splat(text, kind)
        steps = self.steps(shape.step, "i64" if kind == "ptr" else kind)
        if kind == "ptr":
            return self.put(f"getelementptr i8, ptr {text}, <{WIDTH} x i64> {steps}")
        return self.put(f"add {wide(kind)} {self.splat(text, kind)}, {steps}")

    def steps(self, step: int, kind: str) -> str:
        return "<" + ", ".join(f"{kind} {k * step}" for k in range(WIDTH)) + ">"

    def splat(self, text: str, kind: str) -> str:
        if text in ("poison", "undef", "zeroinitializer"):
            return text
        if _constant.match(text):
            return f"splat ({kind} {text})"
        first = self.put(f"insertelement {wide(kind)} poison, {kind} {text}, i64 0")
        zeros = f"<{WIDTH} x i32> zeroinitializer"
        return self.put(f"shufflevector {wide(kind)} {first}, {wide(kind)} poison, {zeros}")

    def in_lane(self, value: str, kind: str, k: int) -> str:
        shape, text = self.get(value)
        if shape.step is None:
            return self.put(f"extractelement {wide(kind)} {text}, i64 {k}")
        if not shape.step or not k:
            return text
        if kind == "ptr":
            return self.put(f"getelementptr i8, ptr {text}, i64 {k * shape.step}")
        return self.put(f"add {kind} {text}, {k * shape.step}")

    # --- masks

    def any(self, mask: str) -> str:
        return self.put(f"call i1 @llvm.vector.reduce.or.v{WIDTH}i1({MASK} {mask})", "any")

    def all(self, mask: str) -> str:
        return self.put(f"call i1 @llvm.vector.reduce.and.v{WIDTH}i1({MASK} {mask})", "all")

    def both(self, mask: str, condition: str) -> str:
        """The lanes of a mask in which a condition holds; it may be poison in others."""
        if mask == FULL:
            return condition
        return self.put(f"select {MASK} {mask}, {MASK} {condition}, {MASK} {NONE}", "mask")

    def either(self, masks: list[str]) -> str:
        masks = [m for m in dict.fromkeys(masks) if m != NONE]
        if FULL in masks:
            return FULL
        found = masks[0] if masks else NONE
        for mask in masks[1:]:
            found = self.put(f"or {MASK} {found}, {mask}", "mask")
        return found

    def bail_if(self, condition: str) -> None:
        """Let the lanes start over one by one if a condition holds."""
        after = self.to.fresh("well")
        self.to.put(f"br i1 {condition}, label {self.bail}, label {after}")
        self.to.mark(after)
        self.bails = True

    # --- instructions

    def _insts(self, insts: list[Inst]) -> None:
        k = 0
        while k < len(insts):
            inst = insts[k]
            if self.shapes.is_serial(inst):
                end = self._serial_end(insts, k)
                self._serial(insts[k:end])
                k = end
            else:
                if inst.name not in self.to.analysis.lane_loads:
                    self._inst(inst)
                    self._keep(inst)
                k += 1

    def _keep(self, inst: Inst) -> None:
        """Store the lanes' values, if others than this group use them."""
        if inst.name is None or inst.name in self.to.analysis.recipes:
            return
        if any(id(u) not in self.members for u in self.to.users(inst)):
            self._store_place(inst, self.vector(inst.name, inst.type))

    def _inst(self, inst: Inst) -> None:
        """Write an instruction for all lanes."""
        what, name = parsed(inst.text), inst.name or ""
        if inst.op == "store":
            self._store(inst)
            return
        shape = self.shapes.of[name]
        if shape.step == 0 and self.shapes.is_wrap(inst):
            self._wrap(inst)
        elif shape.step == 0:
            meaning = {n: self.scalar(n) for n in inst.uses if n != self.to.thread}
            meaning[name] = result = self.to.fresh("r")
            self.to.put(substituted(inst.text, meaning))
            self.known[name] = shape, result
        elif shape.step is not None:
            self.known[name] = shape, self._first_lane(inst)
        elif inst.op == "load":
            self.known[name] = VECTOR, self._load(inst)
        else:
            self.known[name] = VECTOR, self._wide(what)

    def _wrap(self, inst: Inst) -> None:
        """Numba's question whether an index is negative: no, or the lanes start over."""
        (kind, left), (_, right) = parsed(inst.text).operands
        if self.mask == FULL:
            self.bail_if(self.put(f"icmp slt {kind} {self.scalar(left)}, {right}"))
        else:
            least = self.put(f"icmp slt {kind} {self.scalar(left)}, {right}")
            ask, after = self.to.fresh("ask"), self.to.fresh("well")
            self.to.put(f"br i1 {least}, label {ask}, label {after}")
            self.to.mark(ask)
            each = self.put(
                f"icmp slt {wide(kind)} {self.vector(left, kind)}, splat ({kind} {right})"
            )
            some = self.any(self.both(self.mask, each))
            self.to.put(f"br i1 {some}, label {self.bail}, label {after}")
            self.to.mark(after)
            self.bails = True
        self.known[inst.name or ""] = UNIFORM, "false"

    def _first_lane(self, inst: Inst) -> str:
        """An instruction whose result grows from lane to lane: of the first lane, which may be off.

        So nothing is promised of what it computes.
        """
        what = parsed(inst.text)
        values = [self.scalar(value) for _, value in what.operands]
        kinds = [kind for kind, _ in what.operands]
        if inst.op == "freeze":
            return values[0]
        if inst.op in ("zext", "sext"):
            # Not below 0, says LLVM of a signed number, but the first lane's may be if it is off.
            source = self.get(what.operands[0][1])[0]
            op = "zext" if inst.op == "zext" and source.unsigned else "sext"
            return self.put(f"{op} {kinds[0]} {values[0]} to {what.extra}")
        if inst.op in ("trunc", "inttoptr", "ptrtoint"):
            return self.put(f"{inst.op} {kinds[0]} {values[0]} to {what.extra}")
        pairs = [f"{kind} {value}" for kind, value in zip(kinds, values, strict=True)]
        if inst.op == "select":
            return self.put("select " + ", ".join(pairs))
        if inst.op == "getelementptr":
            return self.put(f"getelementptr {what.extra.split('|')[0]}, " + ", ".join(pairs))
        op = "add" if inst.op == "or" else inst.op
        return self.put(f"{op} {kinds[0]} {values[0]}, {values[1]}")

    def _wide(self, what: Any) -> str:
        """An instruction on vectors."""
        op, kinds = what.op, [kind for kind, _ in what.operands]
        if op == "call":
            return self._intrinsic(what)
        if op == "getelementptr":
            parts = []
            for kind, value in what.operands:
                if self.get(value)[0].step == 0:
                    parts.append(f"{kind} {self.scalar(value)}")
                else:
                    parts.append(f"{wide(kind)} {self.vector(value, kind)}")
            found = self.put(f"{op} {what.flags}{what.extra.split('|')[0]}, " + ", ".join(parts))
            return found if any(part[0] == "<" for part in parts) else self.splat(found, "ptr")
        if op == "select" and self.get(what.operands[0][1])[0].step == 0:
            one, other = (self.vector(v, k) for k, v in what.operands[1:])
            kind = wide(kinds[1])
            condition = self.scalar(what.operands[0][1])
            return self.put(f"select {what.flags}i1 {condition}, {kind} {one}, {kind} {other}")
        values = [self.vector(value, kind) for kind, value in what.operands]
        if op in ("sdiv", "udiv", "srem", "urem") and self.mask != FULL:
            one = f"splat ({kinds[0]} 1)"
            kind = wide(kinds[0])
            values[1] = self.put(f"select {MASK} {self.mask}, {kind} {values[1]}, {kind} {one}")
        if op in ("icmp", "fcmp"):
            flags = what.flags if op == "fcmp" else ""
            return self.put(f"{op} {flags}{what.extra} {wide(kinds[0])} {values[0]}, {values[1]}")
        if op == "select":
            pairs = [f"{wide(k)} {v}" for k, v in zip(kinds, values, strict=True)]
            return self.put(f"select {what.flags}" + ", ".join(pairs))
        if len(values) == 2:
            return self.put(f"{op} {what.flags}{wide(kinds[0])} {values[0]}, {values[1]}")
        if op in ("fneg", "freeze"):
            return self.put(f"{op} {what.flags}{wide(kinds[0])} {values[0]}")
        return self.put(f"{op} {what.flags}{wide(kinds[0])} {values[0]} to {wide(what.extra)}")

    def _intrinsic(self, what: Any) -> str:
        base, *suffixes = re.split(r"\.(?=(?:i\d+|f\d+|bf16|p0)(?:\.|$))", what.extra)
        first = suffixes[0] if suffixes else ""
        result = {v: k for k, v in SUFFIXES.items()}.get(first, first)
        scalars = {
            "llvm.powi": 1,
            "llvm.ctlz": 1,
            "llvm.cttz": 1,
            "llvm.abs": 1,
            "llvm.is.fpclass": 1,
        }
        parts = []
        for k, (kind, value) in enumerate(what.operands):
            if scalars.get(base) == k:
                if self.get(value)[0].step != 0:
                    raise Unfit(f"{base} with an argument that varies")
                parts.append(f"{kind} {self.scalar(value)}")
            else:
                parts.append(f"{wide(kind)} {self.vector(value, kind)}")
        if base == "llvm.is.fpclass":
            result = "i1"
        if base.startswith("llvm.fpto"):
            named = f"{base}.v{WIDTH}{suffixes[0]}.v{WIDTH}{suffixes[1]}"
        elif base == "llvm.powi":
            named = f"{base}.v{WIDTH}{suffixes[0]}.{suffixes[1]}"
        elif len(suffixes) == 1:
            named = f"{base}.v{WIDTH}{first}"
        else:
            raise Unfit(f"{what.extra} on vectors")
        return self.put(f"call {what.flags}{wide(result)} @{named}(" + ", ".join(parts) + ")")

    # --- memory

    def _load(self, inst: Inst) -> str:
        what = parsed(inst.text)
        kind, _, align = what.extra.partition("|")
        shape, text = self.get(what.operands[0][1])
        size = size_of(kind)
        align = align or str(size)
        if kind == "i1":
            raise Unfit("a load of i1")
        if shape.step == size:
            return self._load_row(kind, text, align)
        pointers = self.vector(what.operands[0][1], "ptr")
        if shape.step is not None:
            return self._gather(kind, pointers, align)
        row, base = self._in_row(pointers, size)
        return self._one_or_other(
            row,
            lambda: self._load_row(kind, base, align),
            lambda: self._gather(kind, pointers, align),
            wide(kind),
        )

    def _in_row(self, pointers: str, size: int) -> tuple[str, str]:
        """Whether the lanes that are on use neighbouring elements; where the first lane's is."""
        words = f"<{WIDTH} x i64>"
        numbers = self.put(f"ptrtoint <{WIDTH} x ptr> {pointers} to {words}")
        middle = self.put(f"extractelement {words} {numbers}, i64 {WIDTH // 2}")
        middle = self.put(f"freeze i64 {middle}")
        first = self.put(f"sub i64 {middle}, {WIDTH // 2 * size}")
        expected = self.put(f"add {words} {self.splat(first, 'i64')}, {self.steps(size, 'i64')}")
        same = self.put(f"icmp eq {words} {numbers}, {expected}")
        if self.mask != FULL:
            same = self.put(f"select {MASK} {self.mask}, {MASK} {same}, {MASK} {FULL}")
        return self.all(same), self.put(f"inttoptr i64 {first} to ptr")

    def _load_row(self, kind: str, at: str, align: str) -> str:
        plain = f"load {wide(kind)}, ptr {at}, align {align}"
        if self.mask == FULL:
            return self.put(plain)
        masked = (  # as LLVM 20 writes it; LLVM 22 has the alignment at the pointer, and reads both
            f"call {wide(kind)} @llvm.masked.load.{suffix(kind)}.p0"
            f"(ptr {at}, i32 {align}, {MASK} {self.mask}, {wide(kind)} poison)"
        )
        if kind not in SMALL:
            return self.put(masked)
        whole = self.all(self.mask)
        return self._one_or_other(
            whole, lambda: self.put(plain), lambda: self.put(masked), wide(kind)
        )

    def _one_or_other(
        self, condition: str, one: Callable[[], Any], other: Callable[[], Any], kind: str = ""
    ) -> str:
        """Write two ways to do something, of which a condition chooses; returns its result."""
        labels, join = (self.to.fresh("one"), self.to.fresh("other")), self.to.fresh("join")
        self.to.put(f"br i1 {condition}, label {labels[0]}, label {labels[1]}")
        ways = []
        for label, write in zip(labels, (one, other), strict=True):
            self.to.mark(label)
            ways.append(f"[ {write()}, {self.to.current} ]")
            self.to.put(f"br label {join}")
        self.to.mark(join)
        return self.put(f"phi {kind} " + ", ".join(ways)) if kind else ""

    def _gather(self, kind: str, pointers: str, align: str) -> str:
        return self.put(
            f"call {wide(kind)} @llvm.masked.gather.{suffix(kind)}.v{WIDTH}p0"
            f"(<{WIDTH} x ptr> {pointers}, i32 {align}, {MASK} {self.mask}, {wide(kind)} poison)"
        )

    def _store(self, inst: Inst) -> None:
        what = parsed(inst.text)
        (kind, value), (_, pointer) = what.operands
        shape, at = self.get(pointer)
        size = size_of(kind)
        align = what.extra or str(size)
        if kind == "i1":
            raise Unfit("a store of i1")
        if shape.step == 0:
            self.to.put(f"store {kind} {self._last(value, kind)}, ptr {at}, align {align}")
            return
        values = self.vector(value, kind)
        if shape.step == size:
            self._store_row(kind, values, at, align)
            return
        pointers = self.vector(pointer, "ptr")
        if shape.step is not None:
            self._scatter(kind, values, pointers, align)
            return
        row, base = self._in_row(pointers, size)
        self._one_or_other(
            row,
            lambda: self._store_row(kind, values, base, align),
            lambda: self._scatter(kind, values, pointers, align),
        )

    def _store_row(self, kind: str, values: str, at: str, align: str) -> None:
        plain = f"store {wide(kind)} {values}, ptr {at}, align {align}"
        if self.mask == FULL:
            self.to.put(plain)
            return
        masked = (
            f"call void @llvm.masked.store.{suffix(kind)}.p0"
            f"({wide(kind)} {values}, ptr {at}, i32 {align}, {MASK} {self.mask})"
        )
        put = self.to.put
        self._one_or_other(self.all(self.mask), lambda: put(plain), lambda: put(masked))

    def _scatter(self, kind: str, values: str, pointers: str, align: str) -> None:
        self.to.put(
            f"call void @llvm.masked.scatter.{suffix(kind)}.v{WIDTH}p0"
            f"({wide(kind)} {values}, <{WIDTH} x ptr> {pointers}, i32 {align}, {MASK} {self.mask})"
        )

    def _last(self, value: str, kind: str) -> str:
        """The value of the last lane that is on: it writes last."""
        shape, text = self.get(value)
        if shape.step == 0:
            return text
        if self.mask == FULL:
            return self.in_lane(value, kind, WIDTH - 1)
        bits = self.put(f"bitcast {MASK} {self.mask} to {BITS}")
        above = self.put(f"call {BITS} @llvm.ctlz.{BITS}({BITS} {bits}, i1 true)")
        lane = self.put(f"sub {BITS} {WIDTH - 1}, {above}")
        return self.put(f"extractelement {wide(kind)} {self.vector(value, kind)}, {BITS} {lane}")

    # --- one lane after the other

    def _serial_end(self, insts: list[Inst], start: int) -> int:
        """Where what lanes do one by one ends: a change of shared memory is one piece."""
        end, own = start, set()
        for k in range(start, len(insts)):
            inst = insts[k]
            if self.shapes.is_serial(inst):
                end = k
                if inst.op == "call" and callee_of(inst) == OWN:
                    own.add(inst.name)
            elif inst.op in ("store", "load") and own & set(inst.uses):
                end = k
        return end + 1

    def _serial(self, run: list[Inst]) -> None:
        """Write instructions once for each lane."""
        to = self.to
        if len(run) * WIDTH > MOST_SERIAL:
            raise Unfit("too much is done lane by lane")
        inside, names = {id(i) for i in run}, {i.name for i in run}
        given = [i for i in run if i.name and any(id(u) not in inside for u in to.users(i))]
        for inst in given:
            check_type(inst.type)
            if not self.shapes.is_serial(inst) and self.shapes.of[inst.name or ""].step is not None:
                raise Unfit("what lanes do one by one is asked to be the same for all")
        uses = dict.fromkeys(n for i in run for n in i.uses if n in to.analysis.defs)
        used = [n for n in uses if n not in names]

        def lane(k: int) -> dict[str, str]:
            meaning = {n: self.in_lane(n, to.analysis.defs[n].type, k) for n in used}
            for inst in run:
                if takes_thread(inst, to.thread):
                    x = self.put(f"add nuw nsw i64 {self.where[0]}, {k}")
                    to.tell_index(x, *self.where[1:])
                if inst.name:
                    meaning[inst.name] = to.fresh("r")
                to.put(substituted(inst.text, meaning))
            return meaning

        results = self._each_lane(lane, {i.name or "": i.type for i in given})
        for inst in given:
            self.known[inst.name or ""] = VECTOR, results[inst.name or ""]
            self._keep(inst)

    def _each_lane(
        self, write: Callable[[int], dict[str, str]], types: dict[str, str]
    ) -> dict[str, str]:
        """Write something for each lane that is on; returns vectors of some of the values."""
        to = self.to
        results = dict.fromkeys(types, "poison")
        bits = "" if self.mask == FULL else self.put(f"bitcast {MASK} {self.mask} to {BITS}")
        for k in range(WIDTH):
            join, before = to.fresh("join"), to.current
            if bits:
                bit = self.put(f"and {BITS} {bits}, {1 << k if k < WIDTH - 1 else -(1 << k)}")
                on, lane = self.put(f"icmp ne {BITS} {bit}, 0"), to.fresh("lane")
                to.put(f"br i1 {on}, label {lane}, label {join}")
                to.mark(lane)
            values = write(k)
            new = {
                n: self.put(f"insertelement {wide(kind)} {results[n]}, {kind} {values[n]}, i64 {k}")
                for n, kind in types.items()
            }
            if bits:
                came = to.current
                to.put(f"br label {join}")
                to.mark(join)
                new = {
                    n: self.put(
                        f"phi {wide(kind)} [ {results[n]}, {before} ], [ {new[n]}, {came} ]"
                    )
                    for n, kind in types.items()
                }
            results = new
        return results


def wide(kind: str) -> str:
    return f"<{WIDTH} x {kind}>"


def suffix(kind: str) -> str:
    return f"v{WIDTH}{SUFFIXES.get(kind, kind)}"
