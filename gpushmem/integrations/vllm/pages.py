"""What a worker of vLLM's does to send and receive pages: it is a PE, beside those of the others.

A worker that prefills sends its own cache's pages to the worker of the same rank that decodes, into
memory that both have for this, from where that one copies them into its own cache: caches stay
vLLM's, as large as each engine wants.

**Who begins.** Workers that decode do: they choose a number for the request (`KVTransfer`'s), and
put it with the request's name, 16 bytes of a hash, into `offers[row, slot]` of the worker that
prefills, then signal it. That one looks at its signals in each step. What it has computed without
having been asked it keeps until it is, or until the timeout.

**Numbers.** Slot s has numbers s + requests (k decode engines + mine), k counting up: all differ,
and a later one of a slot is larger, as `KVTransfer` wants.

**Failures.** A request that does not come in time, or is given up by the other side, is said to
have failed: vLLM computes it itself ("recompute"). Its slot and memory stay taken until the other
side has heard of that. If an engine dies all transfers fail, those of others, too, and all later
ones at once; engines go on with what they compute themselves.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from vllm.distributed.parallel_state import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)
from vllm.logger import init_logger

import gpushmem as shmem
from gpushmem.errors import ArgumentError, ShmemError
from gpushmem.kernels import TransferFailed
from gpushmem.torch.kv import KVTransfer

__all__ = ["Received", "Sent", "Transfers"]

log = init_logger("vllm.gpushmem")
SLACK = 64 << 20  # of the heap, beside the pages


class Sent(NamedTuple):
    """A request whose last tokens are computed in this step."""

    request: str
    transfer: str
    blocks: list[int]


class Received(NamedTuple):
    """A request that has room: its blocks, of which the first `known` have their tokens."""

    request: str
    transfer: str
    blocks: list[int]
    known: int
    source: int


class Coming(NamedTuple):
    """A request that has been asked for."""

    asked: Received
    pages: list[int]  # of the memory that others write to
    deadline: float


class Kept(NamedTuple):
    """A request that has been computed, for which nobody has asked."""

    sent: Sent
    deadline: float


class Offer(NamedTuple):
    """A request that a worker which decodes has asked for."""

    row: int  # which worker
    number: int
    deadline: float


@dataclass
class Running:
    """A request that is being sent."""

    request: str
    key: bytes
    layer: int = 0  # the next one


Method = TypeVar("Method", bound=Callable[..., None])


def while_all_live(method: Method) -> Method:
    """Do nothing once another engine has died; if that is seen here, end all transfers."""

    @wraps(method)
    def call(self: Transfers, *args: Any) -> None:
        if self.failed_with is None:
            try:
                method(self, *args)
            except ArgumentError:
                raise
            except ShmemError as error:
                log.warning("gpushmem carries the KV cache no more: %s", error)
                self.failed_with = error

    return call  # type: ignore[return-value]


class _Ranks:
    """What `init` needs to know of the workers of all engines."""

    def __init__(self, rank: int, size: int, store: Any) -> None:
        self.rank, self.size, self.get_group_store = (lambda: rank), (lambda: size), (lambda: store)


class Transfers:
    """The transfers of a worker."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, is_prefill: bool) -> None:
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._is_prefill = is_prefill
        self._prefill, self._decode = int(extra.get("prefill", 1)), int(extra.get("decode", 1))
        self._instance = int(extra.get("instance", 0))
        self._requests = int(extra.get("requests", 16))
        self._timeout = float(extra.get("timeout", 120))
        self._address = extra.get("address")
        cache, model = vllm_config.cache_config, vllm_config.model_config
        self._most = -(-model.max_model_len // cache.block_size)
        self._pages = int(extra.get("pages", 2 * self._most))
        self._blocks = kv_cache_config.num_blocks
        self._expect(vllm_config, kv_cache_config)
        self.failed_with: ShmemError | None = None
        # On workers that prefill.
        self._offers: dict[bytes, Offer] = {}
        self._kept: dict[bytes, Kept] = {}
        self._running: dict[int, Running] = {}
        self._refused: dict[bytes, float] = {}  # given up before somebody asked
        # On workers that decode.
        self._queue: deque[Received] = deque()
        self._coming: dict[int, Coming] = {}
        self._lost: dict[int, Coming] = {}  # given up, and the other side has not heard of it
        self._free_pages = list(range(self._pages))
        self._free_slots = deque(range(self._requests))
        self._turn = [0] * self._requests
        # What vLLM has not been told.
        self._sent: set[str] = set()
        self._received: set[str] = set()
        self._failed: set[str] = set()

    def _expect(self, vllm_config: Any, kv_cache_config: Any) -> None:
        sizes = vllm_config.parallel_config
        if sizes.pipeline_parallel_size > 1 or len(kv_cache_config.kv_cache_groups) > 1:
            raise ArgumentError(
                "GpushmemConnector: engines are divided by tensor parallelism alone, and all "
                "layers have pages of one kind; this one has "
                f"{sizes.pipeline_parallel_size} stages of a pipeline and "
                f"{len(kv_cache_config.kv_cache_groups)} kinds of pages"
            )
        if not isinstance(self._address, str) or ":" not in self._address:
            raise ArgumentError(
                'GpushmemConnector: kv_connector_extra_config wants "address": "host:port", of the '
                f"first engine that prefills; it is {self._address!r}"
            )
        mine = self._prefill if self._is_prefill else self._decode
        if not 0 <= self._instance < mine:
            raise ArgumentError(
                f'GpushmemConnector: "instance" is {self._instance}; with {mine} engines of this '
                f"kind it is 0 to {mine - 1}"
            )
        if self._pages < self._most:
            raise ArgumentError(
                f'GpushmemConnector: "pages" is {self._pages}; a request of max_model_len has '
                f"{self._most}"
            )

    # --- the start

    def start(self, caches: dict[str, Tensor]) -> None:
        """Meet the others and make the memory that pages go to; collective over all engines."""
        rows = [_rows_of(name, cache, self._blocks) for name, cache in caches.items()]
        self._layers = {name: number for number, name in enumerate(caches)}
        page = rows[0].shape[1]
        if any(row.shape != rows[0].shape for row in rows):
            raise ArgumentError("GpushmemConnector: pages of all layers must have the same size")
        tp, rank = get_tensor_model_parallel_world_size(), get_tensor_model_parallel_rank()
        self._meet(tp, rank, len(rows) * self._pages * page + SLACK)
        self._senders = [k * tp + rank for k in range(self._prefill)]
        first = self._prefill * tp
        self._kv = KVTransfer(
            layers=len(rows), pages=self._pages, page_size=1, kv_heads=1, head_dim=page // 2,
            dtype=torch.uint8, prefill=tuple(range(first)),
            decode=tuple(range(first, first + self._decode * tp)), requests=self._requests,
            most_pages=self._most,
        )  # fmt: skip
        self._rows = rows
        self._caches = [row.view(len(row), 2, 1, 1, page // 2) for row in rows]
        self._come = [layer.view(self._pages, page) for layer in self._kv.cache]
        for row in rows:
            shmem.register(row)
        # A row for each worker that may ask; the last one is what this one asks with.
        decode, slots = self._decode * tp, self._requests
        self._names = shmem.zeros((decode + 1, slots, 2), dtype="int64")
        self._signals = shmem.zeros((decode, slots), dtype="uint64")
        self._seen = np.zeros((decode, slots), "uint64")
        self._asking = [k * tp + rank for k in range(self._decode)]
        self._mine = self._instance * tp + rank  # of those of its kind
        self._n_decode = decode
        self._try()
        shmem.barrier_all()
        log.info(
            "gpushmem carries the KV cache: PE %d of %d, which %s, %d layers, pages of %d bytes",
            shmem.my_pe(), shmem.n_pes(), "prefills" if self._is_prefill else "decodes", len(rows),
            page,
        )  # fmt: skip

    def _try(self) -> None:
        """Send a page from each to each: the first requests would wait for what is compiled now."""
        if self._is_prefill:
            names = [f"try {row} {self._instance}" for row in self._asking]
            self.begin([Sent(name, name, [0]) for name in names], [])
        else:
            names = [f"try {self._mine} {source}" for source in range(self._prefill)]
            self.ask([Received(name, name, [0], 1, k) for k, name in enumerate(names)])
        over: set[str] = set()
        while len(over) < len(names):
            self.go_on()
            sent, received, failed = self.results()
            if failed or self.failed_with is not None:
                raise self.failed_with or ShmemError("GpushmemConnector: no page comes")
            over |= sent | received
            time.sleep(0.001)

    def _meet(self, tp: int, rank: int, heap: int) -> None:
        if shmem.is_initialized():
            raise ArgumentError(
                "GpushmemConnector: this worker's collectives are gpushmem's already, and end with "
                "an engine that dies: unset VLLM_PLUGINS, vLLM finds the connector without it"
            )
        kind = 0 if self._is_prefill else self._prefill
        me, size = (kind + self._instance) * tp + rank, (self._prefill + self._decode) * tp
        host, _, port = str(self._address).rpartition(":")
        limit = timedelta(seconds=self._timeout)
        self._store = dist.TCPStore(host, int(port), size, me == 0, limit)
        shmem.init(process_group=_Ranks(me, size, self._store), heap_size=heap)

    # --- each step

    def begin(self, sent: list[Sent], given_up: list[str]) -> None:
        """Take requests that this step completes, and start those that have been asked for."""
        now = time.monotonic()
        for transfer in given_up:
            self._give_up(_key(transfer), now)
        for each in sent:
            self._kept[_key(each.transfer)] = Kept(each, now + self._timeout)
        self._start_kept()

    @while_all_live
    def send(self, layer_name: str) -> None:
        """Send a layer of the requests that were started, once it is computed."""
        layer = self._layers[layer_name]
        for number, running in self._running.items():
            if running.layer == layer:
                self._send(number, running)

    @while_all_live
    def go_on(self) -> None:
        """Start what has been asked for by now, and send what is left of all that was started."""
        self._start_kept()
        for number, running in self._running.items():
            while running.layer < len(self._rows):
                self._send(number, running)

    def ask(self, received: list[Received]) -> None:
        """Ask for requests, as far as there are slots and memory; for the others later."""
        self._queue.extend(received)
        self._ask_queued()

    def results(self) -> tuple[set[str], set[str], set[str]]:
        """Return requests that were sent, have come or failed, and those that failed."""
        self._look_at_all()
        self._drop_the_late()
        self._ask_queued()
        told = self._sent, self._received | self._failed, self._failed
        self._sent, self._received, self._failed = set(), set(), set()
        return told

    @while_all_live
    def settle(self) -> None:
        """Wait until nothing is read any more."""
        shmem.synchronize()

    def close(self) -> None:
        """End the transfers."""
        self.failed_with = self.failed_with or ShmemError("the engine has ended")

    # --- on workers that prefill

    def _look(self) -> None:
        """Find what workers that decode have asked for."""
        for row in self._asking if self._is_prefill else ():
            for slot in range(self._requests):
                value = shmem.signal_fetch(self._signals[row, slot:])
                if value != self._seen[row, slot]:
                    self._seen[row, slot] = value
                    key = self._names[row, slot].numpy().tobytes()
                    self._offers[key] = Offer(row, value - 1, time.monotonic() + self._timeout)

    @while_all_live
    def _start_kept(self) -> None:
        self._look()
        for key in self._kept.keys() & self._offers.keys():
            sent, offer = self._kept.pop(key).sent, self._offers.pop(key)
            self._running[offer.number] = Running(sent.request, key)
            self._kv.start(offer.number, sent.blocks, to=offer.row)

    def _send(self, number: int, running: Running) -> None:
        self._kv.send(number, running.layer, cache=self._caches[running.layer])
        running.layer += 1

    def _give_up(self, key: bytes, now: float) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._sent.add(kept.sent.request)
        self._refused[key] = now + self._timeout
        self._abort(key)

    @while_all_live
    def _abort(self, key: bytes) -> None:
        for number, running in self._running.items():
            if running.key == key and running.layer < len(self._rows):
                running.layer = len(self._rows)
                self._kv.abort(number)

    def _look_at_running(self, number: int) -> None:
        try:
            if not self._kv.finished(number):
                return
        except TransferFailed as error:
            log.info("gpushmem: %s", error)
        self._sent.add(self._running.pop(number).request)

    @while_all_live
    def _refuse_late(self, now: float) -> None:
        """Tell who has asked for what does not come."""
        for key, offer in list(self._offers.items()):
            if key in self._refused or now > offer.deadline:
                del self._offers[key]
                self._running[offer.number] = Running("", key, len(self._rows))
                self._kv.start(offer.number, [0], to=offer.row)
                self._kv.abort(offer.number)

    # --- on workers that decode

    @while_all_live
    def _ask_queued(self) -> None:
        while self._queue and self._free_slots:
            if len(self._queue[0].blocks) > len(self._free_pages):
                break
            self._ask(self._queue.popleft())

    def _ask(self, asked: Received) -> None:
        if not 0 <= asked.source < self._prefill:
            log.warning(
                'gpushmem: request %s is prefilled by engine %d of %d: its "prefill" is wrong',
                asked.request, asked.source, self._prefill,
            )  # fmt: skip
            self._failed.add(asked.request)
            return
        slot, sender = self._free_slots.popleft(), self._senders[asked.source]
        number = slot + self._requests * (self._n_decode * self._turn[slot] + self._mine)
        self._turn[slot] += 1
        pages = [self._free_pages.pop() for _ in asked.blocks]
        self._kv.receive(number, pages, source=sender)
        name = self._names[-1, slot]
        name[...] = np.frombuffer(_key(asked.transfer), "int64")
        shmem.put_signal(
            self._names[self._mine, slot], name, self._signals[self._mine, slot:], number + 1,
            shmem.SIGNAL_SET, sender,
        )  # fmt: skip
        self._coming[number] = Coming(asked, pages, time.monotonic() + self._timeout)

    def _look_at_coming(self, number: int) -> None:
        coming = self._coming.get(number) or self._lost[number]
        asked, pages = coming.asked, coming.pages
        try:
            if self._kv.finished(number):
                if number in self._coming:
                    self._copy(asked.blocks[asked.known :], pages[asked.known :])
                    self._received.add(asked.request)
            elif number in self._coming and time.monotonic() > coming.deadline:
                log.warning(
                    "gpushmem: request %s has not come within %g s", asked.request, self._timeout
                )
                self._failed.add(asked.request)
                self._kv.abort(number)
                self._lost[number] = self._coming.pop(number)
                return
            else:
                return
        except TransferFailed as error:
            if number in self._coming:
                log.warning("gpushmem: request %s has not come: %s", asked.request, error)
                self._failed.add(asked.request)
        self._coming.pop(number, None)
        self._lost.pop(number, None)
        self._free_pages += pages
        self._free_slots.append(number % self._requests)

    def _copy(self, blocks: list[int], pages: list[int]) -> None:
        to, where = (torch.tensor(numbers, dtype=torch.long) for numbers in (blocks, pages))
        for row, come in zip(self._rows, self._come, strict=True):
            row[to] = come[where]

    # --- on both

    @while_all_live
    def _look_at_all(self) -> None:
        for number in list(self._running):
            self._look_at_running(number)
        for number in [*self._coming, *self._lost]:
            self._look_at_coming(number)

    def _drop_the_late(self) -> None:
        now = time.monotonic()
        if self.failed_with is not None:
            now = float("inf")
            self._sent |= {running.request for running in self._running.values()}
            self._failed |= {each.request for each in self._queue}
            self._failed |= {coming.asked.request for coming in self._coming.values()}
            for them in (self._running, self._queue, self._coming, self._lost, self._offers):
                them.clear()
        for key in [key for key, kept in self._kept.items() if now > kept.deadline]:
            request = self._kept[key].sent.request
            log.warning("gpushmem: nobody has asked for request %s in time", request)
            self._give_up(key, now)
        self._refuse_late(now)
        self._refused = {key: until for key, until in self._refused.items() if until > now}
        self._sent.discard("")


def _key(transfer: str) -> bytes:
    return hashlib.blake2b(transfer.encode(), digest_size=16).digest()


def _rows_of(name: str, cache: Tensor, blocks: int) -> Tensor:
    """A layer's cache as bytes: a row for each block, which is one piece of memory."""
    length = cache.numel() // blocks
    inner = 1 + sum(
        (size - 1) * step for size, step in zip(cache.shape[1:], cache.stride()[1:], strict=True)
    )
    if len(cache) != blocks or cache.stride(0) != length or inner != length:
        raise ArgumentError(
            f"GpushmemConnector: blocks of layer {name} are not one piece of memory each, one "
            f"behind the other: shape {tuple(cache.shape)}, strides {cache.stride()}, {blocks} "
            "blocks"
        )
    return cache.as_strided((blocks, length), (length, 1)).view(torch.uint8)
