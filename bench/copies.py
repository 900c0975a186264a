"""Large copies, past the caches or through them: `python bench/copies.py`.

Each time is that of the operation, a barrier, and every PE reading what it has received; before
each, the senders have written what they send. The ratio is how much longer it takes through the
caches.
"""

import time

from harness import report, row

import gpushmem as shmem
from gpushmem.backends.cpu.sync.world import World

MEGABYTES = 1, 2, 4, 8, 16, 64
ROUNDS, MOVED = 7, 64 << 20  # series, and about how many bytes each moves
WAYS = {"past": 0, "through": 2**62}


@shmem.jit
def put(dst, src, pe):
    shmem.put(dst, src, pe)


def cases(n, n_pes):
    """Name, call, array that is received; for `n` bytes."""
    world, me = shmem.TEAM_WORLD, shmem.my_pe()
    src, dst, all_of_them = (shmem.zeros(k * n, "uint8") for k in (1, 1, n_pes))
    first, sums = (shmem.zeros(n // 4, "float32") for _ in range(2))
    to = (me + 1) % n_pes
    yield "put, in a kernel", lambda: put[1, 1](dst, src, to), src, dst
    yield "put, by the host", lambda: shmem.put(dst, src, to), src, dst
    yield "alltoall", lambda: shmem.alltoall(world, dst, src), src, dst
    yield "fcollect", lambda: shmem.fcollect(world, all_of_them, src), src, all_of_them
    yield "reduce, float32", lambda: shmem.reduce(world, sums, first, "sum"), first, sums
    for array in (src, dst, all_of_them, first, sums):
        shmem.free(array)


def once(call, sent, received):
    sent[:: 64 // sent.itemsize] += 1
    shmem.barrier_all()
    began = time.perf_counter()
    call()
    shmem.barrier_all()
    received.sum()
    return time.perf_counter() - began


def body(world):
    shmem.init(heap_size="1G")
    cached = world().native["cached"]
    limit, found = int(cached[0]), []
    for mb in MEGABYTES:
        for name, call, sent, received in cases(mb << 20, shmem.n_pes()):
            best = dict.fromkeys(WAYS, float("inf"))
            for _ in range(ROUNDS):
                for way, bound in WAYS.items():
                    cached[0] = bound
                    for _ in range(max(1, MOVED // (mb << 20) // 8)):
                        t = once(call, sent.numpy(), received.numpy().view("int32"))
                        best[way] = min(best[way], t)
                    cached[0] = limit
            found.append((f"{name}, {mb} MiB", best))
    shmem.finalize()
    return found


def the_world():
    """This process's."""
    import gc

    return next(each for each in gc.get_objects() if isinstance(each, World))


if __name__ == "__main__":
    rows = (
        row(f"{what}, {n} PEs", best["past"], "through the caches", best["through"], "",
            best["through"] / best["past"])
        for n in (2, 4) for what, best in shmem.spawn(body, n, (the_world,))[0]
    )  # fmt: skip
    report("copies", rows)
