"""Read PTX and SASS: the functions of an object, their instructions, and which follows which.

Both are read into the same `Instruction`s, so that one question can be asked of both. Only what
questions are about is understood: accesses to memory, fences, branches, calls and ends.
"""

import re
import subprocess
import tempfile
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

LOAD, STORE, ATOMIC, FENCE, BARRIER = "load", "store", "atomic", "fence", "barrier"
INVALIDATE, BRANCH, CALL, END, OTHER = "invalidate", "branch", "call", "end", "other"
SYS, GPU = "sys", "gpu"


class Instruction(NamedTuple):
    """`width`: bytes; `strong`: it takes part in synchronisation, as far as `scope` reaches;
    `space`: "global" (generic addresses, too), "local", "shared" or "constant"."""

    opcode: str
    kind: str = OTHER
    space: str = ""
    width: int = 0
    strong: bool = False
    scope: str = ""
    order: str = ""  # "acquire", "release" or "acq_rel"
    to: tuple[str, ...] = ()  # labels, or the function called
    falls: bool = True  # whether the next instruction may follow
    words: str = ""  # SASS: what follows the opcode

    @property
    def acquires(self):
        """Plain loads that follow are not older."""
        far = self.kind != FENCE or self.scope in (SYS, GPU)
        return far and self.order in ("acquire", "acq_rel")

    @property
    def releases(self):
        """Plain stores before are visible as far as `scope` reaches."""
        return self.order in ("release", "acq_rel")


class Function:
    """Instructions, and the labels between them."""

    def __init__(self, name):
        self.name, self.code, self.labels = name, [], {}

    @cached_property
    def next(self):
        """Of each instruction the numbers of those that may follow in this function."""
        found = []
        for at, instruction in enumerate(self.code):
            to = {self.labels[t] for t in instruction.to if instruction.kind == BRANCH}
            after = {at + 1} if instruction.falls else set()
            found.append(sorted(n for n in to | after if n < len(self.code)))
        return found


# --- PTX

SPACES = {"global": "global", "local": "local", "shared": "shared", "param": "constant"}
SPACES["const"] = "constant"
PTX_KINDS = {"ld": LOAD, "ldu": LOAD, "st": STORE, "atom": ATOMIC, "red": ATOMIC,
             "membar": FENCE, "fence": FENCE, "bar": BARRIER, "barrier": BARRIER, "call": CALL,
             "bra": BRANCH, "ret": END, "exit": END, "trap": END}  # fmt: skip
SCOPES = {"sys": SYS, "gpu": GPU, "gl": GPU, "cta": "cta", "cluster": "cluster"}
HEADER = re.compile(r"\.(?:entry|func)\s+(?:\([^)]*\)\s*)?([\w$]+)")


def ptx(text):
    """The functions of PTX, by name."""
    text = re.sub(r"//[^\n]*|\0", "", text)
    functions = {}
    for part in re.split(r"\n(?=[^\n]*\.(?:entry|func)\b)", text):
        name, body = HEADER.search(part), re.search(r"\n\{\n(.*)\n\}", part, re.DOTALL)
        if name is not None and body is not None:
            functions[name[1]] = _ptx_function(name[1], body[1])
    return functions


def _ptx_function(name, body):
    function = Function(name)
    body = re.sub(r"\{([^;{}]*)\}", r"(\1)", body)  # vectors
    for statement in re.split(r"[;{}]|(?<=:)\s", body):
        words = statement.strip()
        label = re.fullmatch(r"([\w$]+):", words)
        if label:
            function.labels[label[1]] = len(function.code)
        elif words and not words.startswith("."):
            function.code.append(_ptx_instruction(words))
    return function


def _ptx_instruction(words):
    guard, opcode, rest = re.fullmatch(r"(@!?%\w+\s+)?(\S+)\s*(.*)", words, re.DOTALL).groups()
    base, *parts = re.split(r"\.|::\w+", opcode)
    kind = PTX_KINDS.get(base, OTHER)
    if base == "brx":
        raise ValueError(f"{opcode}: branches through a table are not read")
    if opcode.startswith("fence.proxy"):
        kind = OTHER
    falls = bool(guard) or kind not in (BRANCH, END)
    if kind == BRANCH:
        return Instruction(opcode, kind, to=tuple(re.findall(r"\$?\w+", rest)[-1:]), falls=falls)
    if kind == CALL:
        to = re.sub(r"\([^)]*\)", "", rest).strip(" ,\n\t").split(",")[0]
        return Instruction(opcode, kind, to=(to.strip(),))
    if kind in (END, BARRIER, OTHER):
        return Instruction(opcode, kind, falls=falls)
    scope = next((SCOPES[part] for part in parts if part in SCOPES), "")
    if kind == FENCE:
        return Instruction(opcode, kind, scope=scope, order="acq_rel")
    space = next((SPACES[part] for part in parts if part in SPACES), "global")
    many = next((int(part[1]) for part in parts if re.fullmatch(r"v[248]", part)), 1)
    bits = re.fullmatch(r"[a-z]+(\d+)(x2)?", parts[-1])
    width = int(bits[1]) * (2 if bits[2] else 1) // 8 * many if bits else 0
    order = next((part for part in parts if part in ("acquire", "release", "acq_rel")), "")
    if "volatile" in parts or "mmio" in parts:
        scope = SYS
    strong = kind == ATOMIC or bool(order) or not {"volatile", "relaxed", "mmio"}.isdisjoint(parts)
    return Instruction(opcode, kind, space, width, strong, scope or GPU * strong, order)


# --- SASS

SASS_KINDS = {"LD": LOAD, "LDG": LOAD, "LDGMC": LOAD, "LDL": LOAD, "LDS": LOAD, "LDC": LOAD,
              "ULDC": LOAD,
              "ST": STORE, "STG": STORE, "STL": STORE, "STS": STORE,
              "ATOM": ATOMIC, "ATOMG": ATOMIC, "ATOMS": ATOMIC, "RED": ATOMIC, "REDG": ATOMIC,
              "MEMBAR": FENCE, "BAR": BARRIER, "BRA": BRANCH, "BRX": BRANCH, "JMP": BRANCH,
              "BSYNC": BRANCH, "CALL": CALL, "RET": END, "EXIT": END, "BPT": END}  # fmt: skip
SASS_SPACES = {"L": "local", "S": "shared", "C": "constant"}
LABEL = re.compile(r"(\.L_\w+|\$\S+|[A-Za-z_]\S*):")
LINE = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:(@!?U?PT?\d?)\s+)?([A-Z0-9][\w.]*)\s*(.*?)\s*;.*")
TARGETS = re.compile(r'"BRANCH_TARGETS ([^"]+)"')
TO = re.compile(r"`\(([^)]*)\)")


def disassembler():
    """nvdisasm's path, of the wheel or of a toolkit; None if there is none."""
    from shutil import which

    import nvidia

    found = [Path(root, "cu13/bin/nvdisasm") for root in nvidia.__path__]
    path = next((path for path in found if path.exists()), None) or which("nvdisasm")
    return path and str(path)


def sass(cubin):
    """The functions of a cubin, by name."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [disassembler(), "-c", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return sass_text(text)


def sass_text(text):
    """The functions of what nvdisasm prints."""
    functions, function, owner = {}, None, ""
    for line in text.splitlines():
        label = LABEL.fullmatch(line.strip())
        if label and label[1].startswith(".L_"):
            function.labels[label[1]] = len(function.code)
        elif label:
            owner = label[1]
            function = functions.setdefault(owner, Function(owner))
        elif (parts := LINE.fullmatch(line)) and function is not None:
            instruction = _sass_instruction(*parts.groups())
            function.code.append(instruction._replace(words=parts[3]))
    for function in functions.values():
        _reconverge(function)
    return functions


def _sass_instruction(guard, opcode, rest):
    base, *parts = opcode.split(".")
    kind = SASS_KINDS.get(base, OTHER)
    to = tuple(TO.findall(rest))
    if base == "BRX":
        to = tuple(TARGETS.search(rest)[1].split(","))
    if opcode == "CCTL.IVALL":
        return Instruction(opcode, INVALIDATE, order="acquire")  # L1, after a MEMBAR
    if opcode.startswith("WARPSYNC.COLLECTIVE") or base == "BSSY":
        return Instruction(f"{opcode} {rest}", to=to)
    falls = bool(guard) or kind not in (BRANCH, END) or "DIV" in parts
    if base == "BSYNC":
        return Instruction(f"{opcode} {rest}", kind, falls=True)
    if kind in (BRANCH, CALL):
        falls = falls or bool(re.match(r"!?U?P\d", rest))  # BRA P0, `(...)
        return Instruction(opcode, kind, to=to, falls=falls)
    scope = next((SCOPES[p.lower()] for p in parts if p.lower() in SCOPES), "")
    if kind == FENCE:
        return Instruction(opcode, kind, scope=scope, order="release")
    if kind in (END, BARRIER, OTHER):
        return Instruction(opcode, kind, falls=falls)
    wide = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "F16": 2, "64": 8, "128": 16}
    width = next((wide[part] for part in parts if part in wide), 4)
    packed = re.search(r"\.B?F(\d+)x(\d+)", opcode)  # of LDGMC: F16x8
    width = int(packed[1]) * int(packed[2]) // 8 if packed else width
    of = base.removeprefix("U").removesuffix("MC")  # LDGMC is global
    space = SASS_SPACES.get(of[-1], "global") if len(of) > 2 else "global"
    strong = "STRONG" in parts or "MMIO" in parts
    return Instruction(opcode, kind, space, width, strong, scope)


def _reconverge(function):
    """BSYNC B0 goes on at the label that the BSSY B0 before it names."""
    known = {}
    for at, instruction in enumerate(function.code):
        words = instruction.opcode.replace(",", " ").split()
        if words[0].startswith("BSSY"):
            known[words[1]] = instruction.to
            function.code[at] = instruction._replace(opcode=words[0], to=())
        elif words[0].startswith("BSYNC"):
            to = known.get(words[1], ())
            function.code[at] = instruction._replace(opcode=words[0], to=to, falls=not to)
        elif words[0].startswith("WARPSYNC.COLLECTIVE"):
            to = instruction.to
            function.code[at] = instruction._replace(opcode=words[0], kind=BRANCH, to=to)
