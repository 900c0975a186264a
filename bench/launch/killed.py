"""PE 1 is killed while the others wait for it in a kernel."""

import os
import signal
import time

import gpushmem as shmem


@shmem.jit
def meet():
    shmem.barrier_all()


shmem.init()
meet[1, 1]()
shmem.barrier_all()
if shmem.my_pe() == 1:
    time.sleep(0.5)
    print("now", time.monotonic(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
meet[1, 1]()
shmem.synchronize()
