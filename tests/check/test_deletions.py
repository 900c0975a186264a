"""Without any one of the statements that order something, kernels and examples are refused."""

import re

import pytest

from tests.check.deletions import ROOT, ROOTS, Tree, deletions

# Those that the programs do without, and why.
OTHER = "dispatch and combine take turns, and each counts the call"
OWN = "on CPUs, where it is not by fours, a thread updates the masters that it has set"
UNSEEN = "what PyTorch does in a stream's order is not seen"
VIEWS = "what NumPy does with views is not seen"
NOT_NEEDED = {
    "kernels/arena.py:release:shmem.barrier(team)": "the next `allocate` meets before it writes",
    "kernels/moe.py:fused:complete()": "its rows have come back, so they have been sent",
    "kernels/moe_parts.py:send_rows:cuda.syncthreads()": "what is sent is sent by whole blocks",
    "kernels/moe_parts.py:mark:cuda.syncthreads()": "so few tokens are sorted at once",
    "kernels/moe_dispatch.py:dispatch_throughput:complete()": (
        "what it sends from is written again in the next dispatch, after its rows have come back"
    ),
    "kernels/moe_dispatch.py:dispatch_low_latency:end(epochs)": OTHER,
    "kernels/moe_dispatch.py:dispatch_throughput:end(epochs)": OTHER,
    "kernels/flash_decode.py:flash_decode:cuda.syncthreads()": (
        "what is sent is sent by whole blocks"
    ),
    "kernels/embedding.py:embed:cuda.syncthreads()": "the block is one warp",
    "kernels/bfs.py:meet:shmem.fence()": (
        "the checker takes a signal to the own PE for an order of what its blocks stored"
    ),
    "kernels/flash_decode.py:flash_decode:"
    "shmem.signal_wait_until(arrived[slot, k, b:], shmem.CMP_EQ, epoch)": (
        "each block waits for the pairs that it merges, and all are merged"
    ),
    "kernels/decode_lanes.py:merge_rows:cuda.syncthreads() (2)": "the block is one warp",
    "kernels/decode_lanes.py:attend_to_all:cuda.syncthreads()": "the block is one warp",
    "kernels/zero.py:update:cuda.syncthreads()": OWN,
    "kernels/muon.py:update:cuda.syncthreads()": OWN,
    "kernels/muon.py:second_pass:end_at(epochs, epoch - 1)": (
        "the first pass counts as many epochs, and boxes of the two are different"
    ),
    "kernels/all_reduce.py:multicast:complete()": (
        "`tell_others` has a fence, which the checker takes for stores to the PE's own memory, too"
    ),
    "kernels/attention_library.py:__call__:shmem.wait_stream(stream, self._home.stream)": UNSEEN,
    "kernels/attention_library.py:__call__:shmem.wait_stream(self._home.stream, stream)": UNSEEN,
    "kernels/attention_library.py:__call__:"
    "shmem.wait_stream(stream, self._home.stream) (2)": UNSEEN,
    "kernels/sample_sort.py:_sort:shmem.synchronize()": VIEWS,
    "kernels/moe_library.py:_most:shmem.wait_stream(self._reading, stream)": VIEWS,
    "kernels/moe_library.py:_most:self._reading.synchronize()": VIEWS,
    # Examples.
    "examples/kv_transfer.py::shmem.synchronize()": "by then the launches may be over anyway",
    "examples/queens.py:queens:end(epochs)": "the kernel is launched once",
    "examples/moe.py::shmem.barrier_all()": "it is for the order of what is printed",
    "examples/ring.py:shift:shmem.signal_wait_until(signal, shmem.CMP_EQ, 1)": (
        "the host's barrier waits for the data, too"
    ),
    "examples/ring.py:shift:cuda.syncthreads()": "the kernel ends there",
    "examples/ring.py::shmem.barrier_all()": "the kernel has waited for the data",
}


def every():
    counted = {}
    for folder in ("kernels", "examples"):
        for path in sorted((ROOT / folder).glob("*.py")):
            for deletion in deletions(path):
                counted[deletion.name] = k = counted.get(deletion.name, 0) + 1
                name = deletion.name + f" ({k})" * (k > 1)
                sampled = name.endswith("one_shot:wait_for_others(signals, epoch, team)")
                marks = [] if sampled else [pytest.mark.sweep]
                yield pytest.param(deletion, name, marks=marks, id=name)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return Tree(tmp_path_factory.mktemp("tree"))


@pytest.mark.timeout(600)  # some are in many runs
@pytest.mark.parametrize(("deletion", "name"), list(every()))
def test_what_lacks_an_order_is_refused(tree, deletion, name):
    said = []
    for run in deletion.runs():
        code, text = tree.without(deletion, run)
        said.append((run, code, text[-500:]))
        if code:  # the checker's, or that of a deadlock, which says who waits for what
            assert name not in NOT_NEEDED
            assert re.search(r"missing: |deadlock|no PE has made progress|failed", text), text
            return
    assert name in NOT_NEEDED, said


@pytest.mark.sweep
@pytest.mark.parametrize("run", ROOTS)
def test_kernels_as_on_a_gpu_have_no_problems(tree, run):
    code, text = tree.ready(run)
    assert code == 0, text
    assert "not all was checked" not in text
