"""gpushmem's side: each case fused, its phases one after the other, each phase alone.

python -m gpushmem run -n N bench/kernels/ours.py FAMILY; started by __main__.py.
"""

import importlib
import sys
import time

import numpy as np
from clock import Clock

import gpushmem as shmem

PAINT = 0xA5


@shmem.jit
def barrier():
    shmem.barrier_all()


def share(value):
    box = shmem.full(1, value, "float64")
    shmem.broadcast(shmem.TEAM_WORLD, box, box, 0)
    value = float(box.numpy()[0])
    shmem.free(box)
    return value


def arrived(plan, call):
    """Bytes that one call leaves in the plan's boxes: whatever has lost its paint."""
    boxes = [box for box in plan.inboxes if box.size]
    for box in boxes:
        box.view("uint8").copy_from(PAINT)
    shmem.barrier_all()
    call()
    shmem.barrier_all()
    total = 0
    for box in boxes:
        items = box.numpy()
        painted = np.full(1, PAINT * 0x0101010101010101 % 2**64, "uint64").view(items.dtype)[0]
        width = items.dtype.itemsize
        bits = f"u{width}"
        total += width * int(np.count_nonzero(items.view(bits) != np.array(painted).view(bits)))
    return total


def room_for(plan, nbytes):
    """Whether a call can write each byte of the plan's boxes once at most."""
    return sum(box.size * box.dtype.itemsize for box in plan.inboxes) >= nbytes * shmem.n_pes()


def measure(family, case, clock):
    n = shmem.n_pes()
    plan, call = family.fused(case)
    bound = barrier[1, 1].bind()
    phases = family.phases(case)

    def one_after_the_other():
        for _, phase in phases:
            phase()
            bound()

    call()
    if hasattr(family, "graph"):
        launch, times = family.graph(case)
        more = {"graph": clock.seconds(launch)[0] / times}
    else:
        more = {}
    sent = family.nbytes(case, n) if hasattr(family, "nbytes") else plan.sends()[0]
    nbytes = arrived(plan, call) if room_for(plan, sent) else None
    if getattr(family, "IN_TURN", False):  # no phase can be called again without the others
        fused, phased = clock.seconds(call, one_after_the_other)
        alone = [min(times) for times in zip(*(in_turn(phases) for _ in range(20)), strict=True)]
    else:
        fused, phased, *alone = clock.seconds(call, one_after_the_other, *(p for _, p in phases))
    clock.say(
        label=family.label(case), n_pes=n, formula=sent, arrived=nbytes,
        fused=fused, phased=phased, alone=dict(zip([k for k, _ in phases], alone, strict=True)),
        **more,
    )  # fmt: skip


def in_turn(phases):
    """Seconds of each phase, all done once."""
    found = []
    for _, phase in phases:
        shmem.barrier_all()
        began = time.perf_counter()
        phase()
        shmem.barrier_all()
        found.append(time.perf_counter() - began)
    return found


def main():
    family = importlib.import_module(sys.argv[1])
    shmem.init(heap_size="2G")
    clock = Clock(shmem.my_pe(), shmem.barrier_all, share)
    for case in family.CASES:
        measure(family, case, clock)
        shmem.finalize()
        shmem.init(heap_size="2G")
    shmem.finalize()


main()
