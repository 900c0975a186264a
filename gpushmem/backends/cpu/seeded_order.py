"""Orders that a seed chooses: the same in every run with that seed."""

from __future__ import annotations

import hashlib

__all__ = ["number_of", "order_of"]

ORDERS = 1 << 20  # in which the blocks and threads of a launch may start


def number_of(*parts: int) -> int:
    """A number, as good as random, that some numbers determine."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=6).digest()
    return int.from_bytes(digest, "little")


def order_of(number: int) -> int:
    """What a launch has as `seed`: an order in which its blocks and threads start."""
    return 1 + number % ORDERS
