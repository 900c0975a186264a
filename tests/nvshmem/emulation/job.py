"""The memory that the PEs of a job share: a file, mapped by each; and how they meet in it.

First come words of control, then PE 0's part of the heap, PE 1's, and so on. Each PE's addresses
for it are its own, as they are with NVSHMEM, and only a device could use them (driver.py).
"""

import atexit
import ctypes
import mmap
import os
import secrets
import time
from pathlib import Path

import numpy as np

from tests.nvshmem.emulation.driver import function
from tests.nvshmem.emulation.errors import EmulationError

MAX_TEAMS = 64
PER_PE = 5  # words
_TEXT = 256  # bytes in which a PE says which collective it is in

_u64, _f64, _int, _size = ctypes.c_uint64, ctypes.c_double, ctypes.c_int, ctypes.c_size_t
add64 = function("add64", _u64, _size, _u64)
load64 = function("load64", _u64, _size)
store64 = function("store64", None, _size, _u64)
wait64 = function("wait64", _int, _size, _int, _u64, _f64)
_lock = function("lock", _int, _size, _f64)
_unlock = function("unlock", None, _size)


def limit() -> float:
    """Return the seconds that anything waits for another PE; NVSHMEM would wait for ever."""
    return float(os.environ.get("EMULATION_TIMEOUT", "60"))


def new_file_name() -> bytes:
    """Return a name for a job's file; nothing is there yet."""
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp"
    return f"{folder}/emulated-nvshmem-{secrets.token_hex(8)}".encode()


class Job:
    """This process in its job: PE `me` of `n`, each with `segment` bytes for the heap.

    Raises EmulationError when the PEs disagree, or do not all come in time.
    """

    def __init__(self, path: str, me: int, n: int, segment: int):
        self.path, self.me, self.n, self.segment = Path(path), me, n, segment
        self._words = 8 + PER_PE * n + MAX_TEAMS * n
        self._text = self._words * 8
        self._heap = -(-(self._text + n * _TEXT) // mmap.PAGESIZE) * mmap.PAGESIZE
        if me == 0:
            self._create()
        self._map()
        self._check_equal()

    def _create(self):
        # Named when it has its size: others take it as soon as they see it.
        made = self.path.with_name(self.path.name + ".new")
        with made.open("wb") as file:
            file.truncate(self._heap + self.n * self.segment)
        atexit.register(self.path.unlink, missing_ok=True)
        made.rename(self.path)

    def _map(self):
        deadline = time.monotonic() + limit()
        while not self.path.exists():
            if time.monotonic() > deadline:
                raise EmulationError(f"PE {self.me}: PE 0 did not initialise in {limit():.0f} s")
            time.sleep(0.002)
        with self.path.open("r+b") as file:
            self._map_file = mmap.mmap(file.fileno(), 0)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self._map_file))

    def _check_equal(self):
        words = np.frombuffer(self._map_file, np.uint64, 8)
        if self.me == 0:
            words[:2] = self.n, self.segment
        add64(self.base + 16, 1)
        if wait64(self.base + 16, 5, self.n, limit()):
            there = load64(self.base + 16)
            raise EmulationError(f"PE {self.me}: {there} of {self.n} PEs came in {limit():.0f} s")
        said = tuple(int(word) for word in words[:2])
        if self.me == 0:
            self.path.unlink(missing_ok=True)
        if said != (self.n, self.segment):
            mine = (self.n, self.segment)
            raise EmulationError(f"PE {self.me} has (PEs, heap) {mine}, PE 0 {said}")

    def host(self, pe: int, offset: int) -> int:
        """Return where this process finds byte `offset` of a PE's part of the heap."""
        return self.base + self._heap + pe * self.segment + offset

    def bytes_at(self, pe: int, offset: int, n: int) -> np.ndarray:
        """Return `n` bytes of a PE's part of the heap."""
        start = self._heap + pe * self.segment + offset
        return np.frombuffer(self._map_file, np.uint8, n, start)

    def per_pe(self, which: int) -> np.ndarray:
        """Return one word of each PE: 0 its device, 1 the team numbers it has free.

        And of the team it is in `team_init` of: 2 its number there, 3 and 4 the team's id, when it
        has come, and when it has seen who else has.
        """
        return np.frombuffer(self._map_file, np.uint64, self.n, 8 * (8 + which * self.n))

    # ---- meeting ----

    def counter(self, team: int, first: int) -> int:
        """Return the address of the arrivals at a team's barriers. `first` is its lowest PE."""
        return self.base + 8 * (8 + PER_PE * self.n + team * self.n + first)

    def barrier(self, team: int, members, doing: str = "a barrier") -> None:
        """Wait for all of `members`. Raises EmulationError after `limit`, with what each did."""
        counter = self.counter(team, min(members))
        arrived = add64(counter, 1)
        goal = -(-arrived // len(members)) * len(members)
        if wait64(counter, 5, goal, limit()):
            said = ", ".join(f"PE {pe}: {self.doing(pe) or '-'}" for pe in members)
            raise EmulationError(
                f"PE {self.me} waited {limit():.0f} s in {doing} of team {team}; last in {said}"
            )

    def reset(self, team: int, first: int) -> None:
        """Forget the arrivals of an earlier team of this number."""
        store64(self.counter(team, first), 0)

    def leave(self, team: int, members) -> None:
        """Leave a team that ends; its lowest PE, which may `reset` the number, does so last."""
        counter = self.counter(team, min(members))
        left = add64(counter, 1)
        goal = -(-left // len(members)) * len(members)
        if self.me == min(members) and wait64(counter, 5, goal, limit()):
            raise EmulationError(f"PE {self.me} waited {limit():.0f} s for the end of team {team}")

    def doing(self, pe: int) -> str:
        """Return what a PE last said it does."""
        at = self._text + pe * _TEXT
        return self._map_file[at : at + _TEXT].rstrip(b"\0").decode()

    def meet(self, team: int, members, doing: str) -> None:
        """A barrier at which all must be in the same collective, with the same arguments."""
        at = self._text + self.me * _TEXT
        self._map_file[at : at + _TEXT] = doing.encode()[:_TEXT].ljust(_TEXT, b"\0")
        self.barrier(team, members, doing)
        other = next((pe for pe in members if self.doing(pe) != doing), None)
        theirs = "" if other is None else self.doing(other)
        self.barrier(team, members, doing)
        if other is not None:
            raise EmulationError(
                f"PE {self.me} is in {doing}, PE {other} in {theirs}: a collective of team {team} "
                "needs the same call, with the same arguments, of each of its PEs"
            )

    def __enter__(self):
        """Take the lock of the job's atomics."""
        if _lock(self.base + 24, limit()):
            raise EmulationError("the lock of atomics is held by a PE that ended")

    def __exit__(self, *_):
        _unlock(self.base + 24)
