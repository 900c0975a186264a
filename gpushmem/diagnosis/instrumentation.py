"""What operations in kernels add to the journal: code that is compiled into each call."""

from __future__ import annotations

from typing import Any

from gpushmem.diagnosis.journal import (
    KEY_PE,
    PARTS,
    PLACES,
    PUT,
    PUTS,
    SIGNALS,
    TABLES,
    WORD,
    WORDS,
    place_of,
)
from gpushmem.native.memory import i64
from gpushmem.native.structs import offset, view
from gpushmem.ops import Op
from gpushmem.ops.roles import Element, Remote
from gpushmem.ops.row import DATA, READS, Effect
from gpushmem.simt.functions import device
from gpushmem.simt.layout import LAUNCH
from gpushmem.simt.thread import core_word, site_word

__all__ = ["generate", "wants", "written"]

as_word, as_put, as_tables, as_launch = map(view, (WORD, PUT, TABLES, LAUNCH))
AT_WORDS, AT_PUTS = offset(TABLES, "words"), offset(TABLES, "puts")
WORD_BYTES, PUT_BYTES, TABLES_BYTES = WORD.itemsize, PUT.itemsize, TABLES.itemsize

device_place_of = device(place_of)


@device
def tables_here(journal):
    """Address of the tables of the core that the calling thread runs on."""
    return journal + (as_launch(core_word()).part & (PARTS - 1)) * TABLES_BYTES


@device
def note_word(journal, start, pe, table):
    """Note that the word at heap offset `start` is written on `pe`."""
    place = table * PLACES + device_place_of(start, pe)
    word = as_word(tables_here(journal) + AT_WORDS + place * WORD_BYTES)
    word.key = (start << KEY_PE) + pe + 1
    word.site = site_word()


@device
def note_put(journal, start, nbytes, pe):
    """Note that the bytes from heap offset `start` on are written on `pe`."""
    here = tables_here(journal)
    tables = as_tables(here)
    put = as_put(here + AT_PUTS + (tables.n_puts & (PUTS - 1)) * PUT_BYTES)
    tables.n_puts += 1
    put.key = (start << KEY_PE) + pe + 1
    put.nbytes = nbytes
    put.site = site_word()


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
        where, pe = (call.journal(), call.offset(effect.array)), call.integer("pe")
        if effect.extent == "0":
            table = WORDS if effect.kind == DATA else SIGNALS
            call.run(note_word, *where, pe, i64(table))
        else:
            call.run(note_put, *where, call.nbytes(effect), pe)
