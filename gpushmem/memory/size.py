"""Sizes in bytes, as people write them."""

from __future__ import annotations

import re

from gpushmem.errors import ArgumentError

__all__ = ["format_size", "parse_size"]

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?\s*", re.IGNORECASE)


def parse_size(text: str | int) -> int:
    """Read a size: 268435456, "4096", "256M", "1.5GiB"; K, M, G and T are powers of 1024.

    Raises `ArgumentError` naming the value if it is no size or less than a byte.
    """
    match = PATTERN.fullmatch(str(text))
    size = int(float(match[1]) * UNITS[match[2].upper()]) if match else 0
    if size < 1:
        raise ArgumentError(
            f"{text!r} is not a size: write a positive number of bytes, or one with K, M, G or T "
            "behind it, such as 256M or 1.5G"
        )
    return size


def format_size(nbytes: int) -> str:
    """Write a size for people: "96 bytes", "256 MiB", "1.5 GiB"."""
    for unit in "TGMK":
        if nbytes >= UNITS[unit]:
            return f"{nbytes / UNITS[unit]:.4g} {unit}iB"
    return f"{nbytes} bytes"
