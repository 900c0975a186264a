"""PEs started by mpirun or mpiexec of Open MPI, MPICH or Intel MPI, or a compatible launcher.

With mpi4py the PEs exchange MPI messages. Without it, or if mpi4py uses a different MPI than the
launcher, the launcher's environment variables are used.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from gpushmem.errors import BootstrapError
from gpushmem.start.bootstrap import machines
from gpushmem.start.bootstrap.channel import Channel, Deadline, missing, number, place
from gpushmem.start.bootstrap.polling import poll
from gpushmem.start.bootstrap.shared_directory import Directory, job_id

__all__ = ["channel", "of_its_own", "recognised"]

TAG = 28514  # of our messages; MPI promises tags up to 32767
LARGEST = 1 << 16


@dataclass(frozen=True)
class Launcher:
    """The variables a launcher sets for each process."""

    name: str
    rank: str
    size: str
    local_size: str
    sign: str  # a variable that only this launcher sets


LAUNCHERS = (
    Launcher(
        "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
        "OMPI_COMM_WORLD_RANK",
    ),
    Launcher("Hydra", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "MPI_LOCALNRANKS"),
    Launcher("PMI", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_SIZE", "PMI_RANK"),
)  # fmt: skip
JOB_IDS = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMIX_ID", "PMI_JOBID", "PALS_APID")
HOW = "start the processes with mpirun, mpiexec or the like"


def of_its_own() -> bool:
    """Whether mpirun or mpiexec started this process, by variables that only they set."""
    return any(row.sign in os.environ for row in LAUNCHERS[:2])


def recognised() -> bool:
    """Whether this looks like a process of an MPI job, possibly started by srun."""
    return _launcher() is not None or "PMIX_RANK" in os.environ


def _launcher() -> Launcher | None:
    return next((row for row in LAUNCHERS if {row.sign, row.rank} <= os.environ.keys()), None)


def channel(several: bool = False) -> Channel | None:
    """Return the channel between the PEs; None for one PE.

    `several`: the PEs may be on several machines.
    """
    row = _launcher()
    here = None if row is None else place(row.rank, row.size)
    if here is not None and here[1] == 1:
        return None
    mpi, why = _mpi4py()
    if mpi is None:
        return _by_variables(row, here, why, several)
    world = mpi.COMM_WORLD
    if here is None:
        if world.size == 1 and "PMIX_RANK" not in os.environ:
            raise BootstrapError(f"bootstrap mpi: the MPI job has only this process: {HOW}")
        return None if world.size == 1 else Messages(mpi)
    if (world.rank, world.size) != here:
        return _by_variables(
            row, here, f"mpi4py sees PE {world.rank} of {world.size}: it uses another MPI", several
        )
    return Messages(mpi)


def _by_variables(
    row: Launcher | None, here: tuple[int, int] | None, why: str, several: bool
) -> Channel:
    if row is None or here is None:
        raise BootstrapError(
            f"bootstrap mpi: no launcher's variables ({', '.join(r.rank for r in LAUNCHERS[:2])}) "
            f"are set, and {why}: {HOW}, or install mpi4py"
        )
    my_pe, n_pes = here
    if row.local_size in os.environ:
        local = number(row.local_size, 1)
        if local < n_pes:
            because = f"{row.local_size}={local}, this is PE {my_pe}"
            raise machines.elsewhere(n_pes, local, because, several)
    found = f"mpi (variables of {row.name}; {why})"
    return Directory(my_pe, n_pes, found, f"mpi {n_pes} {job_id(JOB_IDS)}")


def _mpi4py() -> tuple[Any, str]:
    """Return the initialised module mpi4py.MPI; or None, and the reason."""
    ours = "mpi4py.MPI" not in sys.modules
    try:
        from mpi4py import MPI  # noqa: PLC0415  (optional, and it initialises MPI)
    except ImportError:
        return None, "without mpi4py"
    except RuntimeError as error:  # no MPI library
        return None, f"mpi4py does not work: {str(error).splitlines()[0]}"
    if not MPI.Is_initialized() or MPI.Is_finalized():
        return None, "MPI is not initialised"
    if ours:
        _end_together(MPI)
    return MPI, ""


def _end_together(mpi: Any) -> None:
    """Make an uncaught exception in this process end the whole MPI job.

    MPI_Finalize waits for all processes at exit; if one has failed, the others may be waiting for
    it in turn. Programs that import mpi4py themselves make their own choice: see mpi4py.run.
    """
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        previous(kind, error, trace)
        with contextlib.suppress(AttributeError):
            mpi._set_abort_status(1)

    sys.excepthook = hook


class Messages(Channel):
    """Exchanges MPI messages between PE 0 and each other PE; never blocks inside MPI.

    The PEs are the ranks of `comm`, by default MPI_COMM_WORLD.
    """

    def __init__(self, mpi: Any, comm: Any = None) -> None:
        import mpi4py  # noqa: PLC0415  (optional)

        self._mpi, self._comm = mpi, mpi.COMM_WORLD if comm is None else comm
        library = mpi.Get_library_version().replace("Version:", "").replace("\t", " ")
        name = " ".join(library.splitlines()[0].split(",")[0].split())
        super().__init__(
            self._comm.rank, self._comm.size, f"mpi (mpi4py {mpi4py.__version__}, {name})",
            f"in {self._comm.name or 'the communicator'}", "no message arrived",
        )  # fmt: skip
        self._here: list[int] = []
        self._receive: tuple[Any, bytearray] | None = None

    def say(self, identity: bytes) -> None:
        self._send(identity, 0)

    def gather(self, deadline: Deadline) -> dict[int, bytes]:
        receives = {pe: self._receive_from(pe) for pe in range(1, self.n_pes)}
        said: dict[int, bytes] = {}

        def all_came() -> bool:
            for pe, (request, buffer) in list(receives.items()):
                if (data := self._received(request, buffer)) is not None:
                    said[pe] = data
                    del receives[pe]
            return not receives

        came = poll(deadline, all_came)
        self._here = sorted(said)
        if not came:
            for request, _ in receives.values():
                request.Cancel()
                request.Wait()
            raise missing(receives, self.n_pes, deadline.seconds, self.where)
        return said

    def announce(self, answer: bytes) -> None:
        for pe in self._here:
            self._send(answer, pe)

    def answer(self, deadline: Deadline) -> bytes | None:
        if self._receive is None:
            self._receive = self._receive_from(0)
        data = self._received(*self._receive)
        if data is not None:
            self._receive = None
        return data

    def close(self) -> None:
        if self._receive is not None:
            self._receive[0].Cancel()
            self._receive[0].Wait()
            self._receive = None

    def _send(self, data: bytes, pe: int) -> None:
        _sent.append((self._comm.Isend([data, self._mpi.BYTE], dest=pe, tag=TAG), data))

    def _receive_from(self, pe: int) -> tuple[Any, bytearray]:
        # Announcements may be long: PEs other than 0 have one large buffer, PE 0 many small ones.
        buffer = bytearray(LARGEST if pe == 0 else 4096)
        return self._comm.Irecv([buffer, self._mpi.BYTE], source=pe, tag=TAG), buffer

    def _received(self, request: Any, buffer: bytearray) -> bytes | None:
        status = self._mpi.Status()
        if not request.Test(status):
            return None
        return bytes(buffer[: status.Get_count(self._mpi.BYTE)])


_sent: list[Any] = []  # messages whose buffers MPI may still read
