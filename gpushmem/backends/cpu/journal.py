"""What this PE has written to symmetric memory, and at which line: kept for reports.

Every operation that writes leaves a note: two or three plain stores beside its own. Words (what
`p`, signals and atomic operations write) have a place in a table that follows from where they are,
so the last note of a word is found until another word needs the place; data that is put, a ring of
the last ones. An empty place is proof that this PE has written no word that belongs there.

Each part of a launch that runs on a core of its own has its own tables. Nothing is locked: of two
streams that note at once, a note may be lost or name the other's line.
"""

from __future__ import annotations

import ctypes
from collections import deque
from functools import cache
from types import CodeType
from typing import Any

import numpy as np

from gpushmem.artifacts.arguments import address_of
from gpushmem.backends.cpu.world import WORLD
from gpushmem.job.report import PLACES, place_of
from gpushmem.lines import line_at, user_place
from gpushmem.ops import Op
from gpushmem.ops.roles import Element, Remote
from gpushmem.ops.row import DATA, READS, Effect
from gpushmem.simt.base.layout import LAUNCH, offset, view
from gpushmem.simt.base.native import i64
from gpushmem.simt.compiler.primitives import launch_word, site_word, user_word
from gpushmem.simt.compiler.target import device

__all__ = ["Journal", "generate", "wants", "written"]

KEY_PE = 16  # bits of a key that hold the PE, plus 1; the rest is the heap offset
WORD = np.dtype([("key", "i8"), ("site", "i8")], align=True)
PUT = np.dtype([("key", "i8"), ("nbytes", "i8"), ("site", "i8")], align=True)
PUTS = 256
SIGNALS, WORDS = 0, 1  # tables: a sweep of `p` must not hide who wrote a signal
TABLES = np.dtype([("n_puts", "i8"), ("puts", PUT, PUTS), ("words", WORD, (2, PLACES))], align=True)
PARTS = 64  # journals of a PE; parts of a launch beyond share them

as_word, as_put, as_tables, as_launch, as_world = map(view, (WORD, PUT, TABLES, LAUNCH, WORLD))
AT_WORDS, AT_PUTS = offset(TABLES, "words"), offset(TABLES, "puts")
WORD_BYTES, PUT_BYTES, TABLES_BYTES = WORD.itemsize, PUT.itemsize, TABLES.itemsize

device_place_of = device(place_of)


@device
def tables_here():
    """Address of the tables of the calling thread's part of its launch."""
    world = as_world(user_word())
    return world.journal + (as_launch(launch_word()).part & (PARTS - 1)) * TABLES_BYTES


@device
def note_word(address, pe, table):
    """Note that the word symmetric with that at `address` is written on `pe`."""
    start = address - as_world(user_word()).heap
    place = table * PLACES + device_place_of(start, pe)
    word = as_word(tables_here() + AT_WORDS + place * WORD_BYTES)
    word.key = (start << KEY_PE) + pe + 1
    word.site = site_word()


@device
def note_put(address, nbytes, pe):
    """Note that the bytes symmetric with those at `address` are written on `pe`."""
    here = tables_here()
    tables = as_tables(here)
    put = as_put(here + AT_PUTS + (tables.n_puts & (PUTS - 1)) * PUT_BYTES)
    tables.n_puts += 1
    put.key = ((address - as_world(user_word()).heap) << KEY_PE) + pe + 1
    put.nbytes = nbytes
    put.site = site_word()


# --- what is noted of operations


def wants(op: Op) -> bool:
    """Whether an operation leaves notes."""
    return bool(written(op))


def written(op: Op) -> list[Effect]:
    """What an operation writes to memory of another PE."""
    remote = Remote, Element
    return [
        effect for effect in op.facts.effects
        if effect.how != READS and issubclass(op.arrays[effect.array], remote)
    ]  # fmt: skip


def generate(call: Any) -> None:
    """Add the notes of one call: a word for an element, a range of bytes for an array."""
    for effect in written(call.op):
        address, pe = call.address(effect.array), call.integer("pe")
        if effect.extent == "0":
            table = WORDS if effect.kind == DATA else SIGNALS
            call.run(note_word, address, pe, i64(table))
        else:
            call.run(note_put, address, call.nbytes(effect), pe)


class Journal:
    """One PE's notes, those of its host included."""

    def __init__(self) -> None:
        self._tables = np.zeros(PARTS, TABLES)  # untouched parts take no memory
        self.address = address_of(self._tables)
        self._host: deque[tuple[int, int, int, CodeType, int]] = deque(maxlen=PUTS)
        self._host_notes = 0

    def note(self, start: int, nbytes: int, pe: int) -> None:
        """Note that the host writes to heap offset `start` on `pe`."""
        self._host.append((int(start), int(nbytes), int(pe), *user_place()))
        self._host_notes += 1

    def forget(self, start: int, nbytes: int) -> None:
        """Forget what was written to memory that has just been allocated."""
        for field in ("words", "puts"):
            keys = self._tables[field]["key"]
            offsets = keys >> KEY_PE
            keys[(keys != 0) & (offsets >= start) & (offsets < start + nbytes)] = 0
        old = [note for note in self._host if start <= note[0] < start + nbytes]
        for note in old:
            self._host.remove(note)

    def account(self) -> dict[str, Any]:
        """All notes: words [offset, PE, line], data [offset, bytes, PE, line]; what is not known.

        `lost`: older notes of data have been overwritten by newer ones.
        """
        words = self._tables["words"].reshape(-1)
        puts = self._tables["puts"].reshape(-1)
        sites = dict(words[words["key"] != 0].tolist())  # parts that wrote the same word: one
        return {
            "words": [[*_where(key), _text(site)] for key, site in sites.items()],
            "puts": [
                [start, nbytes, pe, _text(site)]
                for key, nbytes, site in puts[puts["key"] != 0].tolist()
                for start, pe in [_where(key)]
            ]
            + [
                [*where, f"{line_at(code, at)} on the host"]
                for *where, code, at in list(self._host)
            ],
            "lost": bool((self._tables["n_puts"] > PUTS).any() or self._host_notes > PUTS),
        }


def _where(key: int) -> tuple[int, int]:
    return key >> KEY_PE, (key & (1 << KEY_PE) - 1) - 1


@cache
def _text(address: int) -> str:
    return ctypes.string_at(address).decode() if address else "?"
