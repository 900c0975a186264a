"""Kernels for scripts of jobs: here they are compiled once, and not for each test's own script."""

import gpushmem as shmem


@shmem.jit
def wait_for(signal, value):
    shmem.signal_wait_until(signal, shmem.CMP_EQ, value)


@shmem.jit
def meet():
    shmem.barrier_all()


@shmem.jit
def endless(x):
    i = 0
    while i >= 0:
        i = (i + 1) % 1000
        x[i] += 1


@shmem.jit
def poll(flag):
    while shmem.signal_fetch(flag) != 1:
        pass


@shmem.jit
def set_to(a, value):
    for i in range(a.size):
        a[i] = value
