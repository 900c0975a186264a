"""What `kv_transfer` knows of the requests under way: their slots, when and how they are over."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gpushmem.kernels.kv_pages import (
    CANCELLED,
    COUNT,
    LEFT,
    REFUSED,
    give_up,
)
from gpushmem.kernels.kv_routes import Route
from gpushmem.kernels.plan import Plan

import gpushmem as shmem
from gpushmem.checks import integer

__all__ = ["Received", "Requests", "Sent", "TransferFailed"]

MOST_REQUESTS = 2**31 - 2


class TransferFailed(shmem.ShmemError):
    """A request that is over without its pages: refused, given up, or never answered.

    `request` is its number. Others go on: nothing of theirs depends on it.
    """

    def __init__(self, request: int, reason: str) -> None:
        super().__init__(request, reason)
        self.request, self.reason = request, reason

    def __str__(self) -> str:
        return f"KVTransfer: request {self.request}: {self.reason}"


class Sent(NamedTuple):
    """A request that this PE sends."""

    to: int  # the decoding instance
    slot: int
    pages: int
    given_up: bool


class Received(NamedTuple):
    """A request that this PE receives."""

    source: int  # the prefill instance
    slot: int
    cancelled: bool = False
    named: bool = False  # whether the launch of `receive` has been seen to be over


class Requests(Plan):
    """A plan that has requests; it looks at their signals, and waits for none of them."""

    layers: int
    requests: int  # slots
    timeout: float | None
    _out: list[list[Route]]  # to each decoding instance
    _in: list[list[Route]]  # from each prefill instance
    _routes: list[list[Any]]  # both, for kernels
    _sent: dict[int, Sent]
    _received: dict[int, Received]
    _late: dict[int, Sent]  # given up, and not everybody has been told yet
    _given: Any
    _arrived: Any
    _come: list[list[Any]]  # parts of it, by slot and layer
    _all: int  # what a signal is when all blocks have added to it
    _outcome: Any
    _over: list[list[Any]]  # parts of it, by instance and slot
    _done: np.ndarray[Any, Any]  # what was counted in it when the last request was over
    _gave: np.ndarray[Any, Any]  # how many blocks have been launched to give up
    _begun: Any
    _next: Any

    def _give_up(self, sent: Sent, stream: Any) -> None:
        self._gave[sent.to, sent.slot] += np.uint64(self.blocks)
        self.launch(
            give_up, stream, sent.to, sent.slot, self.layers, self._routes[0][sent.to],
            self._begun, self._next, self._given, self._arrived, self._outcome,
        )  # fmt: skip

    def _slot(self, request: int, others: dict[int, Any]) -> int:
        """The slot of a new request, which none of the others may have."""
        integer("KVTransfer: request", request, 0, MOST_REQUESTS)
        if not self.team:
            raise shmem.TeamError("KVTransfer: this PE is not in the plan's team")
        slot = request % self.requests
        for other, state in others.items():
            if state.slot == slot:
                raise shmem.ArgumentError(
                    f"KVTransfer: request {request} has slot {slot} of {self.requests}, which "
                    f"request {other} has until it is over on both sides"
                )
        return slot

    def _known(self, request: int, known: dict[int, Any], before: str) -> Any:
        if request not in known:
            raise shmem.ArgumentError(
                f"KVTransfer: request {request} is not under way here: call `{before}` first"
            )
        return known[request]

    def _tell_the_late(self) -> None:
        """Tell who has named pages by now of requests that were given up before."""
        for request, sent in list(self._late.items()):
            if all(self._heard(r.to, sent.slot) > request for r in self._out[sent.to]):
                del self._late[request]
                self._give_up(sent, self._stream or 0)

    def _heard(self, pe: int, slot: int) -> int:
        """The ticket that decoding PE `pe` has sent last."""
        return int(shmem.signal_fetch(self._given[pe, slot:])) >> 32

    def _sending_is_over(self, request: int) -> bool:
        sent = self._sent[request]
        words, place = self._over[sent.to][sent.slot], (sent.to, sent.slot)
        left = sent.given_up and shmem.signal_fetch(words[LEFT:]) == self._gave[place]
        word = shmem.signal_fetch(words)  # of what is done
        failed, done = divmod(int(word) - int(self._done[place]), 1 << 32)
        if not left and done < self.layers * self.blocks * len(self._out[sent.to]):
            return False
        del self._sent[request]
        self._done[place] = word
        if left:
            raise TransferFailed(request, self._reason(request, sent) or "it was given up here")
        if failed:
            raise TransferFailed(
                request, self._reason(request, sent) or self._unheard(request, sent)
            )
        return True

    def _unheard(self, request: int, sent: Sent) -> str:
        self._late[request] = sent
        pes = [r.to for r in self._out[sent.to] if self._heard(r.to, sent.slot) <= request]
        if not pes:
            return "its layers were not sent in their order, each once"
        return f"decoding PEs {pes} of the team have named no pages within {self.timeout} s"

    def _reason(self, request: int, sent: Sent) -> str | None:
        """What a decoding PE has said against a request, or None."""
        pages = sent.pages
        for row in self._out[sent.to]:
            value = int(shmem.signal_fetch(self._given[row.to, sent.slot :]))
            ticket, count = value >> 32, value & COUNT
            if ticket > request + 1:  # what was said of this request is gone
                return (
                    f"decoding PE {row.to} of the team, which has gone on to request {ticket - 1}, "
                    "has refused it or has another number of pages"
                )
            if count == REFUSED:
                return f"decoding PE {row.to} of the team has refused it"
            if count == CANCELLED:
                return f"decoding PE {row.to} of the team has given it up"
            if ticket == request + 1 and count != pages:
                return f"it has {pages} pages here, and {count} on decoding PE {row.to} of the team"
        return None

    def _named(self, request: int) -> bool:
        """Whether the launch of `receive` has been: counts are those of this request."""
        got = self._received[request]
        if not got.named and shmem.signal_fetch(self._come[got.slot][-1]) == request + 1:
            self._received[request] = got = got._replace(named=True)
        return got.named

    def _has_come(self, got: Received, layer: int) -> bool:
        return min(self._said_of(got, layer)) >= self._all

    def _said_of(self, got: Received, layer: int) -> list[int]:
        """What each sender has counted of a layer."""
        signals, routes = self._come[got.slot][layer], self._in[got.source]
        return [int(shmem.signal_fetch(signals[route.rank :])) for route in routes]

    def _receiving_is_over(self, request: int) -> bool:
        got = self._known(request, self._received, "receive")
        if not self._named(request):
            return False
        said = self._said_of(got, self.layers - 1)
        if min(said) < self._all:
            return False
        del self._received[request]
        if got.cancelled:
            raise TransferFailed(request, "it was given up here")
        for layer in range(self.layers if any(word & COUNT for word in said) else 0):
            for route, word in zip(self._in[got.source], self._said_of(got, layer), strict=True):
                if word & COUNT:
                    raise TransferFailed(
                        request,
                        f"prefill PE {route.to} of the team has not sent it from layer {layer} on: "
                        "it has given it up, or has another number of pages",
                    )
        return True
