"""Hosts that wait in a loop of their own, asking again and again until the answer is another.

Such a host is in no wait that we know of. It is taken to wait while it asks OFTEN times a second,
gets the same answers, and does nothing else with operations and kernels.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpushmem.ops import Op
from gpushmem.waiting_threads import Parked, parked

__all__ = ["Asking"]

OFTEN = 100
SECOND = 1.0
NUMBERS = (bool, int, float, np.generic)


@dataclass
class Asker:
    """A thread that has asked since it last did something, or heard something new."""

    answers: dict[Any, Any] = field(default_factory=dict)  # question -> answer
    count: int = 0
    counted: int = 0  # so many when `began` was
    began: float = field(default_factory=time.monotonic)
    often: float = -SECOND  # when it was last seen to have asked often
    wait: Parked = field(default_factory=lambda: Parked("a loop", lambda: False))


class Asking:
    """The hosts' threads of this PE that ask."""

    def __init__(self) -> None:
        self._askers: dict[int, Asker] = {}

    def note(self, op: Op, pe: Any, answer: Any) -> None:
        """The calling thread has done an operation, which concerned `pe`."""
        if answer is not None and not op.params:  # my_pe, n_pes
            return
        kind = getattr(answer, "dtype", None)  # records cannot be compared with numbers
        ident = threading.get_ident()
        question = op.name, pe if isinstance(pe, NUMBERS) else None, kind
        asker = self._askers.get(ident)
        if not isinstance(answer, NUMBERS):
            self._askers.pop(ident, None)
        elif asker is None or asker.answers.setdefault(question, answer) != answer:
            self._askers[ident] = Asker({question: answer})
            self._askers[ident].wait.what = f"a loop that calls {op.name}"
        else:
            asker.count += 1

    def forget(self) -> None:
        """The calling thread has done something else."""
        self._askers.pop(threading.get_ident(), None)

    def look(self) -> None:
        """Count; to be called several times a second."""
        now = time.monotonic()
        for asker in list(self._askers.values()):
            if asker.count - asker.counted >= OFTEN:
                asker.often = now
            elif now - asker.began < SECOND:
                continue
            asker.began, asker.counted = now, asker.count

    def waits(self) -> dict[int, Parked]:
        """The threads that ask often: since when, and what."""
        now = time.monotonic()
        found = [(i, a) for i, a in list(self._askers.items()) if i not in parked]
        return {ident: asker.wait for ident, asker in found if now - asker.often < SECOND}
