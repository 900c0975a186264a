"""The `nvshmem-cpu` backend; see `CpuBackend`, on which it is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpushmem import settings
from gpushmem.artifacts.argument_packing import address_of
from gpushmem.backends.cpu import backend
from gpushmem.backends.cpu.observers import observe_kernels
from gpushmem.backends.cpu.operations import hook
from gpushmem.backends.cpu.sync import teams
from gpushmem.backends.cpu.weak import weaken_kernels
from gpushmem.backends.nvshmem_cpu import bindings, lowering  # noqa: F401  (bindings before all else)
from gpushmem.backends.nvshmem_cpu.functions import OWN
from gpushmem.backends.nvshmem_cpu.proxy import Proxy
from gpushmem.backends.nvshmem_cpu.state import FIRST_TEAM, DeviceState, internal_bytes
from gpushmem.errors import ShmemError
from gpushmem.job.board import FAILED
from gpushmem.job.job import Job

__all__ = ["NvshmemCpuBackend", "warm_up"]

LONG = 8


class NvshmemCpuBackend(backend.CpuBackend):
    """One PE, whose kernels run NVSHMEM's device code."""

    name = "nvshmem-cpu"
    _proxy: Proxy | None = None  # of a job of several nodes

    def __init__(self, heap_bytes: int) -> None:
        super().__init__(heap_bytes)
        for name in ("barrier_all", "sync_all"):  # kernels meet by NVSHMEM's own means
            del self._inline.calls[name]
        for name in ("fence", "flush", "quiet"):  # for kernels' requests; hosts have none pending
            self._inline.calls[name] = self._quiet

    @staticmethod
    def install(n_nodes: int) -> None:
        observe_kernels()
        weaken_kernels(inside=True)
        hook.separate(n_nodes > 1)
        lowering.install()

    def _more_bytes(self, job: Job) -> int:
        return internal_bytes(job.n_pes, job.max_teams, job.n_nodes) + _words_bytes(job)

    def _make_teams(self) -> Teams:
        self._teams_of_nvshmem = Teams(self.world, self._barrier)
        return self._teams_of_nvshmem

    def _mapped(self) -> None:
        world, job = self.world, self.world.job
        heaps = [world.region + pe * world.stride for pe in range(job.n_pes)]
        near = [heap if pe in job.node else 0 for pe, heap in enumerate(heaps)]
        more = self._more_bytes(job)
        internal = world.stride - (-(-more // 4096) * 4096)
        self.state = DeviceState(
            job.my_pe, job.n_pes, near, world.stride, job.node, job.max_teams, internal
        )
        self._teams_of_nvshmem.state = self.state
        own = self._own = np.zeros(1, OWN)
        own["state"] = self.state.address
        own["words"] = world.heap + internal + more - _words_bytes(job)
        world.native["own"] = address_of(own)
        if job.n_nodes > 1:
            seed = settings.get("GPUSHMEM_SEED") if self._weak is not None else None
            self._proxy = Proxy(
                heaps,
                world.stride,
                job.my_pe,
                self._arrays,
                self._registered.ranges,
                self._fail,
                seed,
            )
            self.state.set(**self._proxy.fields())
            self._late.append(self._proxy)
            self._proxy.start()

    def _fail(self, error: ShmemError) -> None:
        """The proxy refuses a request, and ends: so does the job."""
        self.world.board.claim(FAILED, self.my_pe, str(error))

    def _quiet(self) -> None:
        super()._quiet()
        if self._proxy is not None:
            self._proxy.quiet()

    def unregister(self, native: np.ndarray[Any, Any]) -> None:
        if self._proxy is not None:
            self._proxy.quiet()  # what has been asked for may need it
        super().unregister(native)

    def close(self) -> None:
        if self._proxy is not None:
            self._proxy.stop()
        super().close()


class Teams(teams.Teams):
    """Teams which NVSHMEM's device code knows, too."""

    first = FIRST_TEAM
    state: Any = None  # from when the heap has been mapped

    def _enter(self, team: int, pes: Sequence[int]) -> None:
        super()._enter(team, pes)
        if self.state is not None:
            self.state.add_team(team, pes)

    def team_destroy(self, team: int) -> None:
        super().team_destroy(team)
        self.state.remove_team(int(team))


def _words_bytes(job: Job) -> int:
    """What `collect` needs: see `composed.workspace`."""
    return job.max_teams * (job.n_pes + 1) * LONG


def warm_up(n_pes: int | None) -> None:
    """Prepare what the PEs need, in the process they will be forked from."""
    NvshmemCpuBackend.install(settings.get("GPUSHMEM_NODES"))
    backend.prepare(n_pes)
