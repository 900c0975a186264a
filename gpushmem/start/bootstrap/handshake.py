"""Mutual authentication: both ends of a new connection prove that they know the job's key first.

    client -> server   magic, PE, number of PEs, 32 random bytes
    server -> client   32 random bytes, HMAC("server", all so far)
    client -> server   HMAC("client", all so far)

Every message has a fixed size. What follows are frames: length, payload, and an HMAC with a key
derived for this connection, so over TCP nobody in between can add, change, repeat or reorder them.

The functions are generators independent of sockets: they yield the number of bytes they need next,
or bytes to send. The server runs many at once, a client one.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from collections.abc import Generator
from typing import Any

__all__ = ["LARGEST", "Session", "Talk", "Unproven", "greet", "receive_greeting"]

Talk = Generator[int | bytes, Any, Any]

MAGIC = b"gpushme1"
HELLO = struct.Struct("!8sII32s")
NONCE = PROOF = 32
LENGTH = struct.Struct("!I")
LARGEST = 1 << 16  # limit on the bytes of a frame


class Unproven(Exception):
    """The other end does not know the key, or does not speak this protocol."""


class Session:
    """An authenticated connection: encodes and decodes frames."""

    def __init__(self, key: bytes, mine: bytes, theirs: bytes) -> None:
        self._key = key
        self._mine, self._theirs = mine, theirs
        self._sent = self._received = 0

    def frame(self, payload: bytes) -> bytes:
        """Return the encoded frame for a payload."""
        if len(payload) > LARGEST:
            raise ValueError(f"a frame holds {LARGEST} bytes, not {len(payload)}")
        proof = self._proof(self._mine, self._sent, payload)
        self._sent += 1
        return LENGTH.pack(len(payload)) + payload + proof

    def receive(self) -> Talk:
        """Decode a frame; returns its payload."""
        (size,) = LENGTH.unpack((yield LENGTH.size))
        if size > LARGEST:
            raise Unproven(f"a frame of {size} bytes; the limit is {LARGEST}")
        payload = (yield size) if size else b""
        proof = yield PROOF
        if not hmac.compare_digest(proof, self._proof(self._theirs, self._received, payload)):
            raise Unproven("a frame was modified in transit")
        self._received += 1
        return payload

    def _proof(self, sender: bytes, count: int, payload: bytes) -> bytes:
        return _hmac(self._key, sender, struct.pack("!QI", count, len(payload)), payload)


def greet(key: bytes, purpose: bytes, pe: int, n_pes: int) -> Talk:
    """The client's side; returns the `Session`. Raises `Unproven`."""
    hello = HELLO.pack(MAGIC, pe, n_pes, secrets.token_bytes(NONCE))
    yield hello
    nonce = yield NONCE
    proof = yield PROOF
    if not hmac.compare_digest(proof, _hmac(key, b"server", purpose, hello, nonce)):
        raise Unproven("the process that answers there does not have this job's key")
    yield _hmac(key, b"client", purpose, hello, nonce)
    return Session(_hmac(key, b"session", purpose, hello, nonce), b"client", b"server")


def receive_greeting(key: bytes, purpose: bytes, n_pes: int) -> Talk:
    """The server's side; returns the client's PE and the `Session`. Raises `Unproven`."""
    hello = yield HELLO.size
    magic, pe, theirs, _ = HELLO.unpack(hello)
    if magic != MAGIC:
        raise Unproven("it does not speak this protocol")
    nonce = secrets.token_bytes(NONCE)
    yield nonce + _hmac(key, b"server", purpose, hello, nonce)
    proof = yield PROOF
    if not hmac.compare_digest(proof, _hmac(key, b"client", purpose, hello, nonce)):
        raise Unproven("it does not have this job's key")
    if theirs != n_pes or not 0 < pe < n_pes:
        raise Unproven(f"it says it is PE {pe} of {theirs}; this job has PEs 0 to {n_pes - 1}")
    return pe, Session(_hmac(key, b"session", purpose, hello, nonce), b"server", b"client")


def _hmac(key: bytes, *parts: bytes) -> bytes:
    # Length prefixes make the concatenation unambiguous.
    text = b"".join(LENGTH.pack(len(part)) + part for part in parts)
    return hmac.new(key, text, hashlib.sha256).digest()
