"""What NVSHMEM's host side prepares for its device code, in memory of this process.

The values are those that NVSHMEM has on one node of GPUs that reach each other's memory, without
NVLink's multicast; facts from its host code (public, 3.4.5: `src/host/init/init.cu`,
`src/host/coll/cpu_coll.cpp`, `src/host/team/team_internal.cpp`) and from the device code of 3.7
and 3.8. What fields mean to the device code, where it decides something by them:

| field | meaning |
|---|---|
| `peer_heap_base_p2p` | address of each PE's heap; 0: it goes through `proxy_channels_*` |
| `job_connectivity` | 1: all heaps are mapped, so a barrier needs fences and stores alone; |
| | 8: some are not: signals and quiet go through the proxy; 16: waits also flush it |
| `proxy` | 0, 1: quiet and fence send nothing; 2: they wait for the proxy |
| `proxy_ops_are_ordered` | a fence need not wait for the proxy |
| `atomics_complete_on_quiet` | a fetching atomic of the proxy answers by a quiet |
| `atomics_le_min_size` | ... and shorter ones answer in the network's byte order |
| `pe_dist` | 1: nodes are blocks of PEs: broadcasts over 32 PEs go by node |
| `psync_pool`, `sync_counter` | a team's flags and buffers, and the next number of its barriers |
| `test_wait_any_start_idx_ptr` | where `wait_until_any` begins to look: one more each time |
| `region_active_count` | 3.8 reads it before each put through the proxy; 0: no region is open |
| `global_exit_request_state`, `global_exit_code` | 2 and the code: a kernel wants to end the job |
| `tma_policy` | 0: no copies by TMA, which sm_80 has not |
| `fcollect_ll_supported` | small gathers fuse data and flags; not over a network: there a thread |
| | sends what others may not have written yet, which takes a slow network (3.7 does so always) |

It reads neither `timeout`, nor `atomics_sync`, nor `peer_heap_base_remote` (with the proxy).
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.backends.nvshmem_cpu.layout import COLLECTIVES, STATE, TIMEOUT
from gpushmem.backends.nvshmem_cpu.teams import TeamRecord
from gpushmem.errors import ShmemError
from gpushmem.ops import TEAM_NODE, TEAM_SHARED, TEAM_WORLD

__all__ = ["FIRST_TEAM", "DeviceState", "internal_bytes"]

SAME_PLACE, SAME_GPU, GPU_LEADERS, MULTICAST = 3, 4, 5, 6  # NVSHMEM's other teams
FIRST_TEAM = 7  # the first number that a team made later can have
LDST_ATOMICS, PROXY = 1, 8  # job_connectivity
BLOCKS = 1  # pe_dist
LONG = 8

# What NVSHMEM's environment variables default to; algorithm 0 is NVSHMEM's own choice.
DEFAULTS = {
    "barrier_dissem_kval": 2,
    "barrier_tg_dissem_kval": 2,
    "reduce_recexch_kval": 2,
    "bcast_tree_kval": 2,
    "bcast_algo": 0,
    "reduce_algo": 1,  # as the host code turns its 0
    "fcollect_ll_threshold": 2048,
    "fcollect_nvls_threshold": 1 << 24,
    "reduce_scratch_size": 1 << 19,
    "fcollect_algo": 0,
    "reducescatter_nvls_threshold": 1 << 24,
    "reducescatter_algo": 0,
    "reduce_maxloc_algo": 1,
    "fcollect_ll128_threshold": 0,
    "reduce_nvls_threshold": 2048,
}
SYNC = 27648  # SYNC_SIZE: longs that NVSHMEM takes for a flag of each PE


def psync_longs(n_pes: int) -> int:
    """The longs of a team's part of the psync pool: `get_psync_len_per_team` of the headers."""
    flags = 4 * 2 * SYNC + 10 * SYNC + 2 * SYNC + n_pes  # barriers, broadcast, all-to-all, streams
    reduce = DEFAULTS["reduce_scratch_size"] // LONG
    gather = 2 * 2 * n_pes * DEFAULTS["fcollect_ll_threshold"] // LONG
    longs = flags + reduce + gather
    return longs + longs % 2


def internal_bytes(n_pes: int, max_teams: int, n_nodes: int = 1) -> int:
    """The symmetric memory that NVSHMEM needs: most of it is never touched.

    With several nodes a team has two parts, as NVSHMEM has: its members on a node, and those at
    the same place of every node. So the pool has room for three teams a number.
    """
    rows = _rows(max_teams, n_nodes)
    return rows * psync_longs(n_pes) * LONG + 2 * rows * LONG


def _rows(max_teams: int, n_nodes: int) -> int:
    return max_teams if n_nodes == 1 else 3 * max_teams


class DeviceState:
    """The `nvshmemi_device_host_state_v1` of a PE, and all it points to.

    `heaps` are the addresses of all PEs' heaps in this process, 0 for those that are not mapped;
    `node` are the PEs of this node. `heap_bytes` includes the internal memory, which begins at the
    offset `internal`, has `internal_bytes` and holds zeros on all PEs before any of them runs a
    kernel.
    """

    def __init__(
        self,
        my_pe: int,
        n_pes: int,
        heaps: Sequence[int],
        heap_bytes: int,
        node: range,
        max_teams: int,
        internal: int,
    ) -> None:
        if max_teams < FIRST_TEAM:
            raise ShmemError(f"NVSHMEM needs {FIRST_TEAM} teams or more, not {max_teams}")
        self.my_pe, self.n_pes, self.max_teams = my_pe, n_pes, max_teams
        self._heaps, self._node = heaps, node
        rows = _rows(max_teams, n_pes // len(node))
        self._longs = psync_longs(n_pes)
        self._psync = heaps[my_pe] + internal
        if self._psync % 16:
            raise ShmemError("NVSHMEM's internal memory must begin at a multiple of 16")
        self._counters = _memory(self._psync + rows * self._longs * LONG, 2 * rows)
        self._counters[:] = 1
        self._teams: dict[int, TeamRecord] = {}
        self._pool = np.zeros(rows, np.int64)
        self._peers = np.array(heaps, np.int64)
        self._words = np.zeros(4, np.int64)
        self._timeout = np.zeros(1, TIMEOUT)
        self._timeout["version"] = (1 << 16) + TIMEOUT.itemsize
        self._memory = np.zeros(1, STATE)
        self.address = address_of(self._memory)
        self.fields: Any = self._memory[0]
        self._fill(heap_bytes, internal)
        self._add_predefined()

    def set(self, **fields: int) -> None:
        """Set fields of the state, such as those of the proxy."""
        for name, value in fields.items():
            self.fields[name] = value

    def _fill(self, heap_bytes: int, internal: int) -> None:
        word, all_mapped = address_of(self._words), all(self._heaps)
        self.set(
            version=(1 << 16) + STATE.itemsize,
            mype=self.my_pe,
            npes=self.n_pes,
            node_mype=self.my_pe - self._node.start,
            node_npes=len(self._node),
            pe_dist=BLOCKS,
            proxy=1,  # it does nothing but end the job
            job_connectivity=LDST_ATOMICS if all_mapped else PROXY,
            proxy_ops_are_ordered=True,
            heap_base=self._heaps[self.my_pe],
            heap_size=heap_bytes,
            peer_heap_base_p2p=address_of(self._peers),
            timeout=address_of(self._timeout),
            test_wait_any_start_idx_ptr=word,
            global_exit_request_state=word + 8,
            global_exit_code=word + 16,
            region_active_count=word + 24,
            team_pool=address_of(self._pool),
            psync_pool=self._psync,
            sync_counter=address_of(self._counters),
            nvshmemi_is_nvshmem_initialized=True,
            nvshmemi_is_nvshmem_bootstrapped=True,
        )
        collectives = self.fields["gpu_coll_env_params_var"]
        collectives["version"] = (2 << 16) + COLLECTIVES.itemsize
        collectives["fcollect_ll_supported"] = all_mapped
        for name, value in DEFAULTS.items():
            collectives[name] = value

    # --- teams

    def _add_predefined(self) -> None:
        everyone, node = range(self.n_pes), self._node
        shared = [pe for pe in everyone if self._heaps[pe]]
        place = range((self.my_pe - node.start) % len(node), self.n_pes, len(node))
        alike = {"is_team_node": node == everyone}
        self._add(
            TEAM_WORLD, everyone, **alike, team_node=TEAM_NODE, team_same_mype_node=SAME_PLACE
        )
        self._add(TEAM_SHARED, shared, is_team_node=shared == list(node))
        self._add(TEAM_NODE, node, is_team_node=True)
        self._add(SAME_PLACE, place, is_team_same_mype_node=True)
        self._add(SAME_GPU, [self.my_pe], is_team_node=True)
        self._add(GPU_LEADERS, everyone)
        self._pool[MULTICAST] = self._pool[TEAM_SHARED]

    def add_team(self, number: int, members: Sequence[int]) -> None:
        """Make the record of a new team of the PEs `members`, in their order in it.

        Call it on all of them; none may use the team before all have returned.
        """
        if not FIRST_TEAM <= number < self.max_teams:
            raise ShmemError(
                f"NVSHMEM's team {number} is not in {FIRST_TEAM}..{self.max_teams - 1}"
            )
        node, place = self._node, self.my_pe - self._node.start
        near = [pe for pe in members if pe in node]
        alike = [pe for pe in members if pe % len(node) == place]
        one_node, one_place = len(near) == len(members), len(alike) == len(members)
        parts = {}
        if not one_node and not one_place:
            first = self.max_teams + 2 * number
            self._add(first, near, is_team_node=True)
            self._add(first + 1, alike, is_team_same_mype_node=True)
            parts = {"team_node": first, "team_same_mype_node": first + 1}
        self._add(number, members, is_team_node=one_node, is_team_same_mype_node=one_place, **parts)

    def remove_team(self, number: int) -> None:
        """Forget a team's record, once no member uses it any more."""
        for one in (number, self.max_teams + 2 * number, self.max_teams + 2 * number + 1):
            if self._teams.pop(one, None):
                self._pool[one] = 0

    def _add(self, number: int, members: Sequence[int], **fields: int) -> None:
        team = TeamRecord(number, members, self.my_pe, self.n_pes)
        team.fields["are_gpus_p2p_connected"] = all(self._heaps[pe] for pe in members)
        for name, value in fields.items():
            team.fields[name] = value
        if number >= FIRST_TEAM:  # an earlier team may have had the number
            clear(self._psync + number * self._longs * LONG, self._longs * LONG)
            self._counters[2 * number : 2 * number + 2] = 1
        self._teams[number] = team
        self._pool[number] = team.address


def _memory(address: int, longs: int) -> np.ndarray[Any, Any]:
    return np.frombuffer(memoryview((ctypes.c_int64 * longs).from_address(address)), np.int64)


libc = ctypes.CDLL(None, use_errno=True)
REMOVE = 9  # MADV_REMOVE


def clear(address: int, nbytes: int) -> None:
    """Set memory to zeros; whole pages of shared memory are given back."""
    start, end = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE, address + nbytes
    stop = end // mmap.PAGESIZE * mmap.PAGESIZE
    pages = ctypes.c_size_t(stop - start)
    if start >= stop or libc.madvise(ctypes.c_void_p(start), pages, REMOVE):
        ctypes.memset(address, 0, nbytes)
        return
    ctypes.memset(address, 0, start - address)
    ctypes.memset(stop, 0, end - stop)
