"""Large pages: a process that has its memory in them forks PEs in half the time."""

import ctypes
import re

MADV_COLLAPSE = 25  # Linux 6.1
SIZE = 2 << 20
MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0 *(\[heap\])?$")

_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def collapse():
    """Put this process's own memory into large pages, where the system can."""
    with open("/proc/self/maps") as file:
        found = [MAPPING.match(line) for line in file.read().splitlines()]
    for each in filter(None, found):
        begin, end = int(each[1], 16), int(each[2], 16)
        for address in range(-(-begin // SIZE) * SIZE, end - SIZE + 1, SIZE):
            _madvise(address, SIZE, MADV_COLLAPSE)
