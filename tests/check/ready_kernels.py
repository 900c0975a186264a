"""Run a kernel of `kernels/` as on a GPU, with blocks of several threads, on few numbers.

What `test_every_order_is_needed` runs under the checker: `ready_kernels.py NAME`.
"""

import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
from gpushmem.kernels import (
    BFS,
    FFT,
    NO_TASK,
    AllGatherGemm,
    AllReduce,
    AllReduceRMSNorm,
    AllToAll,
    AllToAllV,
    Arena,
    Broadcast,
    EmbeddingBags,
    ExclusiveScan,
    ExpertParallel,
    FlashDecode,
    GemmAllReduce,
    GemmReduceScatter,
    HaloExchange,
    Jacobi,
    KVTransfer,
    MoE,
    PipelinedLayers,
    PipelineExchange,
    Plan,
    ReduceScatter,
    RingAttention,
    RingAttentionBackward,
    SampleSort,
    SpMV,
    TaskPool,
    TransferFailed,
    Ulysses,
    ZeroAdam,
    ZeroMuon,
    begin,
    end,
    expert_ffn,
    mcs_lock,
    mcs_unlock,
    next_task,
    pop,
    push,
    push_task,
    route,
    tell,
    ticket_lock,
    ticket_unlock,
    wait_for,
)
from numba import cuda

import gpushmem as shmem

GPU = {"threads": 32, "blocks": 2}
CALLS = 3
F4 = "float32"


def array(*shape, dtype=F4):
    """Device memory that can be sent from, also to another node."""
    rng = np.random.default_rng([shmem.my_pe(), *shape])
    return shmem.register(shmem.to_device(rng.normal(size=shape).astype(dtype)))


@shmem.jit(collective=True)
def told(box, signal, out, team, epochs):
    """Each thread stores a number to the next PE, and reads what another one has stored here."""
    i, pe, epoch = cuda.threadIdx.x, (shmem.my_pe() + 1) % shmem.n_pes(), begin(epochs)
    shmem.peer_array(box, pe)[epoch % 2, i] = i
    tell(signal, epoch, pe)
    wait_for(signal, epoch)
    out[i] = box[epoch % 2, 31 - i]
    end(epochs)


def parts():
    plan, box = Plan(threads=32, blocks=1), shmem.zeros((2, 32), F4)
    signal, out = shmem.zeros(1, "uint64"), shmem.zeros(32, F4)
    plan.launch(told, 0, box, signal, out)


def as_on_a_gpu(plan):
    """A plan that launches the kernels that it has for GPUs."""
    plan.tuning = replace(plan.tuning, multiprocessors=1)
    return plan


def all_reduce(algorithm, wire=None, threads=32):
    plan = AllReduce(size=37, dtype=F4, algorithm=algorithm, wire=wire, threads=threads, blocks=2)
    x = array(37)
    for _ in range(CALLS):
        plan(x)


def in_place():
    plan, x = AllReduce(size=37, dtype=F4, algorithm="in_place", **GPU), shmem.zeros(37, F4)
    for call in range(CALLS):
        x.copy_from(call)  # others load it in the call, and store to it until the call is over
        plan(x)


def streams():
    plan = AllReduce(size=37, dtype=F4, algorithm="one_shot", **GPU)
    x, two = array(37), (shmem.stream(), shmem.stream())
    for call in range(CALLS):
        plan(x, stream=two[call % 2])
    shmem.synchronize()


def zero(clip=None, later=False):
    """Parts of two pieces in each block, and a bucket of one, which are started before or not."""
    size = 128 * shmem.n_pes() - 5
    buckets = size, 30
    options = {"clip": clip, "overlap_param_gather": later, **GPU}
    plan = as_on_a_gpu(ZeroAdam(size=sum(buckets), dtype=F4, buckets=buckets, **options))
    plan.piece, size = 32, sum(buckets)
    gradients, parameters = array(size), array(size)
    for call in range(CALLS):
        for _ in range(call):
            plan.start(gradients, parameters)
        plan(gradients, parameters)
        for _ in range(2 * later):
            plan.gather(parameters)
        gradients.copy_from(np.ones(size, F4))


def muon():
    """Matrices of several pieces in each block, more than one on a PE."""
    shapes = [(9, 8), (16, 8), (8, 12), (8, 8)] * shmem.n_pes()
    plan = ZeroMuon(shapes=shapes, buckets=(2, len(shapes) - 2), dtype=F4, product_dtype=F4, **GPU)
    plan.piece = 32
    gradients, parameters = array(plan.size), array(plan.size)
    for call in range(CALLS):
        if call:
            plan.start(gradients, parameters)
        plan(gradients, parameters)
        gradients.copy_from(np.ones(plan.size, F4))


def norm(algorithm, tokens, hidden, threads):
    plan = AllReduceRMSNorm(
        tokens=tokens, hidden=hidden, dtype=F4, algorithm=algorithm, threads=threads, blocks=2
    )
    shape = tokens, hidden
    x, residual, weight, out = array(*shape), array(*shape), array(hidden), array(*shape)
    for _ in range(CALLS):
        plan(x, residual, weight, out=out)


def collective(kind):
    plan = kind(size=70, dtype=F4, **GPU)
    plan.piece = 32
    n = shmem.n_pes()
    x = array(70 if kind in (Broadcast, ExclusiveScan) else 70 * n)
    one = kind in (ReduceScatter, ExclusiveScan)
    out = {} if kind is Broadcast else {"out": array(70 if one else 70 * n)}
    for _ in range(CALLS):
        plan(x, **out)


@shmem.jit
def clear(x):
    for i in range(cuda.threadIdx.x, x.size, cuda.blockDim.x):
        x[i] = 0


def rows(algorithm="direct"):
    """Pairs of PEs have different numbers of rounds, and no PE has room for all."""
    n, me = shmem.n_pes(), shmem.my_pe()
    plan = AllToAllV(rows=40 * n, row=(3,), dtype=F4, algorithm=algorithm, **GPU)
    plan.piece = 16
    x, received = array(40 * (n + 1), 3), shmem.device_array(n, "int64")
    out = shmem.zeros((25 * n, 3), F4) if algorithm == "put" else array(25 * n, 3)
    for call in range(CALLS):
        counts = (np.arange(n) + me + call) % 3 * 40  # so many come, too
        plan(x, shmem.to_device(counts), out=out, received=received)
        assert (received.numpy() == counts).all()
        x.copy_from(np.ones(x.shape, F4))


def product(kind, rows_a, rows_out, direct=True, method="kernel", in_place=False):
    n = shmem.n_pes()
    options = {} if direct else {"direct": False}
    if method == "kernel":
        options["tile"] = 2, 5
    of = "kernel" if method == "at once" else method
    if in_place:
        options |= {"in_place": True, "tile": (4, 9)}  # two parts
    plan = kind(m=6, n=9, k=4, dtype=F4, method=of, **GPU, **options)
    if method == "at once":
        plan.tile = 6, 2
        plan._prepare_at_once(9)
    a, b = array(6 * (n if rows_a else 1), 4), array(4, 9)
    out = shmem.empty((6, 9), F4) if in_place else array(6 * (n if rows_out else 1), 9)
    for _ in range(CALLS):
        plan(a, b, out=out)
        clear[1, 32](a.reshape(-1))  # which may be changed now


def jacobi(shape, grid, periodic, blocks=2):
    plan = Jacobi(shape=shape, grid=grid, dtype=F4, periodic=periodic, threads=32, blocks=blocks)
    u = array(*(k + 2 for k in plan.local_shape))
    u.copy_from(0)
    plan.exchange(u)
    for iterations in (3, 2):
        plan(u, iterations)
    plan.residual(u)


def halo():
    for shape, axis, wide in (((3, 5, 20), 1, (3, 9, 20)), ((9, 3), 1, (9, 7))):
        plan = HaloExchange(shape=shape, width=2, axis=axis, dtype=F4, periodic=True, **GPU)
        x, y = array(*shape), array(*wide)
        for _ in range(CALLS):
            plan(x, out=y)
            plan.accumulate(y, out=x)


def moe(method="kernel"):
    rows, experts, hidden, inner, top_k = 7, 4, 8, 12, 2
    plan = MoE(
        tokens=rows, hidden=hidden, inner=inner, experts=experts, top_k=top_k, dtype=F4, tile=4,
        enough=2, method=method, **GPU,
    )  # fmt: skip
    local = plan.local_experts
    w1, w2, out = array(local, hidden, inner), array(local, inner, hidden), array(rows, hidden)
    chosen, weights = shmem.device_array((rows, top_k), "int32"), array(rows, top_k)
    route(array(rows, experts), experts=chosen, weights=weights)
    x = array(rows, hidden)
    for _ in range(CALLS):
        plan(x, chosen, weights, w1, w2, out=out)
        x.copy_from(np.ones(x.shape, F4))


def experts(form, wire=None):
    rows, experts, hidden, inner, top_k = 7, 4, 8, 12, 2
    plan = ExpertParallel(
        tokens=rows, hidden=hidden, experts=experts, top_k=top_k, dtype=F4, form=form, wire=wire,
        **GPU,
    )  # fmt: skip
    chosen, weights = shmem.device_array((rows, top_k), "int32"), array(rows, top_k)
    out, x, local = array(rows, hidden), array(rows, hidden), plan.local_experts
    w1, w2 = array(local, hidden, inner), array(local, inner, hidden)
    y, layer = array(*plan.received.rows.shape), array(2, 4, inner)
    route(array(rows, experts), experts=chosen, weights=weights)
    for call in range(CALLS):
        hooked = {"return_hook": call == 1}  # in two launches, or in one
        received = plan.dispatch(x, chosen, **hooked)
        if call == 1:
            received, receive = received
            receive()
        x.copy_from(np.ones(x.shape, F4))
        expert_ffn(received, w1, w2, out=y, hidden=layer, threads=32)
        receive = plan.combine(y, weights, out=out, **hooked)
        if call == 1:
            receive()
        y.copy_from(np.ones(y.shape, F4))


def pages_to_the_last(wire=None, timeout=None):
    """A plan with which all PEs but the last send to it, by two warps of a block."""
    last = shmem.n_pes() - 1
    return last, as_on_a_gpu(KVTransfer(
        layers=2, pages=4, page_size=2, kv_heads=2, head_dim=16, dtype=F4,
        prefill=tuple(range(last)), prefill_tp=last, decode=(last,), requests=1, wire=wire,
        threads=64, blocks=2, timeout=timeout,
    ))  # fmt: skip


def over(plan, request):
    """Whether it is over with its pages; waits, but not for ever."""
    late = time.monotonic() + 20
    try:
        while not plan.finished(request):
            time.sleep(0.01)
            assert time.monotonic() < late, "it is never over"
    except TransferFailed:
        return False
    return True


def given_up():
    """Requests that one side gives up, or the other, in a slot that is used again; refusals."""
    last, plan = pages_to_the_last()
    for call in range(2 * CALLS):
        if shmem.my_pe() == last:
            plan.receive(call, [3, 1])
            if call % 2 or call == 4:  # then by both sides, and nobody looks at the first layer
                plan.abort(call)
        else:
            plan.start(call, [0, 2])
        if call % 4 == 0:
            shmem.barrier_all()  # who gives up finds pages named, and tells of both layers
        if shmem.my_pe() < last:
            if call % 4:
                plan.send(call, 0)
            if call % 2:
                plan.send(call, 1)
            else:
                plan.abort(call)
        over(plan, call)
        plan.cache[1].copy_from(call)
    for call in range(2 * CALLS, 2 * CALLS + 2):
        if shmem.my_pe() == last:
            plan.refuse(call)
        else:
            plan.start(call, [0, 2])
            plan.send(call)
            over(plan, call)


def pages(*args):
    """A chunk is sent ahead, and slots are used again; at last layers are sent by one launch."""
    last, plan = pages_to_the_last(*args)
    for call in range(CALLS):
        if shmem.my_pe() == last:
            plan.receive(call, [3, 1])
        else:
            plan.start(call, [0, 2])
        for layer in (0, 1) if call < CALLS - 1 else (None,):
            caches = plan.cache if layer is None else [plan.cache[layer]]
            if shmem.my_pe() == last:
                plan.wait(call, layer)
                for cache in caches:
                    cache.numpy()
                continue
            for cache in caches:
                cache.copy_from(call)
            plan.send(call, layer, last=1)
            plan.send(call, layer, first=1)
            for cache in caches:
                cache.copy_from(-1)
        assert over(plan, call)


def pipeline(kind, window):
    """Boxes, places and tiles are used again; items come in the order of the stages."""
    me, n, shape = shmem.my_pe(), shmem.n_pes(), (4, 6)
    plan = PipelinedLayers(
        rows=4, hidden=6, layers=2, microbatches=2 * n, dtype=F4, kind=kind, window=window,
        tile=(3, 6), **GPU,
    )  # fmt: skip
    weights, batch = array(1, 2, 6, 6), array(2 * n, *shape)
    gradients, loss = array(1, 2, 6, 6), array(2 * n, 4)
    for _ in range(CALLS):
        plan(weights, gradients=gradients, x=batch, target=batch, loss=loss)
        weights.copy_from(0.1)
    items = PipelineExchange(shape=shape, dtype=F4, window=1, **GPU)
    x = array(*shape)
    for _ in range(CALLS):
        if me > 0:
            items.recv_forward(out=x)
        if me < n - 1:
            items.send_forward(x)
            items.recv_backward(out=x)
        if me > 0:
            items.send_backward(x)
        x.copy_from(me)


def decode(method="tiles"):
    plan = FlashDecode(
        batch=2, heads=2, kv_heads=1, head_dim=16, pages=4, page_size=2, most_pages=2,
        dtype="float16", splits=2, method=method, **GPU,
    )  # fmt: skip
    q, cache, out = (
        array(*shape, dtype="float16") for shape in ((2, 1, 2, 16), (4, 2, 2, 1, 16), (2, 1, 2, 16))
    )
    tables = shmem.to_device(np.array([[0, 3], [2, 1]], "int32"))
    lengths = shmem.to_device(np.array([[4], [3]], "int32"))
    for _ in range(CALLS):
        plan(q, cache, tables, lengths, out=out)
        q.copy_from(0.5)


def sort():
    plan = SampleSort(size=90, dtype="int32", values=F4, method="kernel", **GPU)
    keys, values, out_values = array(90, dtype="int32"), array(90), array(plan.capacity)
    out = array(plan.capacity, dtype="int32")
    received = shmem.device_array(shmem.n_pes(), "int64")
    for call in range(CALLS):
        plan(keys, out=out, received=received, values=values, out_values=out_values)
        keys.copy_from(np.arange(90) % (20 + call))
        values.copy_from(call)


def attention(kind):
    """With blocks that travel: all the way, a part of it, not at all; and who sees nothing."""
    shape = tokens, heads, _ = 6, 2, 4
    for window, last in ((None, 6 * shmem.n_pes()), (3, 6 * shmem.n_pes()), (0, 3)):
        ends = shmem.to_device(np.array([0, last], "int32"))
        plan = kind(
            tokens=tokens, heads=heads, head_dim=4, dtype=F4, causal=True, window=window,
            tile=(3, 5), **GPU,
        )  # fmt: skip
        q, k, v, out, dout, dq, dk, dv = (array(*shape) for _ in range(8))
        lse = array(heads, tokens)
        for _ in range(CALLS):
            if kind is RingAttention:
                plan(q, k, v, out=out, lse=lse, cu_seqlens=ends)
            else:
                plan(dout, q, k, v, out, lse, dq=dq, dk=dk, dv=dv, cu_seqlens=ends)
            k.copy_from(0.5)
            v.copy_from(0.5)


def attention_library(kind):
    """Blocks are sent while PyTorch attends to others, in places that are used again.

    What is sent is made on the stream of the calls.
    """
    plan = kind(tokens=6, heads=2, head_dim=8, dtype=F4, causal=True, method="library", **GPU)
    q, k, v, out, dout, dq, dk, dv = (array(6, 2, 8) for _ in range(8))
    lse, stream = array(2, 6), shmem.stream(nonblocking=True)
    for _ in range(CALLS):
        for x in (k, v):
            clear[1, 32, stream](x.reshape(-1))
        if kind is RingAttention:
            plan(q, k, v, out=out, lse=lse, stream=stream)
        else:
            plan(dout, q, k, v, out, lse, dq=dq, dk=dk, dv=dv, stream=stream)


def heads_and_tokens():
    n = shmem.n_pes()
    plan = Ulysses(tokens=5, heads=(2 * n, n, n), head_dim=4, dtype=F4, **GPU)
    x, out, (cos, sin) = array(5, 4 * n, 4), array(5, 4 * n, 4), array(2, 5, 2)
    parts = [array(5 * n, heads, 4) for heads in (2, 1, 1)]
    for _ in range(CALLS):
        plan.to_heads(x, *parts, cos=cos, sin=sin)
        x.copy_from(1)
        plan.to_tokens(*parts, out=out, cos=cos, sin=sin)
        for part in parts:
            part.copy_from(1)


def fft(method=None, rows=16):
    """By tiles, as on GPUs: two PEs, so that each has as many rows."""
    c8, world = "complex64", shmem.TEAM_WORLD
    team = shmem.team_split_strided(world, 0, 1, 2) if method else world
    plan = FFT(shape=(rows, rows // 2), dtype=c8, team=team, method=method, **GPU)
    x, out = (
        shmem.device_array(s, c8) for s in ((len(plan.rows), rows // 2), (len(plan.columns), rows))
    )
    for _ in range(CALLS if team else 0):
        x.copy_from(1)
        plan(x, out=out)


def graph_of(rows, far):
    """Each row has entries in its own column, the next one, and so many of the next PE's."""
    row, first, total = np.arange(rows), rows * shmem.my_pe(), rows * shmem.n_pes()
    columns = [first + row, (first + row + 1) % total]
    columns += [(first + rows + (row + k) % rows) % total for k in range(far)]
    each = len(columns)
    return SimpleNamespace(
        indptr=each * np.arange(rows + 1), indices=np.stack(columns, axis=1).ravel(),
        data=np.ones(each * rows, F4),
    )  # fmt: skip


def spmv():
    plan = SpMV(graph_of(37, 1), **GPU)
    x, out = array(37), array(37)
    for _ in range(CALLS):
        plan(x, out=out)
        plan(out, out=x)


def bfs():
    plan = BFS(graph_of(5, 5), **GPU)
    parents, distances = shmem.device_array(5, "int64"), shmem.device_array(5, "int32")
    for call in range(CALLS):
        plan(call, parents=parents, distances=distances)


def bags(dim=7):
    plan = EmbeddingBags(rows=20, dim=dim, bags=5, most=3, dtype=F4, **GPU)
    plan._by_lanes = dim % 4 == 0  # as on GPUs
    table, out = array(len(plan.rows), len(plan.columns)), array(5, dim)
    numbers = shmem.register(shmem.to_device(np.arange(15, dtype="int32").reshape(5, 3)))
    for _ in range(CALLS):
        plan(table, numbers, out=out)
        table.copy_from(1)
        numbers.copy_from(np.roll(numbers.numpy(), 1))


@shmem.jit
def send(part, source, pe):
    shmem.put_block(part, source, pe)
    shmem.quiet()


@shmem.jit
def fetch(out, part, pe):
    shmem.get_block(out, part, pe)


def arena():
    """Memory at one place again and again: others write to it at once, and read it at last."""
    arena, other = Arena(1 << 12), (shmem.my_pe() + 1) % shmem.n_pes()
    source, out = shmem.zeros(64, "uint8"), shmem.zeros(64, "uint8")
    for _ in range(CALLS):
        part = arena.allocate(shmem.TEAM_WORLD, 64)
        send[1, 32](part, source, other)
        shmem.barrier_all()
        fetch[1, 32](out, part, other)
        arena.release(shmem.TEAM_WORLD, part)


@shmem.jit(device=True)
def add_one(number, mine, pe):
    """By `get` and `put`, which others may not overlap; `mine` is the thread's own memory."""
    shmem.get(mine, number, pe)
    mine[0] += 1
    shmem.put(number, mine, pe)


@shmem.jit
def with_tickets(words, number, mine):
    """A number on the last PE, locked on the first."""
    for _ in range(CALLS):
        ticket = ticket_lock(words, 0)
        add_one(number, mine, shmem.n_pes() - 1)
        ticket_unlock(words, ticket, 0)


@shmem.jit
def with_mcs(words, number, mine):
    mcs_lock(words, 0)
    add_one(number, mine, shmem.n_pes() - 1)
    mcs_unlock(words, 0)


def lock(kernel):
    kernel[1, 1](shmem.zeros(3, "uint64"), shmem.zeros(1, F4), array(1))


@shmem.jit
def exchanged(words, cells, item, out):
    """Each PE pushes and pops as many items; `item` and `out` are looked at by all threads."""
    for k in range(CALLS):
        item[cuda.threadIdx.x] = k
        cuda.syncthreads()
        push(words, cells, item, 0)
        push(words, cells, item, 0)
        pop(words, cells, out, 0)
        pop(words, cells, out, 0)
        item[cuda.threadIdx.x] = out[31 - cuda.threadIdx.x]
        cuda.syncthreads()


def queue():
    n = 2 * shmem.n_pes()  # all may push both before anybody pops
    words, cells, (item, out) = shmem.zeros(2 + n, "uint64"), shmem.zeros((n, 32), F4), array(2, 32)
    exchanged[1, 32](words, cells, item, out)


@shmem.jit(collective=True)
def divided(data, mine, tasks, team, epochs):
    """Numbers on the first PE: who pushes a task has written its number, who gets it adds to it."""
    epoch, first = begin(epochs), 4 * (shmem.my_pe() * cuda.gridDim.x + cuda.blockIdx.x)
    own = mine[cuda.grid(1) :][:1]
    if cuda.threadIdx.x == 0:
        for k in range(first, first + 4):
            own[0] = k
            shmem.put(data[k : k + 1], own, 0)
            push_task(tasks, k)
    task = next_task(tasks, team, epoch)
    while task != NO_TASK:
        if cuda.threadIdx.x == task:
            add_one(data[task : task + 1], own, 0)
        task = next_task(tasks, team, epoch)
    end(epochs)


def tasks():
    with TaskPool(places=64, **GPU) as pool:
        data = shmem.zeros(4 * GPU["blocks"] * shmem.n_pes(), "int64")
        mine = array(GPU["blocks"] * GPU["threads"], dtype="int64")
        for _ in range(CALLS):
            pool(divided, data, mine)


RUNS = {
    "told": (parts,),
    "tickets": (lock, with_tickets),
    "mcs": (lock, with_mcs),
    "queue": (queue,),
    "tasks": (tasks,),
    "arena": (arena,),
    "one_shot": (all_reduce, "one_shot"),
    "two_shot": (all_reduce, "two_shot"),
    "far": (all_reduce, "one_shot"),
    "wire": (all_reduce, "one_shot", "float8_e4m3"),
    "wire_two_shot": (all_reduce, "two_shot", "float8_e4m3", 8),  # groups are of one thread
    "ring": (all_reduce, "ring"),
    "multicast": (all_reduce, "multicast"),
    "ll": (all_reduce, "ll"),
    "ll128": (all_reduce, "ll128_two_shot"),
    "in_place": (in_place,),
    "exchange": (collective, AllToAll),
    "reduce_scatter": (collective, ReduceScatter),
    "scan": (collective, ExclusiveScan),
    "broadcast": (collective, Broadcast),
    "rows": (rows,),
    "rows_put": (rows, "put"),
    "rows_two_level": (rows, "two_level"),
    "sort": (sort,),
    "ring_attention": (attention, RingAttention),
    "ring_attention_backward": (attention, RingAttentionBackward),
    "attention_library": (attention_library, RingAttention),
    "attention_library_backward": (attention_library, RingAttentionBackward),
    "ulysses": (heads_and_tokens,),
    "ulysses_far": (heads_and_tokens,),
    "zero": (zero,),
    "zero_clipped": (zero, 1.0),
    "zero_later": (zero, None, True),
    "muon": (muon,),
    "streams": (streams,),
    "norm": (norm, "one_shot", 5, 33, 32),
    # A part begins at an element that is not the first of a round of the threads.
    "norm_two_shot": (norm, "two_shot", 2, 100, 96),
    "all_gather_gemm": (product, AllGatherGemm, False, True),
    "gemm_reduce_scatter": (product, GemmReduceScatter, True, False),
    "gemm_all_reduce": (product, GemmAllReduce, False, False),
    "gemm_sent": (product, GemmReduceScatter, True, False, False),
    "gemm_at_once": (product, GemmReduceScatter, True, False, True, "at once"),
    "gather_beside": (product, AllGatherGemm, False, True, True, "library"),
    "scatter_beside": (product, GemmReduceScatter, True, False, True, "library"),
    "reduce_beside": (product, GemmAllReduce, False, False, True, "library"),
    "reduce_in_place": (product, GemmAllReduce, False, False, True, "library", True),
    "jacobi2": (jacobi, (8, 9), None, True),
    "jacobi3": (jacobi, (6, 5, 7), (1, 3, 1), False),
    "jacobi_one_block": (jacobi, (8, 9), (1, 3), True, 1),
    "halo": (halo,),
    "moe": (moe,),
    "moe_library": (moe, "library"),
    "low_latency": (experts, "low_latency"),
    "throughput": (experts, "throughput"),
    "low_latency_far": (experts, "low_latency"),
    "throughput_far": (experts, "throughput"),
    "int8": (experts, "low_latency", "int8"),
    "pages": (pages,),
    "pages_8_bits": (pages, "float8_e4m3"),
    "pages_8_bits_far": (pages, "float8_e4m3", 60.0),
    "pages_given_up": (given_up,),
    "decode": (decode,),
    "decode_lanes": (decode, "lanes"),
    "pipeline": (pipeline, "1f1b", 1),
    "pipeline_far": (pipeline, "zero_bubble", 2),
    "fft": (fft,),
    "fft_tiles": (fft, "tiles", 128),
    "spmv": (spmv,),
    "spmv_far": (spmv,),
    "bfs": (bfs,),
    "bags": (bags,),
    "bags_lanes": (bags, 16),
    "bags_far": (bags,),
}  # fmt: skip

if __name__ == "__main__":
    shmem.init()
    if sys.argv[1].endswith("far"):
        Plan.reachable = False  # as on several machines
    function, *args = RUNS[sys.argv[1]]
    function(*args)
    shmem.finalize()
