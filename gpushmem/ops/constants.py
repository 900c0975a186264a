"""Constants of the operations; the numbers are NVSHMEM 3's, so that they can be passed through."""

from __future__ import annotations

from gpushmem.ops.team import Team

__all__ = [
    "CMP_EQ",
    "CMP_GE",
    "CMP_GT",
    "CMP_LE",
    "CMP_LT",
    "CMP_NE",
    "COMPARISONS",
    "QP_ANY",
    "QP_DEFAULT",
    "SIGNAL_ADD",
    "SIGNAL_SET",
    "SMEM_BARRIERS_ONLY",
    "SMEM_BYTES",
    "SMEM_MINIMUM",
    "SMEM_RECOMMENDED",
    "TEAM_INVALID",
    "TEAM_NODE",
    "TEAM_SHARED",
    "TEAM_WORLD",
]

CMP_EQ = 0
CMP_NE = 1
CMP_GT = 2
CMP_LE = 3
CMP_LT = 4
CMP_GE = 5

SIGNAL_SET = 9
SIGNAL_ADD = 10

QP_DEFAULT = 1
QP_ANY = 2**31 - 1

SMEM_RECOMMENDED = 0
SMEM_MINIMUM = 1
SMEM_BARRIERS_ONLY = 2

# Bytes of shared memory; what NVSHMEM 3.8 keeps of it for itself is the last number.
SMEM_BYTES = (65536, 32768, 1136)

COMPARISONS = {CMP_EQ: "==", CMP_NE: "!=", CMP_GT: ">", CMP_LE: "<=", CMP_LT: "<", CMP_GE: ">="}

TEAM_INVALID = Team(-1)
TEAM_WORLD = Team(0)
TEAM_SHARED = Team(1)
TEAM_NODE = Team(2)
