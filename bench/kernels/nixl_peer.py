"""The job of kv_transfer.py by NIXL over UCX, two processes of one machine, in host memory.

python bench/kernels/nixl_peer.py; needs NIXL (pip: nixl), in a Python of its own if that is easier.
As vLLM's NixlConnector does it, but for who asks: the sender writes each layer's pages into those
of the receiver, page by page, with a notification for each layer.
"""

import multiprocessing as mp
import time

import numpy as np
from kv_transfer import CASES, LAYERS, PAGE, label, nbytes, tables

BEST, CALLS = 5, 20


def agent(name):
    from nixl._api import nixl_agent, nixl_agent_config

    return nixl_agent(name, nixl_agent_config(backends=["UCX"]))


def descriptors(cache, pages):
    """(address, bytes, device) of pages of all layers."""
    base, size = cache.ctypes.data, 2 * PAGE
    return [
        [(base + (layer * cache.shape[1] + int(page)) * size, size, 0) for page in pages]
        for layer in range(LAYERS)
    ]


def receive(pipe):
    """The decoding process: registers its pages, then sees notifications."""
    me = agent("decode")
    for case in CASES:
        cache = np.zeros((LAYERS, 2 * case["pages"], PAGE), "float16")
        registered = me.register_memory([(cache.ctypes.data, cache.nbytes, 0, "")], "DRAM")
        pipe.send((me.get_agent_metadata(), descriptors(cache, tables(case)[1])))
        calls = pipe.recv()
        seen = 0
        while seen < calls * LAYERS:
            seen += sum(len(told) for told in me.get_new_notifs().values())
        pipe.send("all")
        pipe.recv()
        me.deregister_memory(registered)


def main():
    here, there = mp.get_context("spawn").Pipe()
    other = mp.get_context("spawn").Process(target=receive, args=(there,))
    other.start()
    me = agent("prefill")
    for case in CASES:
        cache = np.ones((LAYERS, 2 * case["pages"], PAGE), "float16")
        registered = me.register_memory([(cache.ctypes.data, cache.nbytes, 0, "")], "DRAM")
        metadata, remote = here.recv()
        name = me.add_remote_agent(metadata)
        lists = [
            (me.prep_xfer_dlist("NIXL_INIT_AGENT", mine, "DRAM"),
             me.prep_xfer_dlist(name, theirs, "DRAM"))
            for mine, theirs in zip(descriptors(cache, tables(case)[0]), remote, strict=True)
        ]  # fmt: skip
        every = list(range(case["pages"]))
        handles = [
            me.make_prepped_xfer("WRITE", mine, every, theirs, every, b"layer")
            for mine, theirs in lists
        ]
        here.send(BEST * CALLS)
        best = float("inf")
        for _ in range(BEST):
            began = time.perf_counter()
            for _ in range(CALLS):
                for handle in handles:
                    me.transfer(handle)
                for handle in handles:
                    while me.check_xfer_state(handle) == "PROC":
                        pass
            best = min(best, (time.perf_counter() - began) / CALLS)
        here.recv()
        print(f"{label(case)}: {best * 1e6:.1f} us, {nbytes(case, 2) / best / 1e9:.2f} GB/s")
        for handle in handles:
            me.release_xfer_handle(handle)
        me.remove_remote_agent(name)
        me.deregister_memory(registered)
        here.send("next")
    other.join()


if __name__ == "__main__":
    main()
