"""PE 0 creates the job's memory, and sends its descriptors to PEs started by other launchers.

The descriptors go over a Unix-domain socket in the abstract namespace, so there is no file. PE 0
sends the socket's name, and a key made for this job, through the `Channel` of the launcher. Then

    client -> PE 0   (handshake) the cores it may use
    PE 0 -> client   a description of the job; its descriptors, in batches, each one confirmed
    PE 0 -> client   notice that all PEs have them

PE 0 completes each step with all PEs before the next, so either all PEs join the job, or none.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import time
from collections import Counter
from typing import Any

from gpushmem import settings
from gpushmem.errors import BackendUnavailable, BootstrapError, ShmemError
from gpushmem.job.job import Job, create
from gpushmem.job.limits import SPARE, check_open_files
from gpushmem.start.bootstrap import machines
from gpushmem.start.bootstrap.channel import GRACE, Channel, Deadline
from gpushmem.start.bootstrap.client import Client
from gpushmem.start.bootstrap.handshake import Unproven
from gpushmem.start.bootstrap.server import Listener

__all__ = ["found", "join", "raise_refusal", "refusal"]

PURPOSE = b"descriptors"
AT_ONCE = 200  # descriptors per message; Linux allows 253
# Errors after which an attempt is repeated: no listener, not PE 0, a stale address.
BROKEN = (OSError, Unproven, ValueError, KeyError, TypeError)
REFUSALS = {kind.__name__: kind for kind in (BackendUnavailable, BootstrapError)}


def join(channel: Channel) -> Job:
    """Meet the other PEs. Raises `BootstrapError`, `BackendUnavailable`."""
    deadline = Deadline(settings.get("GPUSHMEM_BOOTSTRAP_TIMEOUT"))
    check_open_files(channel.n_pes, 2 * channel.n_pes + SPARE)
    try:
        job = (_lead if channel.my_pe == 0 else _follow)(channel, deadline)
    finally:
        channel.close()
    return job


# --- PE 0


def _lead(channel: Channel, deadline: Deadline) -> Job:
    key = channel.key or secrets.token_bytes(32)
    name = f"gpushmem-{os.getuid()}-{secrets.token_hex(16)}"
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.closing(Listener(sock, key, PURPOSE, channel.n_pes)) as listener:
        try:
            said = channel.gather(deadline)
            machines.check({0: machines.identity(), **said} if said else {}, channel.n_pes)
            sock.bind("\0" + name)
            sock.listen(4096)
            invitation = {"name": name} if channel.key else {"name": name, "key": key.hex()}
            channel.announce(json.dumps(invitation).encode())
            return _hand_out(channel, listener, deadline)
        except ShmemError as error:
            refused = json.dumps(refusal(error)).encode()
            channel.announce(refused)
            listener.tell_all(refused)
            raise


def refusal(error: ShmemError) -> dict[str, str]:
    """Return PE 0's message to the others when it gives up."""
    kind = type(error).__name__
    return {"refused": kind if kind in REFUSALS else "BootstrapError", "why": str(error)[:8000]}


def _hand_out(channel: Channel, listener: Listener, deadline: Deadline) -> Job:
    said = listener.gather(deadline, channel.where)
    cores = {0: machines.cpus(), **{pe: text.decode() for pe, text in said.items()}}
    sharing = Counter(cores.values())
    job = create(channel.n_pes, bootstrap=found(channel))
    with _closed_on_error(job.fds):
        about = {"max_teams": job.max_teams, "n_nodes": job.n_nodes, "n_fds": len(job.fds)}
        until = deadline.later(1.0)  # for all PEs together
        for pe in said:
            try:
                about["sharing"] = sharing[cores[pe]]
                _send(listener, pe, json.dumps(about).encode(), job.fds, until)
            except OSError as error:
                raise BootstrapError(
                    f"PE {pe} of {channel.n_pes} connected, but left before it had the job's "
                    f"memory ({_reason(error)}): see its own output"
                ) from None
        channel.close()  # a later reader belongs to another job
        listener.tell_all(b"{}")
    _divide_cores(sharing[cores[0]])
    return job


def _send(
    listener: Listener, pe: int, about: bytes, fds: tuple[int, ...], deadline: Deadline
) -> None:
    listener.tell(pe, about, deadline.left)
    sock = listener.here[pe].socket
    for lot in range(0, len(fds), AT_ONCE):
        sock.settimeout(max(0.001, deadline.left))
        socket.send_fds(sock, [b"f"], fds[lot : lot + AT_ONCE])
        if sock.recv(1) != b"k":  # descriptors in flight are limited, too
            raise ConnectionError("it left")


@contextlib.contextmanager
def _closed_on_error(fds: Any) -> Any:
    try:
        yield
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise


# --- the others


def _follow(channel: Channel, deadline: Deadline) -> Job:
    channel.say(machines.identity())
    answer = None
    pause = 0.002
    longer = deadline.later(min(GRACE, deadline.seconds))
    while True:
        answer = channel.answer(deadline) or answer
        if answer is not None:
            try:
                return _fetch(channel, answer, longer)
            except BROKEN as error:
                channel.failed(f"it gave a meeting place, but connecting failed: {_reason(error)}")
        if not deadline.left:
            raise BootstrapError(
                f"PE {channel.my_pe} of {channel.n_pes} waited {deadline.seconds:g} s for PE 0 "
                f"{channel.where}: {channel.trouble}. Check whether PE 0 runs, or has "
                "failed earlier; for more time set GPUSHMEM_BOOTSTRAP_TIMEOUT"
            )
        time.sleep(min(pause, deadline.left))
        pause = min(2 * pause, 0.1)


def _fetch(channel: Channel, answer: bytes, deadline: Deadline) -> Job:
    invitation = json.loads(answer)
    raise_refusal(invitation)
    key = channel.key or bytes.fromhex(invitation["key"])
    client = Client(
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), "\0" + invitation["name"], key,
        PURPOSE, channel.my_pe, channel.n_pes, deadline,
    )  # fmt: skip
    with contextlib.closing(client):
        client.say(machines.cpus().encode())
        about = _hear(client, deadline)
        fds: list[int] = []
        with _closed_on_error(fds):
            while len(fds) < about["n_fds"]:
                fds += client.receive_fds(min(AT_ONCE, about["n_fds"] - len(fds)))
                client.confirm()
            _hear(client, deadline)  # all PEs have the descriptors
    _divide_cores(about["sharing"])
    board, control, *heaps = fds
    return Job(
        channel.my_pe, channel.n_pes, None, about["max_teams"], found(channel), board, control,
        tuple(heaps), about["n_nodes"],
    )  # fmt: skip


def _hear(client: Client, deadline: Deadline) -> dict[str, Any]:
    try:
        heard: dict[str, Any] = json.loads(client.hear(deadline))
    except TimeoutError:
        raise TimeoutError("PE 0 is there, waiting for other PEs") from None
    raise_refusal(heard)
    return heard


def raise_refusal(heard: dict[str, Any]) -> None:
    """Raise PE 0's error if this message contains one."""
    if "refused" in heard:
        raise REFUSALS.get(heard["refused"], BootstrapError)(heard["why"])


def _reason(error: BaseException) -> str:
    system: str | None = getattr(error, "strerror", None)
    return system.lower() if system else str(error) or type(error).__name__


# --- both


def found(channel: Channel) -> str:
    """Describe how the PEs found each other, for messages."""
    return f"found through {channel.found}"


def _divide_cores(sharing: int) -> None:
    """Divide the cores among the PEs that may use the same ones, unless the user has decided."""
    if not settings.is_set("GPUSHMEM_THREADS"):
        mine = len(os.sched_getaffinity(0))
        settings.put("GPUSHMEM_THREADS", max(1, mine // sharing))
