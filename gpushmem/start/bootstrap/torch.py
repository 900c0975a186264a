"""PEs started by torchrun, or with the variables of `torch.distributed`: uses its TCPStore."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any

from gpushmem.errors import BootstrapError
from gpushmem.start.bootstrap.channel import Channel, Deadline, missing, number, place
from gpushmem.start.bootstrap.polling import poll

__all__ = ["GroupStore", "channel", "recognised", "with_agent"]

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_kept: list[Any] = []


def recognised() -> bool:
    """Whether all variables that `torch.distributed` needs are set."""
    return all(name in os.environ for name in VARIABLES)


def with_agent() -> bool:
    """Whether torchrun itself started this process."""
    return recognised() and "TORCHELASTIC_RUN_ID" in os.environ


def channel(several: bool = False) -> Channel | None:
    """Return the channel between this job's PEs; None for one PE."""
    absent = [name for name in VARIABLES if name not in os.environ]
    if absent:
        raise BootstrapError(
            f"bootstrap torch: {', '.join(absent)} not set: start the processes with torchrun"
        )
    my_pe, n_pes = place("RANK", "WORLD_SIZE")
    return None if n_pes == 1 else Store(my_pe, n_pes)


class Store(Channel):
    """A channel through a TCPStore."""

    _store: Any = None

    def __init__(self, my_pe: int, n_pes: int) -> None:
        self._torch = _torch()
        self._host, self._port = os.environ["MASTER_ADDR"], number("MASTER_PORT", 1, 65535)
        agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self._serves = my_pe == 0 and not agent
        by = "torchrun" if "TORCHELASTIC_RUN_ID" in os.environ else "RANK and MASTER_ADDR"
        super().__init__(
            my_pe, n_pes, f"torch ({by}, PyTorch {self._torch.__version__})",
            f"through the store at {self._host}:{self._port}", "PE 0 has written nothing there",
        )  # fmt: skip
        self._begin()
        job = [os.environ.get(f"TORCHELASTIC_{n}", "") for n in ("RUN_ID", "RESTART_COUNT")]
        self._prefix = "/".join(["gpushmem", *job])

    def _begin(self) -> None:
        self._said = b""
        self._written: list[str] = []

    def say(self, identity: bytes) -> None:
        self._said = identity

    def gather(self, deadline: Deadline) -> dict[int, bytes]:
        if not poll(deadline, lambda: self._connected(deadline)):
            raise BootstrapError(f"PE 0 found no store {self.where}: {self.trouble}")
        keys = {pe: self._name(pe) for pe in range(1, self.n_pes)}

        def all_came() -> bool:
            for pe in [pe for pe in keys if pe not in said and self._store.check([keys[pe]])]:
                said[pe] = self._store.get(keys[pe])
            return len(said) == len(keys)

        said: dict[int, bytes] = {}
        self._written += keys.values()
        if not poll(deadline, all_came):
            raise missing(keys.keys() - said.keys(), self.n_pes, deadline.seconds, self.where)
        return said

    def announce(self, answer: bytes) -> None:
        if self._store is not None:
            self._written.append(self._name("answer"))
            self._store.set(self._name("answer"), answer)

    def answer(self, deadline: Deadline) -> bytes | None:
        try:
            if not self._connected(deadline):
                return None
            if self._said:
                self._store.set(self._name(self.my_pe), self._said)
                self._said = b""
            name = self._name("answer")
            return self._store.get(name) if self._store.check([name]) else None
        except RuntimeError as error:  # the only error type of TCPStore
            self._store = None
            self.failed(_first_line(error))
            return None

    def close(self) -> None:
        for name in self._written:
            try:
                self._store.delete_key(name)
            except RuntimeError:
                break
        self._written.clear()

    def _name(self, what: int | str) -> str:
        return f"{self._prefix}/{what}"

    def _connected(self, deadline: Deadline) -> bool:
        if self._store is None:
            try:
                if not self._serves:  # TCPStore fails slowly, and prints long stack traces
                    socket.create_connection(
                        (self._host, self._port), max(0.001, min(5.0, deadline.left))
                    ).close()
                self._store = self._torch.distributed.TCPStore(
                    self._host, self._port, self.n_pes, self._serves,
                    timedelta(seconds=max(1.0, deadline.left)), wait_for_workers=False,
                    multi_tenant=True,
                )  # fmt: skip
            except (RuntimeError, OSError) as error:
                self.failed(_first_line(error))
                return False
            if self._serves:
                # torch.distributed of this process shares it; other processes may already use it.
                _kept.append(self._store)
        return True


class GroupStore(Store):
    """A channel through the store of a process group that is there, or is being made."""

    def __init__(self, group: Any) -> None:
        Channel.__init__(
            self, group.rank(), group.size(), "torch (process group)",
            "through the store of a process group", "PE 0 has written nothing there",
        )  # fmt: skip
        self._store = self._kept = group.get_group_store()
        self._prefix = "gpushmem"
        self._begin()

    def _connected(self, deadline: Deadline) -> bool:
        self._store = self._kept
        return True


def _first_line(error: BaseException) -> str:
    system: str | None = getattr(error, "strerror", None)
    return system or (str(error).splitlines() or [type(error).__name__])[0]


def _torch() -> Any:
    try:
        import torch  # noqa: PLC0415  (optional, and heavy)
        import torch.distributed  # noqa: PLC0415
    except ImportError as error:
        raise BootstrapError(
            f"bootstrap torch: PyTorch cannot be imported ({error}): install it, or choose "
            "another bootstrap with init(bootstrap=...)"
        ) from None
    if not torch.distributed.is_available():
        raise BootstrapError("bootstrap torch: this PyTorch is built without torch.distributed")
    return torch
