"""The types of nvshmem4py's interface."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any

from gpushmem.compat.cuda_core import Stream
from gpushmem.compat.nvshmem.bindings import Team_id

__all__ = [
    "BufferTypes", "MutableEnum", "NvshmemError", "NvshmemInvalid", "NvshmemKernelObject",
    "NvshmemStream", "NvshmemStreamsType", "Teams", "Version",
]  # fmt: skip


class NvshmemInvalid(Exception):
    """A call that makes no sense."""

    def __init__(self, msg: str) -> None:
        super().__init__(msg)
        self.msg = msg


class NvshmemError(Exception):
    """A call that has failed."""

    def __init__(self, msg: str) -> None:
        super().__init__(msg)
        self.msg = msg


class NvshmemWarning(UserWarning):
    """Something that is probably not meant: sizes that differ, say."""


class MutableEnum:
    """Names with values, to which names may be added."""

    def __init__(self, **members: Any) -> None:
        self._members = members

    @classmethod
    def from_enum(cls, enum_cls: Any) -> MutableEnum:
        """One with members of an enumeration."""
        return cls(**{member.name: member.value for member in enum_cls})

    def add(self, key: str, value: Any) -> None:
        """Add a name; raises `ValueError` if it is there."""
        if key in self._members:
            has = self._members[key]
            raise ValueError(f"there is already a team {key} ({has}): take another name")
        self._members[key] = value

    def remove(self, key: str) -> None:
        """Remove a name; raises `ValueError` if it is not there."""
        if key not in self._members:
            raise ValueError(f"there is no {key}: there are {', '.join(self._members)}")
        del self._members[key]

    def remove_by_value(self, value: Any) -> None:
        """Remove the first name of a value, if there is one."""
        for key in [key for key, has in self._members.items() if has == value][:1]:
            del self._members[key]

    def __getattr__(self, item: str) -> Any:
        if item.startswith("__") or item not in self._members:
            raise AttributeError(f"there is no {item}: there are {', '.join(self._members)}")
        return self._members[item]

    def __getitem__(self, item: str) -> Any:
        return self._members[item]

    def __contains__(self, item: object) -> bool:
        return item in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def keys(self) -> Any:
        """The names."""
        return self._members.keys()

    def values(self) -> Any:
        """The values."""
        return self._members.values()

    def items(self) -> Any:
        """Names and values."""
        return self._members.items()

    def __repr__(self) -> str:
        members = ", ".join(f"{name}={value}" for name, value in self._members.items())
        return f"<MutableEnum {members}>"


# Teams that mean GPUs and switches are missing: PEs here share no GPU, and there is no switch.
Teams = MutableEnum.from_enum(
    team for team in Team_id if team not in (Team_id.TEAMS_MIN, Team_id.TEAM_INDEX_MAX)
)


class BufferTypes(IntEnum):
    """What a buffer is."""

    NORMAL = 0
    PEER = 1
    MULTIMEM = 2
    EXTERNAL = 3


class Version:
    """Three versions, as texts."""

    def __init__(
        self,
        openshmem_spec_version: str = "",
        nvshmem4py_version: str = "",
        libnvshmem_version: str = "",
    ) -> None:
        self.openshmem_spec_version = openshmem_spec_version
        self.nvshmem4py_version = nvshmem4py_version
        self.libnvshmem_version = libnvshmem_version

    def __repr__(self) -> str:
        return (
            f"nvshmem4py {self.nvshmem4py_version}, library {self.libnvshmem_version}, "
            f"OpenSHMEM {self.openshmem_spec_version}"
        )


class NvshmemStream(Stream):
    """A stream of PyTorch's."""

    def __init__(self, pt_stream: Any) -> None:
        super().__init__(pt_stream.cuda_stream, pt_stream)
        self.pt_stream = pt_stream


NvshmemStreamsType = Any


class NvshmemKernelObject:
    """A module of GPU code: there is none here, so making one is an error."""

    def __init__(self, *_: Any) -> None:
        raise NvshmemInvalid(
            "NvshmemKernelObject: modules of GPU code cannot be loaded on the CPU; kernels of "
            "numba.cuda need no module_init"
        )

    from_handle = from_obj = from_obj_bytes = from_triton = from_cuda_bindings = classmethod(
        lambda cls, *_: cls()
    )
