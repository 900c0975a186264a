"""Sizes in bytes as text ("256M"), and the address range of an array."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from gpushmem.errors import ArgumentError

__all__ = ["format_size", "parse_size", "span"]

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
LARGEST = 2**63 - 1  # limit of the system calls
PATTERN = re.compile(
    r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*(?:([KMGT])(?:I?B)?|B)?\s*", re.IGNORECASE | re.ASCII
)


def parse_size(text: str | int) -> int:
    """Parse a size: 268435456, "4096", "256M", "1.5GiB"; K, M, G and T are powers of 1024.

    Raises `ArgumentError` naming the value if it is not a size, less than a byte, or 2**63 or more.
    """
    match = PATTERN.fullmatch(str(text))
    number, unit = (Fraction(match[1]), match[2] or "") if match else (Fraction(0), "")
    size = number * UNITS[unit.upper()]
    if not 1 <= size <= LARGEST or (not unit and size.denominator > 1):
        raise ArgumentError(
            f"{text!r} is not a size: write a positive number of bytes below 2**63, or one with "
            "K, M, G or T behind it, such as 256M or 1.5G"
        )
    return int(size)


def format_size(nbytes: int) -> str:
    """Format a size with a unit: "96 bytes", "256 MiB", "1.5 GiB"."""
    for unit in "TGMK":
        if nbytes >= UNITS[unit]:
            return f"{nbytes / UNITS[unit]:.4g} {unit}iB"
    return f"{nbytes} bytes"


def span(array: Any) -> tuple[int, int]:
    """Return the address range [start, end) of a NumPy array; its strides may be negative."""
    start: int = array.__array_interface__["data"][0]
    if not array.size:
        return start, start
    reach = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    below, above = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
    return start + below, start + above + array.itemsize
