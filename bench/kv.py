"""Pages of a KV cache, beside NIXL: `python bench/kv.py`, in an environment with nixl-cu12.

`KVTransfer` against NIXL over UCX, between two processes, which take turns: the same memory, the
same block tables, a whole request of two layers with up to four requests on their way. Then one
request of a page in each layer: from its `start`, or `transfer`, in one process until the other one
has seen that the first layer is there. NIXL writes each page from its place to its place, with a
notification for each layer: as in vLLM's NixlConnector, the lists of all pages are made before, and
the transfers for each request. Both agents poll, without NIXL's thread, which takes time from both.
The best of the series counts.
"""

import json
import os
import pickle
import subprocess
import sys
import time
from importlib.metadata import version
from itertools import count
from statistics import median

import numpy as np
from harness import report, row

os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
LAYERS, HEADS, DIM, DTYPE = 2, 4, 128, "float16"
TOKEN = 2 * HEADS * DIM * 2  # bytes
PAGES_OF = (1, 4, 16, 64, 256, 1024)  # tokens: 2 KiB to 2 MiB
REQUEST, MOST = 8 << 20, 256  # bytes of a layer, and its most pages
ON_THE_WAY, SERIES, CALLS, BYTES, SHORTS = 4, 5, 40, 256 << 20, 30
AIM = "speed >= 1"


class Pages:
    """What both send from and to; PE 0 sends to PE 1."""

    def __init__(self, tokens):
        from gpushmem.kernels import KVTransfer

        import gpushmem as shmem

        self.me, self.page = shmem.my_pe(), tokens * TOKEN
        self.count = max(2, min(MOST, REQUEST // self.page))
        rng = np.random.default_rng(0)
        self.tables = [rng.permutation(2 * self.count)[: self.count] for _ in range(2)]
        self.plan = KVTransfer(
            layers=LAYERS, pages=2 * self.count, page_size=tokens, kv_heads=HEADS, head_dim=DIM,
            dtype=DTYPE, prefill=(0,), decode=(1,), requests=2 * ON_THE_WAY, most_pages=self.count,
        )  # fmt: skip
        self.memory = [np.asarray(layer).reshape(2 * self.count, -1) for layer in self.plan.cache]
        self.begun = shmem.zeros(SHORTS, "float64")

    def fill(self):
        """PE 0's pages name themselves, PE 1's are empty."""
        for layer, memory in enumerate(self.memory):
            memory[:] = 0
            if self.me == 0:
                memory[self.tables[0]] = (layer + 1 + np.arange(self.count) % 1000)[:, None]

    def check(self):
        for layer, memory in enumerate(self.memory):
            wanted = (layer + 1 + np.arange(self.count) % 1000)[:, None].astype(DTYPE)
            assert (memory[self.tables[self.me]] == wanted).all()


class Ours:
    """`KVTransfer`."""

    def __init__(self, pages):
        import gpushmem as shmem

        self.shmem, self.pages, self.plan, self.numbers = shmem, pages, pages.plan, count()
        self.tables = [table.astype("int32") for table in pages.tables]

    def over(self, request):
        while not self.plan.finished(request):
            time.sleep(2e-5)  # a core is for the blocks

    def series(self, calls):
        requests = [next(self.numbers) for _ in range(calls)]
        for k in range(calls + ON_THE_WAY):
            done = requests[k - ON_THE_WAY] if k >= ON_THE_WAY else None
            if self.pages.me == 1 and done is not None:
                self.plan.wait(done)
                self.shmem.synchronize()
            if done is not None:
                self.over(done)
            if k >= calls:
                continue
            if self.pages.me == 0:
                self.plan.start(requests[k], self.tables[0])
                self.plan.send(requests[k])
            else:
                self.plan.receive(requests[k], self.tables[1])

    def name_one(self):
        """Before the time begins, as NIXL's lists are made."""
        self.one = next(self.numbers)
        if self.pages.me == 1:
            self.plan.receive(self.one, self.tables[1][:1])
            self.shmem.synchronize()

    def send_one(self):
        self.plan.start(self.one, self.tables[0][:1])
        self.plan.send(self.one)

    def see_one(self):
        while not self.plan.arrived(self.one, 0):
            pass

    def end_one(self):
        if self.pages.me == 1:
            self.plan.wait(self.one)
        self.over(self.one)


class Nixl:
    """Writes of registered memory; of its lists of pages each request names some."""

    def __init__(self, pages, agent):
        import gpushmem as shmem

        self.pages, self.agent, self.seen = pages, agent, 0
        whole = [(m.ctypes.data, m.nbytes, 0, "") for m in pages.memory]
        self.registered = agent.register_memory(whole, "DRAM")
        lists = [
            [(m.ctypes.data + int(p) * pages.page, pages.page, 0) for p in pages.tables[pages.me]]
            for m in pages.memory
        ]
        told = exchanged(shmem, (agent.get_agent_metadata(), lists), pages.me)
        self.other, self.one = agent.add_remote_agent(told[0]), []
        self.prepared = [
            (agent.prep_xfer_dlist("NIXL_INIT_AGENT", mine, "DRAM"),
             agent.prep_xfer_dlist(self.other, theirs, "DRAM"))
            for mine, theirs in zip(lists, told[1], strict=True)
        ]  # fmt: skip
        self.every = list(range(pages.count))

    def begin(self, which):
        """Begin a request of some pages of the lists, layer by layer."""
        handles = []
        for mine, theirs in self.prepared:
            handle = self.agent.make_prepped_xfer("WRITE", mine, which, theirs, which, b"layer")
            self.agent.transfer(handle)
            handles.append(handle)
        return handles

    def end(self, handles):
        for handle in handles:
            while self.agent.check_xfer_state(handle) == "PROC":
                pass
            self.agent.release_xfer_handle(handle)

    def see(self, layers):
        self.seen -= layers
        while self.seen < 0:
            self.seen += sum(len(told) for told in self.agent.get_new_notifs().values())

    def series(self, calls):
        if self.pages.me == 1:
            self.see(calls * LAYERS)
            return
        begun = []
        for _ in range(calls):
            if len(begun) == ON_THE_WAY:
                self.end(begun.pop(0))
            begun.append(self.begin(self.every))
        for handles in begun:
            self.end(handles)

    def name_one(self):
        pass

    def send_one(self):
        self.one = self.begin([0])

    def see_one(self):
        self.see(1)

    def end_one(self):
        if self.pages.me == 1:
            self.see(LAYERS - 1)
        else:
            self.end(self.one)

    def close(self):
        for each in sum(self.prepared, ()):
            self.agent.release_dlist_handle(each)
        self.agent.remove_remote_agent(self.other)
        self.agent.deregister_memory(self.registered)


def exchanged(shmem, told, me):
    """What the other PE tells."""
    data = np.frombuffer(pickle.dumps(told), "uint8")
    box = shmem.zeros(1 << 20, "uint8")
    box[: len(data)] = data
    shmem.barrier_all()
    found = pickle.loads(shmem.peer_array(box, 1 - me).numpy().tobytes())
    shmem.free(box)
    return found


def first_page(way, pages, shmem):
    """Seconds from one PE's call until the other has seen a layer of a page; the median."""
    seen = np.zeros(SHORTS)
    for k in range(SHORTS):
        way.name_one()
        shmem.barrier_all()
        if pages.me == 0:
            pages.begun[k] = time.monotonic()
            way.send_one()
        else:
            way.see_one()
            seen[k] = time.monotonic()
        way.end_one()
    shmem.barrier_all()
    return median(seen - shmem.peer_array(pages.begun, 0).numpy())


def main():
    """On PE 0 or 1."""
    import gpushmem as shmem

    shmem.init()
    agent = None
    for tokens in PAGES_OF:
        pages = Pages(tokens)
        if agent is None:
            from gpushmem.integrations import nixl

            agent = nixl.agent(f"pe{pages.me}", enable_prog_thread=False)
        ways = [Ours(pages), Nixl(pages, agent)]
        best = np.full((2, 2), np.inf)
        calls = max(4, min(CALLS, BYTES // (LAYERS * pages.count * pages.page)))
        for number in range(SERIES + 1):
            for k, way in enumerate(ways):
                if number == 0:
                    pages.fill()
                    shmem.barrier_all()
                    way.series(1)
                    pages.check()
                shmem.barrier_all()
                began = time.perf_counter()
                way.series(calls)
                took = (time.perf_counter() - began) / calls
                best[k] = np.minimum(best[k], (took, first_page(way, pages, shmem)))
        if pages.me == 1:
            print(json.dumps([pages.page, pages.count, *best.ravel()]), flush=True)
        shmem.barrier_all()
        ways[1].close()
        pages.plan.free()
        shmem.free(pages.begun)
    del agent
    shmem.finalize()


def rows():
    command = [sys.executable, "-m", "gpushmem", "run", "-n", "2", __file__, "pe"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        for line in filter(lambda line: line.startswith("["), job.stdout):
            page, number, own, own_first, theirs, their_first = json.loads(line)
            for what, nbytes, ours, peer in (
                (f"{number} pages of {page} B", LAYERS * number * page, own, theirs),
                (f"the first page of {page} B", None, own_first, their_first),
            ):
                yield row(what, ours, "NIXL", peer, AIM, peer / ours) | {"bytes": nbytes}
    assert job.returncode == 0


if __name__ == "__main__":
    if sys.argv[1:] == ["pe"]:
        main()
    else:
        report("kv", rows(), nixl=version("nixl-cu12"))
