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
from collections.abc import Mapping
from functools import cache
from types import CodeType
from typing import Any

import numpy as np

from gpushmem.source_lines import Place, line_at, user_place

__all__ = [
    "KEY_PE", "PARTS", "PLACES", "PUT", "PUTS", "SIGNALS", "TABLES", "WORD", "WORDS", "Journal",
    "Journals", "Place", "place_of",
]  # fmt: skip

KEY_PE = 16  # bits of a key that hold the PE, plus 1; the rest is the heap offset
WORD = np.dtype([("key", "i8"), ("site", "i8")], align=True)
PUT = np.dtype([("key", "i8"), ("nbytes", "i8"), ("site", "i8")], align=True)
PUTS = 256
PLACES = 1024  # entries of a table of words
SIGNALS, WORDS = 0, 1  # tables: a sweep of `p` must not hide who wrote a signal
TABLES = np.dtype([("n_puts", "i8"), ("puts", PUT, PUTS), ("words", WORD, (2, PLACES))], align=True)
PARTS = 64  # journals of a PE; parts of a launch beyond share them


def place_of(offset: int, pe: int) -> int:
    """Return the journal entry for the word at an offset on a PE; kernels contain it, too."""
    return ((offset >> 3) + pe * 67) & (PLACES - 1)


class Journal:
    """One PE's notes, those of its host included."""

    def __init__(self) -> None:
        self._tables = np.zeros(PARTS, TABLES)  # untouched parts take no memory
        self.address = self._tables.ctypes.data
        self._host: deque[tuple[int, int, int, CodeType, int]] = deque(maxlen=PUTS)
        self._host_notes = 0
        self._end = 0  # of what has been allocated so far: nothing beyond has been written

    def place(self) -> Place:
        """The place in the program that is being executed."""
        return user_place()

    def note(self, start: int, nbytes: int, pe: int, place: Place | None = None) -> None:
        """Note that the host writes to heap offset `start` on `pe`; at `place`, else here."""
        self._host.append((int(start), int(nbytes), int(pe), *(place or user_place())))
        self._host_notes += 1

    def forget(self, start: int, nbytes: int) -> None:
        """Forget what was written to memory that has just been allocated."""
        new, self._end = start >= self._end, max(self._end, start + nbytes)
        if new:
            return
        for field in ("words", "puts"):
            keys = self._tables[field]["key"]
            used = np.nonzero(keys)
            offsets = keys[used] >> KEY_PE
            old = (offsets >= start) & (offsets < start + nbytes)
            keys[tuple(at[old] for at in used)] = 0
        for note in [note for note in self._host if start <= note[0] < start + nbytes]:
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


class Journals:
    """The journals of all PEs, indexed."""

    def __init__(self, accounts: Mapping[int, dict[str, Any] | None]) -> None:
        self._words: dict[int, list[tuple[int, int, str]]] = {}  # offset -> writer, PE, line
        self._puts: list[tuple[int, int, int, int, str]] = []
        self._places: dict[int, set[int]] = {}  # entries in use in the table of a PE
        self.unsure = [pe for pe, account in accounts.items() if not account or _lost(account)]
        for writer, account in accounts.items():
            journal = (account or {}).get("journal") or {"words": [], "puts": []}
            self._places[writer] = {place_of(at, pe) for at, pe, _ in journal["words"]}
            for at, pe, site in journal["words"]:
                self._words.setdefault(at, []).append((writer, pe, site))
            self._puts += [
                (at, at + nbytes, writer, pe, site) for at, nbytes, pe, site in journal["puts"]
            ]

    def of(self, offset: int) -> list[tuple[int, int, str]]:
        """Return the writers of the word at an offset: (writer, PE, source line)."""
        found = list(self._words.get(offset, ()))
        found += [put[2:] for put in self._puts if put[0] <= offset < put[1]]
        return [(writer, pe, site) for (writer, pe), site in {n[:2]: n[2] for n in found}.items()]

    def unknown(self, offset: int, pe: int) -> list[int]:
        """Return the PEs whose records do not exclude that they have written a word of `pe`."""
        place = place_of(offset, pe)
        return sorted({*self.unsure, *(w for w, taken in self._places.items() if place in taken)})


def _lost(account: dict[str, Any]) -> bool:
    return "journal" not in account or bool(account["journal"]["lost"])


def _where(key: int) -> tuple[int, int]:
    return key >> KEY_PE, (key & (1 << KEY_PE) - 1) - 1


@cache
def _text(address: int) -> str:
    return ctypes.string_at(address).decode() if address else "?"
