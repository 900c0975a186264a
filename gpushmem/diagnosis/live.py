"""What each PE does, look by look: `gpushmem inspect --live`.

A PE computes if one of its kernels runs and none of its threads waits, or if no kernel runs and its
host is in no call of gpushmem; moving data counts as that. Else it waits, and the longest wait is
shown.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from gpushmem.diagnosis.journal import Journals
from gpushmem.diagnosis.report import condition_of, waits_for

__all__ = ["COMPUTING", "WAITING", "Live", "Row"]

COMPUTING, WAITING, GONE = "computing", "waiting", ""
NO_ANSWER = "does not answer"


@dataclass
class Row:
    """A PE at one look."""

    pe: int
    does: str  # COMPUTING, WAITING, or GONE
    what: str  # the kernel that runs, what it waits for, or why it says nothing
    line: str = ""
    seconds: float | None = None  # how long it has waited
    waits_for: tuple[int, ...] = ()  # PEs that could end the wait
    waited: float | None = None  # the part of all looks at which it waited


class Live:
    """Counts what PEs did at all looks."""

    def __init__(self) -> None:
        self._looks: Counter[int] = Counter()
        self._waited: Counter[int] = Counter()

    def look(self, accounts: dict[int, dict[str, Any] | None], gone: dict[int, str]) -> list[Row]:
        """A row for each PE, of the accounts of all; see `report` for what is in them."""
        notes = Journals(accounts)
        rows = [_row(pe, account, notes, gone) for pe, account in sorted(accounts.items())]
        for row in rows:
            if row.does:
                self._looks[row.pe] += 1
                self._waited[row.pe] += row.does == WAITING
            if row.pe in self._looks:
                row.waited = self._waited[row.pe] / self._looks[row.pe]
        return rows


def _row(pe: int, account: dict[str, Any] | None, notes: Any, gone: dict[int, str]) -> Row:
    """The row of one PE; its account may hold anything, and is made what it should be here."""
    if account is None or "error" in account:
        return Row(pe, GONE, gone.get(pe, NO_ANSWER))
    if account["busy"]:
        return Row(pe, COMPUTING, f"kernel {account['busy'][0]}")
    waits, what = account["waits"], ""
    if waits:
        wait = max(waits, key=lambda wait: float(wait["seconds"] or 0))
        what = "" if wait["host"] else f"kernel {wait['kernel']}, "
        what, line = what + condition_of(wait), wait["site"]
    elif account["host"]:
        wait = max(account["host"], key=lambda wait: float(wait["seconds"]))
        what, line = str(wait["what"]), wait["line"]
    else:
        return Row(pe, COMPUTING, "the host")
    seconds = None if wait["seconds"] is None else float(wait["seconds"])
    to = tuple(sorted(int(other) for other in waits_for(account, notes)))
    return Row(pe, WAITING, what, str(line), seconds, to)
