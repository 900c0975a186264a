"""Prefill on some PEs and decode on others: pages of a KV cache travel layer by layer.

gpushmem run -n 4 examples/kv_transfer.py
"""

import numpy as np
from gpushmem.kernels import KVTransfer, TransferFailed

import gpushmem as shmem

LAYERS, PAGES, PAGE_SIZE, HEADS, DIM = 4, 16, 8, 4, 32

shmem.init()
me, n = shmem.my_pe(), shmem.n_pes()
# Half of the PEs prefill, and divide the heads; the others decode, each by itself all heads.
prefill = tuple(range(max(1, n // 2)))
decode = tuple(range(n // 2, n)) if n > 1 else (0,)
plan = KVTransfer(
    layers=LAYERS, pages=PAGES, page_size=PAGE_SIZE, kv_heads=HEADS, head_dim=DIM, dtype="float16",
    prefill=prefill, prefill_tp=len(prefill), decode=decode,
)  # fmt: skip


def keys_and_values(layer, first, last):
    """What the model makes of heads `first` to `last`: here anything."""
    rng = np.random.default_rng(layer)
    whole = rng.normal(size=(3, 2, PAGE_SIZE, HEADS, DIM)).astype("float16")
    return whole[:, :, :, first:last]


# Each decoding PE gets a request of 3 pages; the last one has no room for a second one.
table = [5, 12, 9]
if me in decode:
    plan.receive(decode.index(me), table)
    if me == decode[-1]:
        plan.refuse(len(decode))
if me in prefill:
    heads = plan.first_head, plan.first_head + plan.heads
    for request in range(len(decode)):
        plan.start(request, [0, 1, 2], to=request)
    for layer in range(LAYERS):
        plan.cache[layer][:3].copy_from(keys_and_values(layer, *heads))
        for request in range(len(decode)):
            plan.send(request, layer)  # travels while the next layer is computed
    refused = len(decode)
    plan.start(refused, [0, 1, 2], to=len(decode) - 1)
    for layer in range(LAYERS):
        plan.send(refused, layer)
if me in decode:
    request = decode.index(me)
    for layer in range(LAYERS):
        plan.wait(request, layer)  # then this layer's attention, while others travel
        got = plan.cache[layer].numpy()[table]
        assert (got == keys_and_values(layer, 0, HEADS)).all()
    print(f"PE {me} has all {LAYERS} layers of request {request}, from {len(prefill)} PEs")
if me in prefill:
    shmem.synchronize()
    assert all(plan.finished(request) for request in range(len(decode)))
    try:
        plan.finished(refused)
    except TransferFailed as error:
        print(f"PE {me}: {error}")
plan.free()
shmem.finalize()
