"""Running a test's function in real PEs."""

import inspect
import os
import time
from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest

from gpushmem.errors import PeerFailed
from gpushmem.start.launch import local
from tests import gpus

DEFAULT_HEAP = 64 << 20
BACKEND = os.environ.get("GPUSHMEM_BACKEND") or "cpu"  # of the PEs that tests run in
ON_GPUS = BACKEND == "nvshmem"
NODES = int(os.environ.get("GPUSHMEM_NODES") or 1)  # that they are on, where it divides the PEs
# Each access to memory is a call: large copies would take minutes.
CALLED = BACKEND != "cpu" and os.environ.get("GPUSHMEM_MEMORY") == "weak"
CHECKED = False  # whether jobs are checked: pytest --gpushmem-check


@contextmanager
def job_of(n):
    """Within, a job of `n` PEs runs as the environment says; skips if it cannot."""
    if ON_GPUS:
        gpus.need(n)
    else:
        compile_what_many_need()
    try:
        with on_nodes(n):
            yield
    except PeerFailed as error:
        gpus.skip_if_forbidden(error.report)
        raise


def call(function, *args):
    """What PEs run: the function of a test."""
    if ON_GPUS:
        gpus.forbid_waits()
    return function(*args)


def nodes_of(n):
    """The number of nodes of a job of `n` PEs: each PE is one where they cannot be divided."""
    return n if n % NODES else NODES


def options(n):
    """Those of the command that runs a job of `n` PEs."""
    return ("--nodes", nodes_of(n)) if NODES > 1 else ()


@contextmanager
def on_nodes(n):
    """Within, a job of `n` PEs may be made.

    All that this process compiles is for PEs on several nodes, if GPUSHMEM_NODES says so: they may
    be on one, too.
    """
    with pytest.MonkeyPatch.context() as patch:
        if NODES > 1:
            local.preload(BACKEND)  # while the variable is as the user has set it
            patch.setenv("GPUSHMEM_NODES", str(nodes_of(n)))
        yield


def on_several_nodes(why):
    """A mark for a test, or a case of one, that needs PEs whose memory is mapped."""
    return pytest.mark.skipif(NODES > 1, reason=f"several nodes: {why}")


def sendable(array):
    """Device memory that may be sent to, or received from, all PEs."""
    import gpushmem as shmem

    return shmem.register(array) if NODES > 1 and array.size else array


def to_send(values):
    """The same, with a copy of `values`."""
    import gpushmem as shmem

    return sendable(shmem.to_device(values))


def whole_warps(n_threads, algorithm=""):
    """Threads of a block: GPUs send over a network, and by LL128, with whole warps only."""
    needed = NODES > 1 or (BACKEND != "cpu" and "ll128" in algorithm)
    return -(-n_threads // 32) * 32 if needed else n_threads


def repeated(n, if_checked=30):
    """How often a test repeats something: seldom where all that happens is recorded."""
    return min(n, if_checked) if CHECKED else n


def lateness(often, seconds):
    """A function that waits in this share of its calls: PEs are late, each at times of its own."""
    import gpushmem as shmem

    chance = np.random.default_rng(shmem.my_pe())

    def late():
        if chance.random() < often:
            time.sleep(seconds)

    return late


def some_of(cases, if_checked=4):
    """Every fourth case, say, where all that happens is recorded: not a divisor of their kinds."""
    return cases[::if_checked] if CHECKED else cases


@cache
def compile_what_many_need():
    """Compile, once a session, what most kernels call: PEs forked later find it done."""
    import gpushmem as shmem

    @shmem.jit
    def typical(x, flag):
        shmem.p(x, x[0], 0)
        shmem.put(x, x, 0)
        shmem.put_signal_block(x, x, flag, 1, shmem.SIGNAL_SET, 0)
        shmem.atomic_add(x, x[0], 0)
        shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
        shmem.barrier_all()

    for dtype in (np.float64, np.int64):
        compile_first(typical, np.zeros(1, dtype), np.zeros(1, np.uint64))


def compile_first(function, *examples, threads=1):
    """Compile for arguments of the types of `examples` here: PEs forked later find it done.

    `function` is a kernel, compiled for blocks of so many threads; or an operation, as the host
    calls it. PEs that are new processes compile for themselves.
    """
    if ON_GPUS:
        return
    from numba.cuda.typing.typeof import Purpose, typeof

    from gpushmem.backends.cpu.hostcalls import HostCalls
    from gpushmem.kernel import Kernel
    from gpushmem.ops import OPS
    from gpushmem.simt.grid.entry import kind_of_block
    from gpushmem.simt.run import kernel as simt

    local.preload(BACKEND)
    if isinstance(function, Kernel):
        prepared = function._prepared.setdefault("cpu", simt.Kernel(function.py_func, cache=True))
        types = tuple(typeof(example, Purpose.argument) for example in examples)
        prepared.compile(types, kind_of_block((threads, 1, 1)))
    else:
        op = OPS[function.__name__]
        arguments = inspect.signature(function).bind(*examples).arguments
        HostCalls(np.zeros(1)).prepare(op, arguments)
