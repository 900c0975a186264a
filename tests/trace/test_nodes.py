"""Traces of PEs as if on several nodes: what goes over the network is seen like all else."""

import json

import pytest

from gpushmem.trace import load

pytestmark = pytest.mark.cpu_backend

N, NODES, ROUNDS, ITEMS = 4, 2, 3, 1000
PROGRAM = f"""
import gpushmem as shmem
from numba import cuda

@shmem.jit
def mix(dst, src, flag, count, word, round):
    far = (shmem.my_pe() + {N // NODES}) % {N}
    shmem.put_signal_block(dst, src, flag, round, shmem.SIGNAL_SET, far)
    if cuda.threadIdx.x == 0:
        shmem.signal_wait_until(flag, shmem.CMP_GE, round)
        shmem.atomic_add(count, 1, far)
        shmem.wait_until(count, shmem.CMP_GE, round)
        word[0] = shmem.g(count, far)
        shmem.p(word[1:], 5, far)
        shmem.quiet()
    cuda.syncthreads()
    shmem.get_block(dst, src, far)
    shmem.barrier_block(shmem.TEAM_NODE)
    shmem.barrier_all_block()

shmem.init(heap_size="16M")
src, dst = shmem.ones({ITEMS}, "float32"), shmem.empty({ITEMS}, "float32")
flag, count = shmem.zeros(1, "uint64"), shmem.zeros(1, "int64")
word = shmem.zeros(2, "int64")
for k in range(1, {ROUNDS} + 1):
    mix[1, 32](dst, src, flag, count, word, k)
shmem.synchronize()
shmem.put(dst, src, (shmem.my_pe() + {N // NODES}) % {N})
shmem.barrier(shmem.TEAM_NODE)
shmem.finalize()
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["cpu", pytest.param("nvshmem-cpu", marks=pytest.mark.sweep)])
def test_what_goes_to_other_nodes_is_recorded(run_cli, tmp_path, backend):
    if backend == "nvshmem-cpu":
        pytest.importorskip("nvshmem")
    program, out = tmp_path / "program.py", tmp_path / "out"
    program.write_text(PROGRAM)
    job = ("run", "--backend", backend, "-n", N, "--nodes", NODES, "--trace", out, program)
    run_cli(*job, code=0, timeout=280)
    trace = load(out)
    labels = [trace.label(event) for event in trace.events]
    assert labels.count("put_signal_block") == 2 * N * ROUNDS, "each has two effects"
    for label in ("atomic_add", "g", "p", "get_block", "barrier_block"):
        assert labels.count(label) == N * ROUNDS
    assert (trace.events["ended"] >= trace.events["began"]).all()

    told = json.loads(run_cli("trace", "summary", "--json", out, code=0).stdout)
    # Put and got, a signal, a number put, one got and one added to; then the host's put.
    nbytes = ROUNDS * (2 * 4 * ITEMS + 4 * 8) + 4 * ITEMS
    assert [(pe["sent"], pe["received"]) for pe in told["pes"]] == [(nbytes, nbytes)] * N
    far, near = set(), set()
    for wait in told["waits"]:
        assert wait["by_pe"] is not None
        if wait["what"] in ("signal_wait_until", "wait_until"):
            far.add((wait["pe"], wait["by_pe"]))
        elif wait["what"].startswith("barrier_block"):
            near.add((wait["pe"], wait["by_pe"]))
    assert far
    assert far <= {(pe, (pe + N // NODES) % N) for pe in range(N)}
    assert near <= {(pe, pe ^ 1) for pe in range(N)}, "the other of the node's team"
    assert near

    for options, name in (((), "trace.html"), (("--perfetto",), "trace.pftrace")):
        run_cli("trace", "open", "--no-browser", *options, out, code=0)
        assert (out / name).stat().st_size > 1000
