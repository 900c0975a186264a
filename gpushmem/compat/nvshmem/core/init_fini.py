"""Beginning and end: `init`, `finalize`, unique ids, versions."""

from __future__ import annotations

import enum
import logging
import secrets
import socket
from collections.abc import Callable
from typing import Any

import numpy as np

from gpushmem import __version__, runtime, settings
from gpushmem.backends import selection
from gpushmem.compat.nvshmem import __version__ as mirrored
from gpushmem.compat.nvshmem import bindings
from gpushmem.compat.nvshmem.core import memory, session, teams
from gpushmem.compat.nvshmem.core.nvshmem_types import (
    NvshmemInvalid,
    NvshmemKernelObject,
    Version,
)
from gpushmem.errors import BackendUnavailable
from gpushmem.job import job as jobs

__all__ = [
    "DeviceLibLanguage", "UniqueID", "finalize", "find_device_bitcode_library", "get_name",
    "get_unique_id", "get_version", "init", "library_finalize", "library_init", "module_finalize",
    "module_init",
]  # fmt: skip

logger = logging.getLogger("nvshmem")
UniqueID = bindings.uniqueid
HOST, KEY_BYTES = "127.0.0.1", 32
BACKEND = "cpu"  # it has numba.cuda's streams, and this machine's memory
_ended = False  # by a `finalize`
_reserved: dict[int, socket.socket] = {}  # ports of unique ids that this process has made


class DeviceLibLanguage(enum.Enum):
    """Forms of NVSHMEM's device library."""

    LLVM_BITCODE = "bc"
    LTOIR = "ltoir"
    STATIC = "a"


def get_name() -> str:
    """The name of what runs below the interface."""
    return f"gpushmem {__version__}"


def get_version() -> Version:
    """The versions of the interface, and of what runs below it."""
    return Version("1.5", mirrored, f"gpushmem {__version__}")


def get_unique_id(empty: bool = False) -> bindings.uniqueid:
    """Make a unique id for `init`; `empty` makes room for another process's."""
    made = bindings.uniqueid()
    if not empty:
        port = _reserve_port()
        words = port.to_bytes(2, "big") + secrets.token_bytes(KEY_BYTES)
        made._data.version = 1
        made._data.internal[0, : len(words)] = np.frombuffer(words, np.int8)
    return made


def _reserve_port() -> int:
    """Keep a port for rank 0 of an `init`, which can listen there: nobody listens here."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((HOST, 0))
    port = int(held.getsockname()[1])
    _reserved[port] = held
    return port


def init(
    device: Any = None,
    uid: bindings.uniqueid | None = None,
    rank: int | None = None,
    nranks: int | None = None,
    mpi_comm: Any = None,
    initializer_method: str = "",
) -> None:
    """Connect this process to the others, as nvshmem4py does.

    `initializer_method` is "uid", with `uid`, `rank` and `nranks`; "mpi" or "emulated_mpi", with
    `mpi_comm`, by default MPI's COMM_WORLD. In a job of `gpushmem run` the ranks are its PEs.
    """
    if initializer_method not in METHODS:
        raise NvshmemInvalid(
            f"init: initializer_method must be one of {', '.join(METHODS)}, not "
            f"{initializer_method!r}"
        )
    chosen, why = selection.choose()
    if chosen != BACKEND:
        raise BackendUnavailable(
            f"init: programs of nvshmem4py run on the {BACKEND} backend here, and {chosen} was "
            f"chosen, because {why}: set GPUSHMEM_BACKEND={BACKEND}"
        )
    with session.errors():
        METHODS[initializer_method](uid, rank, nranks, mpi_comm)
        session.began()
        memory.began()
        teams.began()


def _by_uid(uid: Any, rank: Any, nranks: Any, mpi_comm: Any) -> None:
    if uid is None or rank is None or nranks is None or mpi_comm:
        raise NvshmemInvalid(
            f"init: the method uid takes uid, rank and nranks, and no mpi_comm; got rank {rank} of "
            f"{nranks}" + ("" if uid is not None else ", and no uid")
        )
    words = bytes(np.asarray(uid._data).view(np.uint8).reshape(-1)[4:])
    port, key = int.from_bytes(words[:2], "big"), words[2 : 2 + KEY_BYTES]
    if not port:
        raise NvshmemInvalid(
            f"init: the unique id of rank {rank} is empty: one rank calls get_unique_id(), and "
            "sends its bytes to the others"
        )
    _meet(int(rank), int(nranks), f"tcp://{HOST}:{port}", key.hex())


def _meet(rank: int, nranks: int, where: str, key: str) -> None:
    """Join the ranks that have this address and key; in a job of `gpushmem run`, its PEs."""
    job = jobs.current()
    if job is None:
        there = {"GPUSHMEM_PE": rank, "GPUSHMEM_N_PES": nranks, "GPUSHMEM_JOB_KEY": key}
        with settings.putting(**there):
            runtime.init(bootstrap=where)
        if held := _reserved.pop(int(where.rpartition(":")[2]), None):
            held.close()
        return
    if (rank, nranks) != (job.my_pe, job.n_pes):
        raise NvshmemInvalid(
            f"init: this is rank {rank} of {nranks}, and PE {job.my_pe} of the {job.n_pes} that "
            "`gpushmem run` has started. Ranks and PEs must be the same: with mpi4py let mpirun "
            f"start them (gpushmem run --as-nvshmem --hosts localhost:{job.n_pes}), else take RANK "
            "and WORLD_SIZE from the environment"
        )
    runtime.init()
    runtime.current("init").backend.meet(f"init with the unique id {key[:8]}")


def _by_mpi(uid: Any, rank: Any, nranks: Any, mpi_comm: Any) -> None:
    """The ranks of a communicator: one makes a unique id, and sends it to the others."""
    try:
        from mpi4py import MPI  # noqa: PLC0415
    except (ImportError, RuntimeError) as error:
        raise NvshmemInvalid(f"init: the method mpi needs mpi4py and an MPI: {error}") from None
    comm = MPI.COMM_WORLD if mpi_comm is None else mpi_comm
    if not isinstance(comm, MPI.Comm):
        raise NvshmemInvalid(f"init: mpi_comm must be a communicator of mpi4py, not {mpi_comm!r}")
    made = get_unique_id() if comm.Get_rank() == 0 else get_unique_id(empty=True)
    made._data = comm.bcast(made._data, root=0)
    _by_uid(made, comm.Get_rank(), comm.Get_size(), None)


METHODS: dict[str, Callable[[Any, Any, Any, Any], None]] = {
    "mpi": _by_mpi, "uid": _by_uid, "emulated_mpi": _by_mpi,
}  # fmt: skip


def finalize() -> None:
    """End the runtime; symmetric memory that was not freed is, and an error is logged."""
    global _ended  # noqa: PLW0603
    if not session.present():
        return
    with session.errors():
        try:
            memory.ends()
            teams.ends()
            session.ends()
        finally:
            _ended = True
            runtime.finalize()


def status() -> bindings.Init_status:
    """How far the runtime is initialised."""
    kinds = bindings.Init_status
    if session.present():
        return kinds.STATUS_IS_INITIALIZED
    return kinds.STATUS_IS_BOOTSTRAPPED if _ended else kinds.STATUS_NOT_INITIALIZED


def module_init(mod: NvshmemKernelObject) -> None:
    """Nothing to do: there are no modules of GPU code."""


def library_init(lib: NvshmemKernelObject) -> None:
    """Nothing to do: there are none."""


module_finalize, library_finalize = module_init, library_init


def find_device_bitcode_library(
    language: DeviceLibLanguage = DeviceLibLanguage.LLVM_BITCODE, arch: object = None
) -> str:
    """Raise: the library is for compilers of GPU code."""
    raise NvshmemInvalid(
        "find_device_bitcode_library: without a GPU nothing links NVSHMEM's device library; "
        "kernels of numba.cuda find their functions without it"
    )
