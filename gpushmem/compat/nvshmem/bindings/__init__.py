"""Enumerations and unique ids, as `nvshmem.bindings` has them."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from gpushmem.ops import constants as c

__all__ = [
    "Cmp_type", "Init_status", "Pe_index", "Qp_handle_index", "Signal_op", "Smem_amount",
    "TeamConfig", "TeamUniqueId", "Team_id", "Thread_support", "UniqueId", "team_uniqueid",
    "uniqueid",
]  # fmt: skip


class Signal_op(IntEnum):
    """What a signal operation does."""

    SIGNAL_SET = c.SIGNAL_SET
    SIGNAL_ADD = c.SIGNAL_ADD


class Cmp_type(IntEnum):
    """What a wait compares for."""

    CMP_EQ = c.CMP_EQ
    CMP_NE = c.CMP_NE
    CMP_GT = c.CMP_GT
    CMP_LE = c.CMP_LE
    CMP_LT = c.CMP_LT
    CMP_GE = c.CMP_GE
    CMP_SENTINEL = 32767


class Smem_amount(IntEnum):
    """How much shared memory a block gives."""

    SMEM_RECOMMENDED = c.SMEM_RECOMMENDED
    SMEM_MINIMUM = c.SMEM_MINIMUM
    SMEM_BARRIERS_ONLY = c.SMEM_BARRIERS_ONLY
    MAX = 32767


class Init_status(IntEnum):
    """How far the runtime is initialised."""

    STATUS_NOT_INITIALIZED = 0
    STATUS_IS_BOOTSTRAPPED = 1
    STATUS_IS_INITIALIZED = 2
    STATUS_LIMITED_MPG = 3
    STATUS_FULL_MPG = 4
    STATUS_INVALID = 32767


class Thread_support(IntEnum):
    """Which threads may call."""

    THREAD_SINGLE = 0
    THREAD_FUNNELED = 1
    THREAD_SERIALIZED = 2
    THREAD_MULTIPLE = 3
    THREAD_TYPE_SENTINEL = 32767


class Qp_handle_index(IntEnum):
    """Queue pairs that need not be made."""

    QP_HOST = 0
    QP_DEFAULT = c.QP_DEFAULT
    QP_ANY = QP_ALL = 32767  # in kernels, as QP_ANY of gpushmem


class Pe_index(IntEnum):
    """Numbers that stand for no PE, or several."""

    PE_INVALID = -1
    PE_ANY = PE_ALL = 32768


class Team_id(IntEnum):
    """The teams that there are without asking."""

    TEAM_INVALID = int(c.TEAM_INVALID)
    TEAM_WORLD = int(c.TEAM_WORLD)
    TEAM_SHARED = int(c.TEAM_SHARED)
    TEAM_NODE = int(c.TEAM_NODE)
    TEAMS_MIN = 7
    TEAM_INDEX_MAX = 32767


class _Struct:
    """A C structure, as a NumPy record."""

    _dtype: np.dtype[Any]

    def __init__(self) -> None:
        self._data = np.zeros(1, self._dtype).view(np.recarray)

    @property
    def ptr(self) -> int:
        """Address of the structure."""
        return int(self._data.ctypes.data)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and bytes(other._data) == bytes(self._data)  # type: ignore[attr-defined]

    __hash__ = None  # type: ignore[assignment]


uniqueid_dtype = np.dtype([("version", np.int32), ("internal", np.int8, (124,))], align=True)


class uniqueid(_Struct):
    """What the processes of a job share to find each other; `_data` are its bytes."""

    _dtype = uniqueid_dtype

    def __init__(self, size: int = 1) -> None:
        super().__init__()

    @classmethod
    def from_data(cls, data: Any) -> uniqueid:
        """The id with these bytes."""
        made = cls()
        made._data = data
        return made

    @property
    def version(self) -> int:
        """The version of the structure."""
        return int(self._data.version[0])


UniqueId = uniqueid


class team_uniqueid:
    """A number that the PEs of a new team share."""

    def __init__(self, value: int = 0) -> None:
        self._data = np.full(1, value, np.uint64)

    @property
    def ptr(self) -> int:
        """Address of the number."""
        return int(self._data.ctypes.data)

    @property
    def value(self) -> int:
        """The number."""
        return int(self._data[0])

    @value.setter
    def value(self, value: int) -> None:
        self._data[0] = value

    def __str__(self) -> str:
        return str(self.value)


TeamUniqueId = team_uniqueid


class TeamConfig(_Struct):
    """Settings of a new team."""

    _dtype = np.dtype(
        [
            ("version", np.int32), ("num_contexts", np.int32), ("uniqueid", np.uint64),
            ("padding", np.int8, (48,)),
        ],
        align=True,
    )  # fmt: skip

    def __getattr__(self, name: str) -> int:
        if name.startswith("_") or name not in (self._dtype.names or ()):
            raise AttributeError(f"TeamConfig has no {name}")
        return int(self._data[name][0])

    def __setattr__(self, name: str, value: Any) -> None:
        if name in (self._dtype.names or ()):
            self._data[name] = getattr(value, "value", value)
        else:
            super().__setattr__(name, value)
