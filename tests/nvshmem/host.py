"""PEs of the nvshmem backend for tests of its host side: forked, on the emulated driver.

@host.job
def program(me, n, ...):            # between init and finalize

host.run(2, program, ...)           # what each PE returned

@host.in_pes(1, 2, 3)
def test_copies(me, n):             # a program that is a test, in jobs of 1, 2 and 3 PEs
"""

import functools
import os
import time
from pathlib import Path

import numpy as np

import gpushmem as shmem
from gpushmem.job import ranks
from tests.nvshmem.emulation import pes

HEAP = 1 << 20
if os.environ.get("EMULATION_LIBCUDA"):  # in the process that PEs are forked from
    from gpushmem.backends.nvshmem import backend  # noqa: F401
    from gpushmem.backends.nvshmem.compile import compiler  # noqa: F401


class Forked(ranks.Peers):
    """The other PEs of a job that `pes` has forked."""

    def __init__(self):
        unique_id, me, n = pes.uid()
        name = bytes(unique_id._data.view(np.uint8)[4:]).rstrip(b"\0").decode()
        self._mail = Path(f"{name}.mail")  # nobody else has this name
        super().__init__(me, n, me, n, bootstrap="forked")

    def broadcast(self, payload):
        if self.my_pe == 0:
            new = self._mail.with_suffix(".new")
            new.write_bytes(payload)
            new.rename(self._mail)
        while not self._mail.exists():
            time.sleep(0.001)
        return self._mail.read_bytes()

    def close(self):
        if self.my_pe == 0:  # all have met at NVSHMEM's beginning
            self._mail.unlink()


def meet():
    """Make this process a PE of the job that it was forked for: `init` finds the others then."""
    ranks.adopt(Forked())
    return pes.uid()[1:]


def init(heap_size=HEAP):
    """Initialise gpushmem in this PE."""
    me, n = meet()
    shmem.init("nvshmem", heap_size=heap_size)
    return me, n


def job(function):
    """Make `function(me, n, *args)` a PE's program, from init to finalize."""

    @functools.wraps(function)
    def program(*args):
        me, n = init()
        result = function(me, n, *args)
        shmem.finalize()
        return result

    return program


def in_pes(*sizes, limit=pes.LIMIT, **env):
    """Make `function(me, n)` a test, in jobs of so many PEs."""
    return lambda function: pes.in_pes(*sizes, env=_with_the_cache(env), limit=limit)(job(function))


def run(n, program, *args, limit=pes.LIMIT, **env):
    """Run a program in `n` PEs, with these environment variables; return what each returned.

    It has `limit` seconds.
    """
    return pes.run(n, program, *args, env=_with_the_cache(env), limit=limit)


def _with_the_cache(env):
    """The variables, and that of the folder for compiled code: the tests'."""
    return {"GPUSHMEM_CACHE_DIR": os.environ["GPUSHMEM_CACHE_DIR"], **env}
