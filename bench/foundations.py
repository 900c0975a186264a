"""The foundations: a launch, a loop nest, a copy, a start. Ratios, both sides in one run.

python bench/foundations.py
"""

import subprocess
import sys
import tempfile
import threading
import time
from itertools import chain, product
from pathlib import Path

import numpy as np
from gpushmem.kernels import AllGatherGemm, GemmAllReduce, GemmReduceScatter
from harness import best_of, report, row
from numba import cuda, njit, types

import gpushmem as shmem

N = 4 << 20
LOOP = 1_000_000
BARRIERS = 10_000
LARGE = 64 << 20
COPIES = 8  # of the large array, per measurement: the launch is measured elsewhere


@shmem.jit
def saxpy(out, a, x, y):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


@njit
def saxpy_loop(out, a, x, y):
    for i in range(out.size):
        out[i] = a * x[i] + y[i]


@shmem.jit
def nothing():
    pass


@shmem.jit
def meet_many(n):
    for _ in range(n):
        cuda.syncthreads()


@shmem.jit
def put_many(dst, src, n):
    for _ in range(n):
        shmem.put(dst, src, 0)


memcpy = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.intp))


@njit
def copy_many(dst, src, nbytes, n):
    """The same bytes by the C library's memcpy, addresses and size known at run time only."""
    for _ in range(n):
        memcpy(dst, src, nbytes)


def empty_launch():
    """An empty launch, and the hand-over that it consists of."""

    def empty():
        nothing[1, 1]()
        shmem.synchronize()

    def hand_over():
        done = threading.Event()
        requests.append(done)
        wake.release()
        done.wait()

    requests, wake = [], threading.Semaphore(0)

    def worker():
        while wake.acquire():
            requests.pop().set()

    threading.Thread(target=worker, daemon=True).start()
    empty()
    return empty, hand_over


def launches():
    """Row: saxpy against a loop; and an empty launch against the hand-over it consists of."""
    x, y = (shmem.to_device(np.random.rand(N).astype("f4")) for _ in range(2))
    out = shmem.device_array(N, "f4")
    hx, hy, hout = x.numpy(), y.numpy(), np.empty(N, "f4")
    a = np.float32(2)

    def ours():
        saxpy[(N + 255) // 256, 256](out, a, x, y)
        shmem.synchronize()

    def theirs():
        saxpy_loop(hout, a, hx, hy)

    ours(), theirs()
    np.testing.assert_array_equal(out.numpy(), hout)
    t, peer = best_of(30, ours, theirs)
    yield row(
        "saxpy, 4 M floats, 256 threads a block", t, "njit loop", peer, "speed >= 0.33", peer / t
    )

    t, peer = best_of(300, *empty_launch())
    yield row(
        "empty launch and synchronize", t, "hand-over to a thread and back", peer, "", peer / t
    )

    def hundred():
        for _ in range(100):
            nothing[1, 1]()
        shmem.synchronize()

    stream = shmem.stream()
    bound = nothing[1, 1, stream].bind()
    with shmem.capture(stream) as graph:
        for _ in range(100):
            bound()

    def hundred_bound():
        for _ in range(100):
            bound()
        stream.synchronize()

    def captured():
        graph.launch(stream)
        stream.synchronize()

    for what, launch, aim in (
        ("empty launch", hundred, "<= 15 us"), ("bound empty launch", hundred_bound, "<= 3 us"),
        ("captured empty launch", captured, "<= 1 us"),
    ):  # fmt: skip
        (t,) = best_of(100, launch)
        yield row(f"{what}, of 100 in a row", t / 100, "", None, aim, None)


def barriers():
    """Row: one `syncthreads` of a block of 256 threads."""

    def ours():
        meet_many[1, 256](BARRIERS)
        shmem.synchronize()

    ours()
    (t,) = best_of(20, ours)
    yield row("syncthreads of 256 threads", t / BARRIERS, "", None, "", None)


def small_puts():
    """A kernel that puts 8 bytes `LOOP` times, and a loop that copies them by memcpy."""
    dst, src = shmem.zeros(1, "int64"), shmem.ones(1, "int64")
    hdst, hsrc = np.zeros(1, "int64"), np.ones(1, "int64")

    def ours():
        put_many[1, 1](dst, src, LOOP)
        shmem.synchronize()

    def theirs():
        copy_many(hdst.ctypes.data, hsrc.ctypes.data, hsrc.nbytes, LOOP)

    ours(), theirs()
    return ours, theirs


def copies():
    """Rows: 8-byte puts in a kernel's loop, and one of 64 MiB, against memcpy of the same bytes."""
    t, peer = (s / LOOP for s in best_of(20, *small_puts()))
    yield row(
        "put of 8 bytes, in a loop in one thread", t, "memcpy in an njit loop", peer, "", peer / t
    )

    big_dst, big_src = shmem.zeros(LARGE, "int8"), shmem.ones(LARGE, "int8")
    view_dst, view_src = np.asarray(big_dst), np.asarray(big_src)
    host_dst, host_src = np.zeros(LARGE, "int8"), np.ones(LARGE, "int8")

    def large():
        put_many[1, 1](big_dst, big_src, COPIES)
        shmem.synchronize()

    large()
    pairs = ((view_dst, view_src), (host_dst, host_src))
    peers = [lambda p=p: [np.copyto(*p) for _ in range(COPIES)] for p in pairs]
    t, same, private = (s / COPIES for s in best_of(20, large, *peers))
    yield row("put of 64 MiB", t, "memcpy, same arrays", same, "speed >= 0.9", same / t)
    yield row("put of 64 MiB", t, "memcpy, private arrays", private, "speed >= 0.9", private / t)


def starts():
    """Row: a job of 16 PEs that meet and end, against importing what it runs on, once."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "hello.py"
        script.write_text("import gpushmem as s\ns.init()\ns.barrier_all()\ns.finalize()\n")
        command = [sys.executable, "-m", "gpushmem", "run", "-n", "16", str(script)]
        imports = [sys.executable, "-c", "import numba.cuda"]
        t, peer = best_of(
            5, *(lambda c=c: subprocess.run(c, check=True) for c in (command, imports))
        )
    yield row(
        "gpushmem run -n 16: init, barrier, finalize",
        t,
        "python -c 'import numba.cuda'",
        peer,
        "",
        peer / t,
    )


def call_times(size):
    """For each product by the library, seconds of a call that is a graph, and of one that is not.

    Those that the host takes, and those until the product is there.
    """
    shmem.init()
    found, stream, n = {}, shmem.stream(), shmem.n_pes()
    for plan_class in (AllGatherGemm, GemmReduceScatter, GemmAllReduce):
        rows = {"a": size, "b": size, "out": size}
        rows |= {AllGatherGemm: {"out": n * size}, GemmReduceScatter: {"a": n * size}}.get(
            plan_class, {}
        )
        a, b, out = (shmem.device_array((m, size), "float32") for m in rows.values())
        with plan_class(m=size, n=size, k=size, dtype="float32", method="library") as plan:
            for _, repeats in product(range(9), (plan.graphs, 0)):
                plan.graphs = repeats
                for calls in (4, 100):  # the first ones make the graph, and wake the other PE
                    shmem.barrier_all()
                    began = time.perf_counter()
                    for _ in range(calls):
                        plan(a, b, out=out, stream=stream)
                    queued = time.perf_counter()
                    stream.synchronize()
                took = np.array([queued, time.perf_counter()]) - began
                key = plan_class.__name__, repeats > 0
                found[key] = np.minimum(found.get(key, np.inf), took / calls)
    shmem.finalize()
    return found


def repeats():
    """Rows: calls of plans that queue much, as a graph and anew each time."""
    for size in (64, 512):
        found = shmem.spawn(call_times, 2, (size,))[0]
        for name in dict.fromkeys(name for name, _ in found):
            for k, what in enumerate(("queued", "done")):
                graph, anew = found[name, True][k], found[name, False][k]
                yield row(
                    f"{name} of {size} x {size} by the library, repeated: {what}", graph,
                    "queued anew each time", anew, "speed >= 1", anew / graph,
                )  # fmt: skip


def in_a_pe():
    shmem.init()
    yield from chain(launches(), barriers(), copies())
    shmem.finalize()


if __name__ == "__main__":
    report("foundations", chain(in_a_pe(), starts(), repeats()))
