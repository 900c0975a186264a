"""A request's KV cache from PEs that prefill to PEs that decode: fused, packed, and by mpi4py.

A call is a request: all layers. Half of the PEs send to the other half, all heads of one PE to one.
nixl_peer.py does the same by NIXL over UCX.
"""

import time
from itertools import count

import numpy as np

NAME = "KV-cache transfer"
IN_TURN = True  # each phase is of one side
LAYERS, PAGE_SIZE, HEADS, DIM, DTYPE = 4, 16, 4, 128, "float16"
AHEAD = 4  # requests whose pages are named before they are sent
PAGE = 2 * PAGE_SIZE * HEADS * DIM  # numbers
CASES = [{"pages": pages} for pages in (1, 2, 8, 32, 128)]


def label(case):
    return f"{case['pages'] * PAGE * 2 // 1024} KiB a layer"


def nbytes(case, n):
    return LAYERS * case["pages"] * PAGE * 2


def tables(case):
    """Page numbers here and there: of twice as many, in no order."""
    rng = np.random.default_rng(0)
    return [rng.permutation(2 * case["pages"])[: case["pages"]].astype("int32") for _ in range(2)]


def fused(case):
    from gpushmem.kernels import KVTransfer

    import gpushmem as shmem

    me, half = shmem.my_pe(), shmem.n_pes() // 2
    plan = KVTransfer(
        layers=LAYERS, pages=2 * case["pages"], page_size=PAGE_SIZE, kv_heads=HEADS * half,
        head_dim=DIM, dtype=DTYPE, prefill=tuple(range(half)), prefill_tp=half,
        decode=tuple(range(half, 2 * half)), decode_tp=half, requests=4 + AHEAD,
        most_pages=case["pages"],
    )  # fmt: skip
    mine, theirs = (shmem.to_device(table) for table in tables(case))
    numbers = count()
    for request in range(AHEAD if me >= half else 0):
        plan.receive(request, theirs)

    def call():
        request = next(numbers)
        while request >= 4 and not plan.finished(request - 4):
            time.sleep(1e-4)  # a core is for the blocks
        if me < half:
            plan.start(request, mine)
            plan.send(request)
        else:
            plan.receive(request + AHEAD, theirs)
            plan.wait(request)

    return plan, call


def phases(case):
    from gpushmem.kernels import Plan, begin, end, wait_for

    import gpushmem as shmem

    @shmem.jit(collective=True)
    def pack(cache, pages, packed, team, epochs):
        for layer in range(packed.shape[0]):
            shmem.copy_rows_block(packed[layer], cache[layer], pages)
        end(epochs)

    @shmem.jit(collective=True)
    def send(packed, boxes, arrived, other, sends, team, epochs):
        epoch = begin(epochs)
        if sends:
            shmem.put_signal_block(boxes, packed, arrived, epoch, shmem.SIGNAL_SET, other)
        else:
            wait_for(arrived, epoch)
        end(epochs)

    plan, copies, pages = Plan(), Plan(), case["pages"]
    me, half = shmem.my_pe(), shmem.n_pes() // 2
    mine, theirs = tables(case)
    back = np.full(2 * pages, -1, "int32")
    back[theirs] = np.arange(pages)
    cache = shmem.zeros((LAYERS, 2 * pages, PAGE), DTYPE)
    packed, boxes = (plan.memory(LAYERS, pages, PAGE, dtype=DTYPE) for _ in range(2))
    arrived, flats = plan.memory(1, dtype="uint64"), (packed.reshape(-1), boxes.reshape(-1))
    mine, back, sends = shmem.to_device(mine), shmem.to_device(back), me < half
    other = (me + half) % (2 * half)
    nothing = lambda: None  # noqa: E731
    return [
        ("pack", (lambda: copies.launch(pack, 0, cache, mine, packed)) if sends else nothing),
        ("send", lambda: plan.launch(send, 0, *flats, arrived, other, sends)),
        ("unpack", nothing if sends else (lambda: copies.launch(pack, 0, boxes, back, cache))),
    ]


def mpi(case, comm):
    me, half, pages = comm.rank, comm.size // 2, case["pages"]
    mine, theirs = tables(case)
    cache = np.zeros((LAYERS, 2 * pages, PAGE), DTYPE)
    packed = np.zeros((LAYERS, pages, PAGE), DTYPE)
    other, words = (me + half) % comm.size, packed.view("uint8")

    def call():
        if me < half:
            waits = []
            for layer in range(LAYERS):
                np.take(cache[layer], mine, axis=0, out=packed[layer], mode="clip")
                waits.append(comm.Isend(words[layer], other, layer))
        else:
            waits = [comm.Irecv(words[layer], other, layer) for layer in range(LAYERS)]
            for layer, request in enumerate(waits):
                request.Wait()
                cache[layer][theirs] = packed[layer]
        for request in waits:
            request.Wait()

    return call
