"""What may hang or fail on a GPU although nothing here can show it; the first hour on a machine.

gpushmem run -n N bench/gpu/hour.py polls|busy|closures|loading|loading-host|far

Each is a program by itself, since one that hangs does not come back: on_machine.sh gives each its
own time. A PE tells what it is about to do, so that the last line says where it stopped.
"""

import faulthandler
import gc
import sys
import time

import numpy as np

import gpushmem as shmem

ROUNDS = 40


def say(text):
    print(f"PE {shmem.my_pe()}: {text}\n", end="", flush=True)


@shmem.jit
def poll(flag, pe, got):
    while shmem.g(flag, pe) != 1:
        pass
    got[0] = 1


@shmem.jit
def wait(flag, got):
    shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
    got[0] = 1


@shmem.jit
def tell(flag, pe):
    shmem.signal_op(flag, 1, shmem.SIGNAL_SET, pe)


def flag_and_result():
    return shmem.zeros(1, "uint64"), shmem.to_device(np.zeros(1, np.int64))


def finish(got):
    shmem.synchronize()
    assert got.numpy()[0] == 1
    shmem.barrier_all()


def polls(me, n):
    """A kernel that polls `g` sees what another PE writes later."""
    flag, got = flag_and_result()
    shmem.p(flag, 0, me)
    shmem.g(flag, me)
    shmem.barrier_all()
    poll[1, 1, shmem.stream()](flag, (me + 1) % n, got)
    time.sleep(0.2)
    say("g is polled; writing")
    shmem.p(flag, 1, me)
    finish(got)


def busy(me, n):
    """The host's operations go on while a kernel on the default stream waits."""
    flag, got = flag_and_result()
    x = shmem.zeros(1, "int64")
    shmem.p(x, 1, me)
    shmem.g(x, me)
    shmem.signal_op(flag, 1, shmem.SIGNAL_SET, me)
    wait[1, 1](flag, got)  # loaded now, as are the host's operations
    shmem.synchronize()
    flag.copy_from(0)
    shmem.barrier_all()
    wait[1, 1](flag, got)
    say("a kernel waits; p")
    shmem.p(x, 7, me)
    say("g")
    assert shmem.g(x, me) == 7
    say("signal_op")
    shmem.signal_op(flag, 1, shmem.SIGNAL_SET, me)
    finish(got)


def closures(me, n):
    """Kernels that are made, launched and collected, again and again."""
    got = shmem.to_device(np.zeros(1, np.int64))

    def launch(k):
        @shmem.jit
        def kernel(got):
            got[0] = shmem.n_pes() + k

        kernel[1, 1](got)
        shmem.synchronize()
        assert got.numpy()[0] == n + k, (k, got.numpy())

    for k in range(ROUNDS):
        launch(k % 2)
        gc.collect()
        say(f"{k + 1} kernels")


def loading(me, n):
    """A kernel is launched for the first time while another waits for it."""
    flag, got = flag_and_result()
    shmem.barrier_all()
    wait[1, 1, shmem.stream()](flag, got)
    say("a kernel waits; the first launch of another")
    tell[1, 1, shmem.stream()](flag, me)
    finish(got)


def loading_host(me, n):
    """The host does an operation for the first time while a kernel waits for it."""
    flag, got = flag_and_result()
    shmem.barrier_all()
    wait[1, 1, shmem.stream()](flag, got)
    say("a kernel waits; the host's first atomic operation")
    shmem.atomic_add(flag, 1, me)
    finish(got)


def far(me, n):
    """Memory of `to_device` that is registered is the source of a put to another machine."""
    right = (me + 1) % n
    dst, src = shmem.zeros(1024, "int64"), shmem.to_device(np.arange(1024) + 1000 * me)
    shmem.register(src)
    shmem.barrier_all()
    say("put")
    shmem.put(dst, src, right)
    shmem.barrier_all()
    assert (dst.numpy() == np.arange(1024) + 1000 * ((me - 1) % n)).all()
    shmem.unregister(src)


EVERY = (polls, busy, closures, loading, loading_host, far)
PARTS = {f.__name__.replace("_", "-"): f for f in EVERY}

faulthandler.dump_traceback_later(20)  # where it hangs, if it does
with shmem.session() as world:
    PARTS[sys.argv[1]](world.my_pe, world.n_pes)
    say("done")
