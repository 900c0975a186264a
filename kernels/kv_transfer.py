"""Send the keys and values of requests from PEs that prefill to PEs that decode, layer by layer.

Both sides keep a *cache* of pages, of which a request has some, anywhere: its block table. A
decoding PE gives its page numbers away; then everything goes one way, into the pages themselves:

    prefill PE                                          decoding PE

    start(r, pages)                                     receive(r, pages)
        |             <---- page numbers, signal ----      |
    send(r, 0)        ---- pages of layer 0, signal -->    wait(r, 0), attention of layer 0
    send(r, 1)        ---- pages of layer 1, signal -->    wait(r, 1), ...

*Instances* of several PEs divide the heads: `prefill_tp` PEs on one side, `decode_tp` on the other.
Each prefill PE puts the heads that both have, which are one piece of memory for each token, or for
each page where both have the same:

    4 heads,  prefill PE 0: heads 0 1 | 2 3 :PE 1        decoding PE 2: 0 | 1 | 2 | 3 :PE 5
              PE 0 -> PE 2: head 0,  PE 0 -> PE 3: head 1,  PE 1 -> PE 4: head 2, ...

If there are more PEs than heads, several have the same one, and the first of them sends it.

What a prefill PE sends of a layer of k pages, to each decoding PE with which it shares h heads:

    2 k page_size h head_dim numbers, in 2 k page_size messages, or k if both have the same heads
    (larger ones are cut, see `most_in_unit`), and a signal for each block of the kernel

With `wire="float8_e4m3"` they travel as 8-bit floats (see `wire`), in rows of up to 4096 numbers:
into the memory of the numbers themselves, which `wait` then widens in place.

**Tickets.** Request r has *slot* r % `requests`, and *ticket* r + 1. What a decoding PE says of it
is one signal on each prefill PE, `given[decoding PE, slot]`: ticket << 32 | pages, or instead of
their number REFUSED or CANCELLED. Kernels wait until it is the ticket's or a later one's. What
comes back is counted in `arrived[slot, layer, prefill PE]`: each of its blocks adds 1 << 32, and 1
more if the layer is given up. So a decoding PE knows when nobody will write to its pages any more,
whatever went wrong: when the last layer is counted. A block has completed what it said of a layer
before it says something of the next, and gives up all those behind one that it has given up: so
the last layer's count is that of all, and tells whether one is missing. Only then it uses the slot
again. It sets the counts to 0 and completes that before it gives the next ticket away, and who adds
to them has heard of that. A later ticket says in turn that the one before is over, or had been
refused.

A block has completed what it sends before it adds. So parts of a request that are sent ahead
(chunked prefill) are told of with the last one. And it has read the table by then, which the
decoding PE writes again when all have added.

**Launches are the same each time**, so they are bound: ticket, number of pages and pages are in a
row for each slot, of memory that hosts and kernels share (`_asked`), which `start` and `receive`
fill. The kernel that reads it has run when the request is over, and before that no other has the
slot: so a row is never written while it is read. In `outcome` blocks count what they have done with
each layer, and what failed in the upper half. That is never set back: the host knows what it was
when the request before was over, and nobody counts after that.

The steps are those of SGLang's `KVSender` and `KVReceiver` (over Mooncake or NIXL), and of the
layer hooks of vLLM's KV connectors: Qin et al., "Mooncake: a KVCache-centric disaggregated
architecture for LLM serving", FAST 2025. DistServe and Splitwise, 2024, divided prefill from
decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gpushmem.kernels.kv_pages import (
    ASKED_COUNT,
    ASKED_PAGES,
    ASKED_TICKET,
    CANCELLED,
    REFUSED,
    SENDING,
    cancel,
    give_table,
    receive_layer,
    start_request,
    widen_layer,
)
from gpushmem.kernels.kv_requests import Received, Requests, Sent, TransferFailed
from gpushmem.kernels.kv_routes import FIELDS, Heads, most_in_unit, units_of
from gpushmem.kernels.wire import row_bytes

import gpushmem as shmem
from gpushmem.checks import integer

__all__ = ["KVTransfer", "TransferFailed", "reference"]

WIRES = (None, "float8_e4m3")


class KVTransfer(Requests):
    """Send pages of a KV cache from PEs that prefill to PEs that decode, as layers are produced.

        on a prefill PE                             on a decoding PE
        plan.start(request, pages, to=instance)     plan.receive(request, pages, source=instance)
        plan.send(request, layer)                   plan.wait(request, layer)
        plan.finished(request)                      plan.finished(request)

    `prefill` and `decode` are numbers of PEs in the team, one instance of `prefill_tp`, or
    `decode_tp`, PEs behind the other. `cache[layer]` is this PE's part of a layer, symmetric:
    (pages, 2, page_size, heads, head_dim), keys first, or, with `apart`, (2, pages, ...); `heads`
    of `kv_heads` are `first_head` and those behind it. A request has up to `most_pages` pages on
    both sides, in the same order; at most one that an instance decodes has the same slot, request %
    `requests`, at a time. All calls are asynchronous, in the order of `stream`, but for `finished`
    and `arrived`, which ask and do not wait.

    With `timeout`, in seconds, a prefill PE waits so long for a request's pages to be named, once;
    otherwise as long as it takes. `wire="float8_e4m3"`: 8-bit floats are sent, of float16, bfloat16
    or float32, with errors of at most 1/16 of each number (see `wire`).
    """

    moves = one_thread = True

    def __init__(
        self, *, layers: int, pages: int, page_size: int, kv_heads: int, head_dim: int, dtype: Any,
        prefill: tuple[int, ...], decode: tuple[int, ...], prefill_tp: int = 1,
        decode_tp: int = 1, requests: int = 16, most_pages: int | None = None,
        apart: bool = False, wire: str | None = None, timeout: float | None = None,
        team: Any = shmem.TEAM_WORLD, blocks: int | None = None, threads: int | None = None,
    ) -> None:  # fmt: skip
        self.dtype = np.dtype(dtype)
        self.most_pages = pages if most_pages is None else most_pages
        page_bytes = 2 * page_size * kv_heads * head_dim * self.dtype.itemsize
        share = self.most_pages * page_bytes // max(prefill_tp, 1)
        parts = -(-share // shmem.tuning().block_bytes)
        super().__init__(team, blocks=blocks, threads=threads, parts=parts)
        self.layers, self.pages, self.page_size = layers, pages, page_size
        self.requests, self.wire, self.timeout = requests, wire, timeout
        sizes = layers, pages, page_size, kv_heads, head_dim, requests, self.most_pages
        for what, size in zip(
            ("layers", "pages", "page_size", "kv_heads", "head_dim", "requests", "most_pages"),
            sizes, strict=True,
        ):  # fmt: skip
            integer(f"KVTransfer: {what}", size, 1, 2**31 - 1)
        self._sides = Heads(
            prefill, decode, prefill_tp, decode_tp, kv_heads, head_dim, page_size, pages, apart
        )
        if self.team:
            self._sides.check(self.n_pes)
        self._check_wire(head_dim)
        self._make_memory()

    def _check_wire(self, head_dim: int) -> None:
        fits = self.dtype.name in ("float16", "bfloat16", "float32") and head_dim % 16 == 0
        if self.wire not in WIRES or (self.wire and not fits):
            raise shmem.ArgumentError(
                f"KVTransfer: wire is {self.wire!r}, for {self.dtype} and heads of {head_dim}; it "
                'is None or "float8_e4m3", for float16, bfloat16, float32 and heads of 16, 32, ...'
            )

    def _make_memory(self) -> None:
        sides, n, slots = self._sides, self.n_pes, self.requests
        first, last = sides.of(self.my_pe) if self.team else (0, 0)
        self.first_head, self.heads = first, last - first
        shape = sides.shape(self.heads)
        layer = int(np.prod(shape))
        largest = max(int(np.prod(sides.shape(b - a))) for a, b in map(sides.of, range(n)))
        self._cache = self.memory(self.layers * largest, dtype=self.dtype)
        self.cache = [
            self._cache[k * layer : (k + 1) * layer].reshape(shape) for k in range(self.layers)
        ]
        self._whole = self._cache[: self.layers * layer]
        self._given = self.memory(n, slots, dtype="uint64")
        self._tables = self.memory(n, slots, self.most_pages, dtype="int32")
        # By who has sent; behind the layers, the ticket.
        self._arrived = self.memory(slots, self.layers + 1, sides.prefill_tp, dtype="uint64")
        self._counts = shmem.to_device(np.zeros(slots, "int64"))
        self.bound = 4 * (self.layers + 4) * slots * max(self._instances())
        # Made once: launches with the same objects cost the host less.
        self._come = [
            [self._arrived[slot, layer] for layer in range(self.layers + 1)]
            for slot in range(slots)
        ]
        self._all = self.blocks << 32
        self._kept = self.memory(slots, self.most_pages, dtype="int32")
        instances, _ = self._instances()
        self._outcome = self.memory(instances, slots, 2, dtype="uint64")
        self._begun = shmem.to_device(np.zeros((instances, slots, 2), "int64"))
        self._over = [[self._outcome[to, s] for s in range(slots)] for to in range(instances)]
        self._done = np.zeros((instances, slots), "uint64")
        self._gave = np.zeros((instances, slots), "uint64")
        shape = instances + 1, slots, ASKED_PAGES + self.most_pages
        self._asked = np.zeros(shape, "int32")  # by who decodes, and what is received
        self._registered.append(shmem.register(self._asked))
        self._rows = [[(row, row[ASKED_PAGES:]) for row in rows] for rows in self._registered[-1]]
        self._mine = shmem.to_device(np.zeros((instances, slots, self.most_pages), "int32"))
        self._next = shmem.to_device(np.zeros((self.blocks, n, slots), "int64"))
        self._sent: dict[int, Sent] = {}
        self._received: dict[int, Received] = {}
        self._late: dict[int, Sent] = {}  # given up, and not everybody has been told yet
        self._make_routes()

    def _make_routes(self) -> None:
        sides, most = self._sides, most_in_unit(self)
        me = self.my_pe if self.team else -1  # who has nothing to send
        n_to, n_from = self._instances()
        self._out = [[r.placed(self.team, most) for r in sides.routes(me, k)] for k in range(n_to)]
        self._in = [
            [r.placed(self.team, most) for r in sides.sources(me, k)] for k in range(n_from)
        ]
        self._routes = [
            [shmem.to_device(np.array(rows, "int64").reshape(-1, FIELDS)) for rows in side]
            for side in (self._out, self._in)
        ]
        units = max((units_of(r, self.most_pages) for to in self._out for r in to), default=1)
        shape = (0, 16) if self.reachable else (units, row_bytes(most)) if self.wire else (1, 16)
        self._outbox = self.sendable(shmem.device_array(shape, "uint8"))
        self._bytes = self._cache.view("uint8")

    def _instances(self) -> tuple[int, int]:
        """How many decode, and how many prefill."""
        sides = self._sides
        return len(sides.decode) // sides.decode_tp, len(sides.prefill) // sides.prefill_tp

    # --- on prefill PEs

    def start(
        self, request: int, pages: Sequence[int] | Any, *, to: int = 0, stream: Any = 0
    ) -> None:
        """Say which pages `request` has here, before its first `send`; on a prefill PE.

        `pages` are numbers, or a device array of int32 (k,) of them; `to` is the instance that
        decodes. Raises `ArgumentError` if its slot is in use.
        """
        integer("KVTransfer: to", to, 0, len(self._out) - 1)
        self._tell_the_late()
        others = {**self._late, **self._sent}
        slot = self._slot(request, {k: s for k, s in others.items() if s.to == to})
        if not self._out[to]:
            raise shmem.ArgumentError(
                f"KVTransfer: PE {self.my_pe} of the team shares no heads with decoding instance "
                f"{to}: it has nothing to send"
            )
        size, *asked = self._ask(pages, request, to, slot)
        self._launch_one(start_request, stream, *asked, to, slot, self._begun, self._mine)
        self._sent[request] = Sent(to, slot, size, given_up=False)

    def send(
        self, request: int, layer: int | None = None, *, first: int = 0, last: int | None = None,
        cache: Any = None, stream: Any = 0,
    ) -> None:  # fmt: skip
        """Send a layer of `request` to the PEs that decode it, once they have named their pages.

        Without `layer` all of them, of `self.cache`, by one launch.

        Layers are sent in their order, each once; or its pages `first` to `last` (exclusive), as
        they are produced: with the last one the layer is told of. They may be changed when this has
        completed on the stream. `cache` is where they are, if not in `cache[layer]`: an array of
        its shape, with any number of pages. A request that has been refused is not sent.
        """
        sent = self._known(request, self._sent, "start")
        if sent.given_up:
            return
        begin, layers = (0, self.layers) if layer is None else (layer, 1)
        integer("KVTransfer: layer", begin, 0, self.layers - 1)
        if last is not None:
            integer("KVTransfer: last", last, 0, sent.pages)
        integer("KVTransfer: first", first, 0, sent.pages if last is None else last)
        if cache is None or layer is None:
            self._expect_none(cache)
            cache = self._whole if layer is None else self.cache[begin]
        else:
            number = self.on_device("cache", cache).shape[1 if self._sides.apart else 0]
            self.expect("cache", cache, self._sides.shape(self.heads, int(number)), self.dtype)
        how = self.wire or "pages"
        nanoseconds = -1 if self.timeout is None else int(self.timeout * 1e9)
        self.launch(
            SENDING[how], stream, self.flat(cache), first,
            -1 if last is None else last, layers, begin, sent.to, sent.slot, nanoseconds,
            self._routes[0][sent.to], self._begun, self._mine, self._next, self._given,
            self._tables, self._cache, self._bytes, self._outbox, self._arrived, self._outcome,
        )  # fmt: skip

    # --- on decoding PEs

    def receive(
        self, request: int, pages: Sequence[int] | Any, *, source: int = 0, stream: Any = 0
    ) -> None:
        """Let prefill instance `source` write `request` to `pages` of `cache`; on a decoding PE.

        `pages` as in `start`, and as many. They are not for others until `finished`.
        """
        slot = self._slot(request, self._received)
        self._expect_source(source)
        _, *asked = self._ask(pages, request, -1, slot)
        self._launch_one(
            give_table, stream, *asked, slot, self.my_pe, self._routes[1][source],
            self._tables, self._given, self._kept, self._counts, self._arrived,
        )  # fmt: skip
        self._received[request] = Received(source, slot)

    def refuse(self, request: int, *, source: int = 0, stream: Any = 0) -> None:
        """Tell prefill instance `source` that there is no room for `request`: nothing is sent."""
        slot = self._slot(request, self._received)
        self._expect_source(source)
        self._say(request, slot, REFUSED, source, stream)

    def wait(self, request: int, layer: int | None = None, *, stream: Any = 0) -> None:
        """Let what follows on `stream` wait until `layer` of `request` is in its pages.

        Without `layer`, until all are. Call it once for each layer: with 8-bit floats it also
        makes numbers of them. It does not wait for ever if the layer is given up: `finished` tells.
        """
        got = self._known(request, self._received, "receive")
        if layer is None and self.wire:
            for each in range(self.layers):
                self.wait(request, each, stream=stream)
            return
        layer = self.layers - 1 if layer is None else layer
        integer("KVTransfer: layer", layer, 0, self.layers - 1)
        signals, routes = self._come[got.slot][layer], self._routes[1][got.source]
        if self.wire is None:
            self._launch_one(receive_layer, stream, signals, self._all, routes)
        else:
            self.launch(
                widen_layer, stream, signals, got.slot, layer, self._all, routes,
                self._kept, self._counts, self._cache, self._bytes,
            )  # fmt: skip

    def arrived(self, request: int, layer: int) -> bool:
        """Whether `wait` for this layer would not wait; does not wait itself."""
        got = self._known(request, self._received, "receive")
        integer("KVTransfer: layer", layer, 0, self.layers - 1)
        return self._named(request) and self._has_come(got, layer)

    # --- on both

    def finished(self, request: int) -> bool:
        """Whether `request` is over here: its pages may be used for others. Does not wait.

        On a prefill PE when all layers have been sent, on a decoding one when all have arrived.
        Returns True once, after which the number may be used again. Raises `TransferFailed`, also
        once, if it is over without having been sent: then nobody reads or writes its pages either.
        """
        self._tell_the_late()
        if request in self._sent:
            return self._sending_is_over(request)
        return self._receiving_is_over(request)

    def abort(self, request: int, *, stream: Any = 0) -> None:
        """Give `request` up, on either side; it is over when `finished` raises.

        On a prefill PE the layers not yet sent are told of as given up. On a decoding PE the others
        are told to send nothing more; what is on its way arrives.
        """
        if request in self._sent:
            sent = self._sent[request]._replace(given_up=True)
            self._late[request] = self._sent[request] = sent
            self._give_up(sent, stream)
            return
        got = self._known(request, self._received, "receive")
        self._received[request] = got._replace(cancelled=True)
        self._say(request, got.slot, CANCELLED, got.source, stream)

    def sends(self, pages: int | None = None) -> tuple[int, int]:
        """Bytes and messages that this PE sends of a layer of so many pages, or of `most_pages`.

        To the instance to which it sends most.
        """
        pages = self.most_pages if pages is None else pages
        return max((self._traffic(rows, pages) for rows in self._out), default=(0, 0))

    def _traffic(self, rows: list[Any], pages: int) -> tuple[int, int]:
        nbytes = messages = 0
        for row in rows:
            lines, (full, rest) = pages * row.halves * row.lines, divmod(row.length, row.most)
            if self.wire:
                of_line = full * row_bytes(row.most) + (row_bytes(rest) if rest else 0)
            else:
                of_line = row.length * self.dtype.itemsize
            nbytes += lines * of_line
            messages += units_of(row, pages) + self.blocks
        return nbytes, messages

    # --- what is behind

    def _expect_source(self, source: int) -> None:
        integer("KVTransfer: source", source, 0, len(self._in) - 1)
        if not self._in[source]:
            raise shmem.ArgumentError(
                f"KVTransfer: PE {self.my_pe} of the team shares no heads with prefill instance "
                f"{source}: nothing comes from there"
            )

    def _expect_none(self, cache: Any) -> None:
        if cache is not None:
            raise shmem.ArgumentError("KVTransfer: cache is that of one layer: say which it is")

    def _ask(self, pages: Any, request: int, side: int, slot: int) -> tuple[int, Any, Any]:
        """Fill a row of `_asked`; how many pages there are, and the two arrays that say which."""
        host, (row, table) = self._asked[side, slot], self._rows[side][slot]
        on_device = hasattr(pages, "__dlpack__") and not isinstance(pages, np.ndarray)
        numbers = self.flat(pages) if on_device else np.asarray(pages, "int32").reshape(-1)
        size = int(numbers.size)
        integer("KVTransfer: pages of a request", size, 1, self.most_pages)
        if on_device:
            self.expect("pages", numbers, (size,), "int32")
            table = numbers
        elif not 0 <= numbers.min() <= numbers.max() < self.pages:
            raise shmem.ArgumentError(
                f"KVTransfer: pages are numbered 0 to {self.pages - 1}; got "
                f"{numbers.min()} to {numbers.max()}"
            )
        else:
            host[ASKED_PAGES : ASKED_PAGES + size] = numbers
        host[ASKED_TICKET], host[ASKED_COUNT] = request + 1, size
        return size, table, row

    def _say(self, request: int, slot: int, what: int, source: int, stream: Any) -> None:
        value = (request + 1) << 32 | what
        self._launch_one(
            cancel, stream, value, slot, self.my_pe, self._routes[1][source], self._given
        )

    def _launch_one(self, kernel: Any, stream: Any, *args: Any) -> None:
        """Launch one block."""
        self.on(stream)
        self.launch_as((1, self.threads, stream), self._epochs, kernel, *args)


def reference(
    caches: dict[int, np.ndarray[Any, Any]], heads: dict[int, tuple[int, int]],
    pages: Sequence[int], to: np.ndarray[Any, Any], its_heads: tuple[int, int],
    its_pages: Sequence[int], apart: bool = False,
) -> None:  # fmt: skip
    """Write to `to`, a decoding PE's layer, what arrives of those of a prefill instance's PEs.

    `heads` has the first and last (exclusive) head of each PE in `caches`.
    """
    page = 1 if apart else 0
    whole = np.moveaxis(to, page, 0)
    for pe, cache in caches.items():
        first, last = max(heads[pe][0], its_heads[0]), min(heads[pe][1], its_heads[1])
        if first < last:
            source = np.moveaxis(cache, page, 0)[list(pages)]
            part = source[..., first - heads[pe][0] : last - heads[pe][0], :]
            whole[list(its_pages), ..., first - its_heads[0] : last - its_heads[0], :] = part
