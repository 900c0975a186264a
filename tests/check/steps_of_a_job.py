"""Steps of a job, after each of which all PEs meet: what one leaves behind, the next finds."""

import os
import sys
from pathlib import Path

import gpushmem as shmem

STEPS, BUG = int(sys.argv[1]), " ".join(sys.argv[2:])


@shmem.jit
def step(box, source, out, full, flag, k, waits):
    """A number for the other PE; a flag that goes up and down."""
    other = 1 - shmem.my_pe()
    shmem.put_signal_nbi(box, source, full, 1, shmem.SIGNAL_ADD, other)
    if waits:
        shmem.signal_wait_until(full, shmem.CMP_GE, k + 1)
    out[1] = box[0]
    shmem.quiet()
    shmem.signal_op(flag, 1 - k % 2, shmem.SIGNAL_SET, other)
    shmem.signal_wait_until(flag, shmem.CMP_EQ, 1 - k % 2)


@shmem.jit
def add(total, mine, lock, keeps, locks):
    """Under a lock of PE 0: one PE keeps it to the next step, the other tries to get it before."""
    taken = not locks
    if locks and keeps:
        while shmem.atomic_compare_swap(lock, 0, 1, 0) != 0:
            pass
        taken = True
    elif locks:
        taken = shmem.atomic_compare_swap(lock, 0, 1, 0) == 0
    if taken:
        shmem.get(mine, total, 0)
        mine[0] += 1
        shmem.put(total, mine, 0)
        shmem.quiet()
        if locks and not keeps:
            shmem.atomic_set(lock, 0, 0)


@shmem.jit
def give_back(lock):
    shmem.atomic_set(lock, 0, 0)


@shmem.jit
def read(array, out):
    out[0] = array[0]


@shmem.jit
def send(count, n):
    for _ in range(n):
        shmem.signal_op(count, 1, shmem.SIGNAL_ADD, 1 - shmem.my_pe())


shmem.init()
box, source, out = (shmem.zeros(2, dtype="int64") for _ in range(3))
total, mine = (shmem.zeros(1, dtype="int64") for _ in range(2))
full, flag, lock, count = (shmem.zeros(1, dtype="uint64") for _ in range(4))
once, never = (shmem.empty(1, dtype="int64") for _ in range(2))
once[...] = 1
for k in range(STEPS):
    bug, keeps = BUG if k == STEPS - 1 else "", k % 2 == shmem.my_pe()
    step[1, 1](box, source, out, full, flag, k, bug != "no wait")
    add[1, 1](total, mine, lock, keeps, keeps or bug != "no lock")
    read[1, 1](never if bug == "unwritten" else once, out)
    shmem.barrier_all()
    if keeps:
        give_back[1, 1](lock)
    shmem.barrier_all()
if "signals" in BUG:
    send[1, 1](count, int(BUG.split()[0]))
shmem.barrier_all()
if shmem.my_pe() == 0 and STEPS > 20:
    log = Path(os.environ["GPUSHMEM_CHECK"], "pe0.log")
    with log.open("rb") as file:
        records = int.from_bytes(file.read(8), "little")
    print(records, log.stat().st_blocks * 512)
shmem.finalize()
