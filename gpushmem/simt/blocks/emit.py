"""Common to the two functions that are made of a kernel: names, places, the beginning.

A thread's values are kept in the block's frame from one piece of code to the next.
"""

from __future__ import annotations

import re
from functools import cache

import llvmlite.binding as llvm

from gpushmem.artifacts.gpu_limits import MAX_THREADS
from gpushmem.native.structs import offset
from gpushmem.simt.base.layout import BLOCK, CODE_BYTES, EXITED, FIBER, FRAME_ALIGN, THREAD
from gpushmem.simt.base.llvm_contexts import new_context
from gpushmem.simt.blocks.llvm_code import EXIT, Inst, callee_of, substituted
from gpushmem.simt.blocks.uniformity import Analysis
from gpushmem.simt.compiler.cached_functions import BARRIER
from gpushmem.simt.compiler.target import Unfit, simt_target

__all__ = ["LEAST", "Emitter", "Frame", "alloca_bytes", "resume_codes", "size_of"]

LEAST = 16


@cache
def size_of(kind: str) -> int:
    """Bytes of an LLVM type, given as text."""
    if kind.startswith("<"):
        raise Unfit("a vector is alive across a wait")
    module = llvm.parse_assembly(f"@x = external global {kind}", new_context())
    target = simt_target.target_context.target_data
    return int(target.get_abi_size(module.get_global_variable("x").global_value_type))


class Frame:
    """Places, one after the other, behind the codes; each has an element for each thread.

    A place begins at its offset times the number of threads, rounded up to a multiple of LEAST: so
    all are aligned to that, and have room for as many elements. For a larger alignment the offset
    is a multiple of so many LEASTs, and an element's size one of the alignment.
    """

    def __init__(self) -> None:
        self.offsets: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        self.bytes = CODE_BYTES

    def place(self, name: str, size: int, align: int) -> int:
        """The offset of a value's place, per thread."""
        if name not in self.offsets:
            if align > FRAME_ALIGN:
                raise Unfit(f"a local array is aligned to more than {FRAME_ALIGN} bytes")
            unit = max(1, align // LEAST)
            self.bytes = -(-self.bytes // unit) * unit
            self.offsets[name] = self.bytes
            self.sizes[name] = size
            self.bytes += size
        return self.offsets[name]


# --- writing


def resume_codes(analysis: Analysis) -> dict[str, int]:
    """The labels at which a thread may go on alone, or join the others: their codes."""
    labels = [analysis.function.entry]
    for label in analysis.deciders:
        labels += [*analysis.flow.follows[label], analysis.flow.post_dominator[label]]
    for label in analysis.cuts:
        labels += [label, analysis.function.blocks[label].cut.follows]
    known = dict.fromkeys(label for label in labels if label != EXIT)
    return {label: 2 * (k + 1) for k, label in enumerate(known)} | {EXIT: EXITED}


class Emitter:
    """Writes one function."""

    def __init__(
        self, analysis: Analysis, frame: Frame, codes: dict[str, int], suffix: str, row: bool
    ) -> None:
        self.row = row  # whether blocks are one row of threads
        self.analysis, self.frame, self.codes = analysis, frame, codes
        self.function, self.flow = analysis.function, analysis.flow
        self.blocks = self.function.blocks
        self.lines: list[str] = []
        self.start: list[str] = []  # of the function
        self.places: dict[str, str] = {}  # value -> the address of its place
        self.homes: dict[str, str] = {}  # ... -> the variable that has it, for the optimiser
        self.count = 0
        self.vectors = 0  # loops over threads that are taken several at a time
        self.saves = False  # whether a loop is one over neighbours, or leaves threads out
        (self.memory, _), (self.thread, _), *_ = self.function.args
        self.suffix = suffix

    # --- text

    def put(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def label(self, name: str) -> None:
        self.lines.append(f"{name[1:]}:")

    def fresh(self, hint: str = "v") -> str:
        self.count += 1
        return f"%{hint}.{self.suffix}{self.count}"

    def head(self) -> str:
        """The first line, with the function's new name."""
        head = re.sub(r"^define [^@]*?(\w+) @", r"define weak_odr \1 @", self.function.head)
        return re.sub(
            r'@("?)([^"(]*)("?)\(', lambda m: f"@{m[1]}{m[2]}.{self.suffix}{m[3]}(", head, count=1
        )

    def text(self, first: str) -> str:
        """The function as text; its code begins at `first`."""
        return "\n".join(
            [self.head(), "simt.start:", *self.start, f"  br label {first}", *self.lines, "}", ""]
        )

    def count_threads(self) -> None:
        """Load what is asked for everywhere: the block's extents, and how many threads it has."""
        self.extents = ["1", "1", "1"]
        for axis, name in enumerate("x" if self.row else "xyz"):
            field = offset(THREAD, "bdim") + 4 * axis
            self.start += [
                f"  %simt.at.b{name} = getelementptr i8, ptr {self.thread}, i64 {field}",
                f"  %simt.b{name}.32 = load i32, ptr %simt.at.b{name}",
                f"  %simt.b{name}.low = icmp sge i32 %simt.b{name}.32, 1",
                f"  call void @llvm.assume(i1 %simt.b{name}.low)",
                f"  %simt.b{name}.high = icmp sle i32 %simt.b{name}.32, {MAX_THREADS}",
                f"  call void @llvm.assume(i1 %simt.b{name}.high)",
                f"  %simt.b{name} = zext i32 %simt.b{name}.32 to i64",
            ]
            self.extents[axis] = f"%simt.b{name}"
        self.start += [
            f"  %simt.byz = mul nuw nsw i64 {self.extents[1]}, {self.extents[2]}",
            "  %simt.threads = mul nuw nsw i64 %simt.byz, %simt.bx",
            f"  %simt.more = add nuw nsw i64 %simt.threads, {LEAST - 1}",
            f"  %simt.pad = and i64 %simt.more, -{LEAST}",
            f"  %simt.at.fiber = getelementptr i8, ptr {self.thread}, "
            f"i64 {offset(THREAD, 'fiber')}",
            "  %simt.fiber.64 = load i64, ptr %simt.at.fiber",
            "  %simt.fiber = inttoptr i64 %simt.fiber.64 to ptr",
            f"  %simt.at.block = getelementptr i8, ptr %simt.fiber, i64 {offset(FIBER, 'block')}",
            "  %simt.block.64 = load i64, ptr %simt.at.block",
            "  %simt.block = inttoptr i64 %simt.block.64 to ptr",
            "  %simt.together = getelementptr i8, ptr %simt.fiber, "
            f"i64 {offset(FIBER, 'together')}",
            f"  %simt.stop = getelementptr i8, ptr %simt.block, i64 {offset(BLOCK, 'stop')}",
        ]

    def home(self, name: str) -> str:
        """The variable that a value is kept in."""
        if name not in self.homes:
            self.homes[name] = f"%simt.home{len(self.homes)}"
            self.start.append(f"  {self.homes[name]} = alloca {self.analysis.defs[name].type}")
        return self.homes[name]

    # --- places of each thread

    def place_of(self, name: str) -> str:
        """The address of the places of a value."""
        if name not in self.analysis.defs:
            return self.area(name, 8)  # an argument of a call of all
        size, align = self.size(name)
        return self.area(name, -(-size // align) * align, align)

    def common(self, name: str) -> str:
        """The address of the one place of what all threads have in common when they part."""
        size, align = self.size(name)
        return self.area(f"{name}.common", -(-size // LEAST), align)

    def size(self, name: str) -> tuple[int, int]:
        """Bytes of a value, or of an alloca's memory, and what its address is a multiple of."""
        inst = self.analysis.defs[name]
        if inst.op != "alloca":
            return size_of(inst.type), 1
        found = re.search(r", align (\d+)$", inst.text)
        return alloca_bytes(inst), int(found[1]) if found else LEAST

    def flags(self) -> str:
        """The address of a byte for each thread: whether it has yet to take what is in common."""
        return self.area("%simt.flags", 1)

    def area(self, name: str, size: int, align: int = 1) -> str:
        """The address of an area with so many bytes for each thread."""
        if name not in self.places:
            at, k = self.frame.place(name, size, align), len(self.places)
            self.start += [
                f"  %simt.off{k} = mul nuw nsw i64 %simt.pad, {at}",
                f"  %simt.place{k} = getelementptr inbounds i8, ptr {self.memory}, "
                f"i64 %simt.off{k}",
            ]
            self.places[name] = f"%simt.place{k}"
        return self.places[name]

    def address(self, name: str, lane: str) -> str:
        """The address of a thread's own place of a value."""
        base, at = self.place_of(name), self.fresh("at")
        size = self.frame.sizes[name]
        self.put(f"{at} = getelementptr inbounds [{size} x i8], ptr {base}, i64 {lane}")
        return at

    def load_place(self, name: str, lane: str) -> str:
        value, at = self.fresh("l"), self.address(name, lane)
        self.put(f"{value} = load {self.analysis.defs[name].type}, ptr {at}")
        return value

    def store_place(self, name: str, value: str, lane: str) -> None:
        at = self.address(name, lane)
        self.put(f"store {self.analysis.defs[name].type} {value}, ptr {at}")

    def store_code(self, code: str, lane: str) -> None:
        at = self.fresh("at")
        self.put(f"{at} = getelementptr inbounds i64, ptr {self.memory}, i64 {lane}")
        self.put(f"store i64 {code}, ptr {at}")

    def shared_memory(self) -> list[str]:
        """The memory that the block's threads share while they are in step."""
        return sorted(self.analysis.allocas - self.analysis.per_lane)

    def copy_content(self, name: str, source: str, target: str) -> None:
        """Copy what is in such memory; a thread's own may be anywhere, so nothing is aligned."""
        kind, value = f"i{8 * alloca_bytes(self.analysis.defs[name])}", self.fresh("m")
        self.put(f"{value} = load {kind}, ptr {source}, align 1")
        self.put(f"store {kind} {value}, ptr {target}, align 1")

    # --- instructions

    def rename(self, inst: Inst, meaning: dict[str, str]) -> str:
        """Write an instruction with its names as they are here; returns its result's."""
        result = ""
        if inst.name:
            result = self.fresh("r")
            meaning = meaning | {inst.name: result}
        self.put(substituted(inst.text, meaning))
        return result

    def is_parking(self, label: str) -> bool:
        cut = self.blocks[label].cut
        return cut is not None and cut.how == BARRIER


def alloca_bytes(inst: Inst) -> int:
    """Bytes that an alloca takes."""
    found = re.search(r"alloca (?:inalloca )?(.+?)(?:, (i\d+) (\d+))?(?:, align \d+)?$", inst.text)
    assert found is not None
    count = int(found[3]) if found[3] else 1
    return size_of(found[1]) * count


def takes_thread(inst: Inst, thread: str) -> bool:
    """Whether a call gets the THREAD, and may read the thread's index there."""
    return inst.op == "call" and thread in inst.uses and not callee_of(inst).startswith("llvm.")


def renamed_phi(inst: Inst, name: str, incoming: list[tuple[str, str]]) -> str:
    """A phi with these values and labels."""
    kind = inst.text.split(" = phi ", 1)[1].split(" [ ")[0]
    return f"{name} = phi {kind} " + ", ".join(f"[ {v}, {b} ]" for v, b in incoming)
