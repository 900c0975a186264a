"""Constants of the operations; the numbers are NVSHMEM 3's, so that they can be passed through."""

from __future__ import annotations

__all__ = [
    "CMP_EQ",
    "CMP_GE",
    "CMP_GT",
    "CMP_LE",
    "CMP_LT",
    "CMP_NE",
    "COMPARISONS",
    "SIGNAL_ADD",
    "SIGNAL_SET",
]

CMP_EQ = 0
CMP_NE = 1
CMP_GT = 2
CMP_LE = 3
CMP_LT = 4
CMP_GE = 5

SIGNAL_SET = 9
SIGNAL_ADD = 10

COMPARISONS = {CMP_EQ: "==", CMP_NE: "!=", CMP_GT: ">", CMP_LE: "<=", CMP_LT: "<", CMP_GE: ">="}
