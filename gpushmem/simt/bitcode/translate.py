"""From LLVM's text of GPU functions to functions that the engine's kernels can call.

Every function gets the hidden arguments of the calling convention in front of its own: none for the
result, `thread` and `site`. What is NVIDIA's becomes a call of a function with the same arguments,
which `intrinsics` generates: intrinsics of NVVM, inline assembly, calls of the C library of CUDA;
so do loads that are volatile, in which a thread may wait, atomic instructions, and, where accesses
are moved (`observer.moves`), all others to memory. All else stays as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple, NoReturn

from gpushmem.errors import BackendUnavailable
from gpushmem.simt.bitcode.extraction import NAME, NO_METADATA, unquoted

__all__ = ["HIDDEN", "Leaf", "Translation", "translate"]

HIDDEN = "ptr %simt.none, ptr %simt.thread, ptr %simt.site"
LLVMS_OWN = re.compile(r"llvm\.(?!nvvm\.)")
TYPE = r"(?:\{[^}]*\}|<[^>]*>|\[[^\]]*\]|%[\w.$-]+|\w+)"
CALL = re.compile(
    r"(?P<to>%[\w.$-]+ = )?(?:tail |notail |musttail )?call (?P<flags>(?:nnan |ninf |nsz |arcp |"
    r"contract |afn |reassoc |fast )*)(?P<attributes>(?:noundef |zeroext |signext |nonnull |"
    r"noalias |inreg |(?:range|align|dereferenceable|dereferenceable_or_null|nofpclass)\([^)]*\) |"
    r"align \d+ )*)"
    rf"(?P<type>{TYPE})(?: \([^)]*\))? "
    rf"(?:@(?P<name>{NAME})|asm [a-z ]*\"(?P<text>[^\"]*)\", \"(?P<constraints>[^\"]*)\")"
    r"\((?P<args>.*)\)$"
)
DEFINE = re.compile(
    rf"^define (?P<before>[^@]*)@(?P<name>{NAME})\((?P<args>.*)\)(?P<after>[^)]*)\{{$"
)
LOAD = re.compile(
    rf"(?P<to>%[\w.$-]+) = load (?P<volatile>volatile )?(?!atomic )(?P<type>{TYPE}), "
    r"ptr (?P<pointer>.+), align \d+$"
)
STORE = re.compile(
    rf"store (?P<volatile>volatile )?(?!atomic )(?P<type>{TYPE}) (?P<value>.+), "
    r"ptr (?P<pointer>.+), align \d+$"
)
RMW = re.compile(
    rf"(?P<to>%[\w.$-]+) = atomicrmw (?:volatile )?(?P<op>\w+) ptr (?P<pointer>.+), "
    rf"(?P<type>{TYPE}) (?P<value>\S+) (?:syncscope\(\"\w*\"\) )?(?P<order>\w+), align \d+$"
)
CMPXCHG = re.compile(
    r"(?P<to>%[\w.$-]+) = cmpxchg (?:weak )?(?:volatile )?ptr (?P<pointer>.+), "
    rf"(?P<type>{TYPE}) (?P<expected>\S+), {TYPE} (?P<value>\S+) "
    r"(?:syncscope\(\"\w*\"\) )?(?P<order>\w+ \w+), align \d+$"
)
# What no pattern matches must not be one of these.
UNKNOWN = re.compile(
    r"(?:%[\w.$-]+ = )?(?:tail |notail |musttail )?"
    r"(?:call|invoke|callbr|atomicrmw|cmpxchg|fence|load|store|va_arg) "
)
FENCE = re.compile(r"fence (?:syncscope\(\"(?P<scope>\w*)\"\) )?(?P<order>\w+)$")
PLACED = r"getelementptr (?:inbounds )?(?:nuw )?\(i8, ptr @{name}, i64 (\d+)\)"
SMALL = 100  # lines of a function that is inlined where a kernel calls it; those it calls are not
LARGE = 2000  # lines of a function that is not optimised again: it would take seconds
VARIABLE = re.compile(r"@(?!llvm\.)\S+ = [a-z_ ]*\bglobal ")  # in device or shared memory
INVARIANT = "!invariant.load !0"
POINTER = re.compile(r"ptr (%[\w.$-]+)")
RESULT = re.compile(r"(%[\w.$-]+) = (alloca|getelementptr|bitcast) ")


class Leaf(NamedTuple):
    """A function that `intrinsics` generates.

    `what` is the intrinsic's name, the text of the assembly, or one of "load", "store",
    "volatile load", "volatile store", "rmw OP", "cas", "fence", "address of VARIABLE", "printf".
    """

    what: str
    result: str  # LLVM's types
    arguments: tuple[str, ...]
    detail: str = ""  # constraints of assembly, order of an atomic, fields of what is printed

    @property
    def name(self) -> str:
        """Its name in a module: the same for equal leaves."""
        parts = self.what, self.detail, self.result, ",".join(self.arguments)
        return f'"simt.leaf {"|".join(parts)}"'.replace("\\", "/")


class Signature(NamedTuple):
    """A function that kernels can call, by LLVM's types."""

    result: str
    arguments: tuple[str, ...]


@dataclass
class Translation:
    """A module of functions for this machine: LLVM's text of it, and what it calls."""

    text: str
    signature: Signature
    leaves: list[Leaf] = field(default_factory=list)
    local_bytes: int = 0


def translate(
    text: str, root: str, places: frozenset[str], observed: bool, suffix: str
) -> Translation:
    """Translate a module, of which kernels call the function `root`.

    `suffix` is added to the names of functions: another library may have others of these names.
    """
    translator = _Translator(text, root, places, observed, suffix)
    lines = [*translator.lines()]
    leaves = list(translator.leaves)
    declared = [
        f"declare {leaf.result} @{leaf.name}({', '.join([HIDDEN, *leaf.arguments])})"
        for leaf in leaves
    ]
    return Translation(
        "\n".join([*lines, *declared, NO_METADATA]),
        translator.signatures[root], leaves, translator.local_bytes,
    )  # fmt: skip


class _Translator:
    def __init__(
        self, text: str, root: str, places: frozenset[str], observed: bool, suffix: str
    ) -> None:
        self.text, self.root, self.observed, self.suffix = text, root, observed, suffix
        self.places = [(name, re.compile(PLACED.format(name=name))) for name in places]
        self.leaves: dict[Leaf, None] = {}
        self.signatures: dict[str, Signature] = {}
        self.local_bytes = 0
        self.constants = dict(re.findall(rf"^@({NAME}) = .*? c\"(.*)\\00\"", text, re.MULTILINE))

    def lines(self) -> list[str]:
        """The module's lines."""
        made: list[str] = []
        body: list[str] | None = None
        for line in self.text.splitlines():
            if line.startswith("define "):
                body = [line]
            elif line == "}" and body is not None:
                made.extend(self._function(body))
                made.append(line)
                body = None
            elif body is not None:
                body.append(line)
            elif line.startswith("declare "):
                if LLVMS_OWN.match(unquoted(line.partition("@")[2])):
                    made.append(_without_groups(line))
            elif line.startswith("@"):
                if not any(line.startswith(f"@{name} ") for name, _ in self.places):
                    if VARIABLE.match(line):
                        self._refuse(f"variables of a library (`{line}`)")
                    made.append(re.sub(r" = (?:internal|private) ", " = private ", line))
            elif not line.startswith((";", "source_filename", "attributes ", "!")):
                made.append(line)
        return made

    def _function(self, body: list[str]) -> list[str]:
        head = DEFINE.match(body[0])
        assert head is not None, body[0]
        arguments = split(head["args"])
        result = head["before"].split()[-1] if not head["before"].rstrip().endswith("}") else (
            "{" + head["before"].partition("{")[2].strip()
        )  # fmt: skip
        name = unquoted(head["name"])
        self.signatures[name] = Signature(result, tuple(a.split()[0] for a in arguments))
        stack = self._stack(body)
        self.places_used: dict[tuple[str, int], str] = {}
        inner = [self._line(line, stack) for line in body[1:]]
        first: list[str] = []
        for (variable, offset), register in self.places_used.items():
            leaf = self._leaf(f"address of {variable}", "ptr", ())
            base = f"%simt.of.{variable}"
            if not any(line.startswith(f"  {base} =") for line in first):
                first.append(f"  {base} = call ptr @{leaf}({HIDDEN})")
            first.append(f"  {register} = getelementptr i8, ptr {base}, i64 {offset}")
        before = re.sub(r"^(?:internal|private) ", "", head["before"])
        inlined = name == self.root and len(body) <= SMALL
        how = "alwaysinline" if inlined else "noinline"
        if len(body) > LARGE:
            how += " optnone"
        given = ", ".join([HIDDEN, *arguments])
        return [
            f'define linkonce_odr {before}@"{name}{self.suffix}"({given}) {how} {{',
            *first, *inner,
        ]  # fmt: skip

    def _stack(self, body: list[str]) -> set[str]:
        """The registers that point to the function's own variables."""
        found: set[str] = set()
        for line in body:
            match = RESULT.match(line.strip())
            if match is None:
                continue
            if match[2] == "alloca":
                found.add(match[1])
                self.local_bytes += self._size(line.partition("alloca ")[2].partition(", align")[0])
            else:
                pointer = POINTER.search(line)
                if pointer is not None and pointer[1] in found:
                    found.add(match[1])
        return found

    def _size(self, kind: str) -> int:
        """At most so many bytes a type of LLVM's has."""
        array = re.fullmatch(r"\[(\d+) x (.*)\]", kind)
        if array is not None:
            return int(array[1]) * self._size(array[2])
        known = re.search(rf"^{re.escape(kind)} = type (.*)$", self.text, re.MULTILINE)
        kind = known[1] if kind.startswith("%") and known is not None else kind
        inside = re.fullmatch(r"<?\{(.*)\}>?", kind)
        return 16 if inside is None else sum(self._size(part) for part in split(inside[1].strip()))

    def _line(self, line: str, stack: set[str]) -> str:
        text = line.strip()
        for name, pattern in self.places:
            text = pattern.sub(partial(self._placed, name), text)
            text = re.sub(rf"@{name}\b", partial(self._placed, name), text)
        for pattern, method in (
            (CALL, self._call), (LOAD, self._load), (STORE, self._store), (RMW, self._rmw),
            (CMPXCHG, self._cmpxchg), (FENCE, self._fence),
        ):  # fmt: skip
            match = pattern.match(text)
            if match is not None:
                text = method(match, stack) or text
                break
        else:
            if UNKNOWN.match(text) and not LLVMS_OWN.search(text) and INVARIANT not in text:
                self._refuse(f"LLVM's instruction `{text}`")
        return f"  {_without_groups(text)}" if not text.endswith(":") else text

    def _refuse(self, what: str) -> NoReturn:
        raise BackendUnavailable(
            f"the CPU engine does not know {what}, which {self.root}, a function of a bitcode "
            "library, needs"
        )

    def _placed(self, variable: str, match: re.Match[str]) -> str:
        """The register that has an address in a variable which is elsewhere."""
        offset = int(match[1]) if match.re.groups else 0
        return self.places_used.setdefault((variable, offset), f"%simt.of.{variable}.{offset}")

    def _leaf(self, what: str, result: str, arguments: tuple[str, ...], detail: str = "") -> str:
        leaf = Leaf(what, result, arguments, detail)
        self.leaves[leaf] = None
        return leaf.name

    def _call(self, match: re.Match[str], stack: set[str]) -> str | None:
        to, args, typ = match["to"] or "", match["args"], match["type"]
        name = unquoted(match["name"] or "")
        if LLVMS_OWN.match(name):
            return None
        given = [HIDDEN, *filter(None, [args])]
        if match["text"] is None and name in self._defined:
            how = match["flags"] + match["attributes"]
            return f'{to}call {how}{typ} @"{name}{self.suffix}"({", ".join(given)})'
        what, detail = (
            (name, "") if match["text"] is None else (match["text"], match["constraints"])
        )
        if name == "vprintf":
            what, detail = "printf", self._printed(args)
        kinds = tuple(_type(a) for a in split(args))
        return f"{to}call {typ} @{self._leaf(what, typ, kinds, detail)}({', '.join(given)})"

    @cached_property
    def _defined(self) -> set[str]:
        found = re.findall(rf"^define [^@\n]*@({NAME})\(", self.text, re.MULTILINE)
        return {unquoted(name) for name in found}

    def _printed(self, args: str) -> str:
        """The types of what is printed, of which LLVM shows a pointer only: by the format."""
        constant = re.search(rf"@({NAME})", args)
        text = self.constants.get(constant[1], "").replace("%%", "") if constant else ""
        return " ".join(re.findall(r"%[-+ #0-9.]*(?:hh|h|ll|l|z)?[a-zA-Z]", text))

    def _load(self, match: re.Match[str], stack: set[str]) -> str | None:
        pointer, typ = match["pointer"], match["type"]
        volatile = match["volatile"] is not None
        if pointer.startswith("%simt.of."):  # memory that is constant on a GPU
            return f"{match[0]}, {INVARIANT}"
        if pointer in stack or not (volatile or self.observed):
            return None
        leaf = self._leaf("volatile load" if volatile else "load", typ, ("ptr",))
        return f"{match['to']} = call {typ} @{leaf}({HIDDEN}, ptr {pointer})"

    def _store(self, match: re.Match[str], stack: set[str]) -> str | None:
        pointer, typ = match["pointer"], match["type"]
        volatile = match["volatile"] is not None
        if pointer in stack or not (volatile or self.observed):
            return None
        what = "volatile store" if volatile else "store"
        leaf = self._leaf(what, "void", ("ptr", typ))
        return f"call void @{leaf}({HIDDEN}, ptr {pointer}, {typ} {match['value']})"

    def _rmw(self, match: re.Match[str], stack: set[str]) -> str:
        typ = match["type"]
        leaf = self._leaf(f"rmw {match['op']}", typ, ("ptr", typ), match["order"])
        given = f"{HIDDEN}, ptr {match['pointer']}, {typ} {match['value']}"
        return f"{match['to']} = call {typ} @{leaf}({given})"

    def _cmpxchg(self, match: re.Match[str], stack: set[str]) -> str:
        typ = match["type"]
        both = f"{{ {typ}, i1 }}"
        leaf = self._leaf("cas", both, ("ptr", typ, typ), match["order"])
        given = (
            f"{HIDDEN}, ptr {match['pointer']}, {typ} {match['expected']}, {typ} {match['value']}"
        )
        return f"{match['to']} = call {both} @{leaf}({given})"

    def _fence(self, match: re.Match[str], stack: set[str]) -> str:
        leaf = self._leaf("fence", "void", (), f"{match['order']} {match['scope'] or 'sys'}")
        return f"call void @{leaf}({HIDDEN})"


def _without_groups(line: str) -> str:
    """A line without numbers of groups of attributes."""
    return re.sub(r"(?<=[)\w}]) #\d+", "", line)


def _type(argument: str) -> str:
    """The type of an argument as it is given: attributes and value follow."""
    match = re.match(TYPE, argument)
    assert match is not None
    return match[0]


def split(text: str) -> list[str]:
    """A list at its outer commas."""
    parts, depth, start = [], 0, 0
    for k, char in enumerate(text):
        if char in "([{<":
            depth += 1
        elif char in ")]}>":
            depth -= 1
        elif char == "," and not depth:
            parts.append(text[start:k].strip())
            start = k + 1
    rest = text[start:].strip()
    return [*parts, rest] if rest else parts
