"""The state for NVSHMEM's device code: against its bitcode, and its headers' own functions."""

import ctypes
import mmap
import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from llvmlite import binding

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.backends.nvshmem import versions
from gpushmem.backends.nvshmem_cpu import layout as layouts
from gpushmem.backends.nvshmem_cpu.layout import (
    RELEASES,
    STATE,
    STRUCTURES,
    TEAM,
    check,
    layout,
)
from gpushmem.backends.nvshmem_cpu.state import (
    DEFAULTS,
    FIRST_TEAM,
    DeviceState,
    internal_bytes,
    psync_longs,
)
from gpushmem.backends.nvshmem_cpu.teams import exchange_partners, stride_of
from gpushmem.errors import ShmemError
from gpushmem.simt.base.llvm_contexts import new_context

WORLD, SHARED, NODE, SAME_PLACE, SAME_GPU, LEADERS, MULTICAST = range(FIRST_TEAM)
HEAP = 1 << 20  # bytes before the internal memory
PACKAGES = "nvidia-nvshmem-cu13", "nvidia-nvshmem-cu12"
RELEASE = next(filter(None, map(versions.installed, PACKAGES)), "3.8.0").rpartition(".")[0]
TYPES = {  # of libnvshmem_device_sm_80.bc of 3.7.2
    "struct.nvshmemi_device_host_state_v1.1": "%struct.nvshmemi_device_host_state_v1.1 = type { "
    "i32, i32, i32, i32, i32, i32, i32, i32, i32, i8, i8, ptr, i64, ptr, ptr, i8, i8, i32, ptr, "
    "ptr, ptr, ptr, ptr, %struct.gpu_coll_env_params_v2.0, ptr, ptr, ptr, ptr, i64, i64, ptr, ptr, "
    "ptr, ptr, ptr, ptr, ptr, i64, i32, ptr, ptr, i8, i8, i8, i32, i32, ptr, i64, ptr, ptr }",
    "struct.gpu_coll_env_params_v2.0": "%struct.gpu_coll_env_params_v2.0 = type { i32, i32, i32, "
    "i32, i32, i32, i32, i64, i64, i64, i32, i64, i32, i32, i64, i64, [416 x i8] }",
}


def installed(*names):
    spec = find_spec("nvidia")
    for place in spec.submodule_search_locations if spec else []:
        if Path(place, *names).exists():
            return Path(place, *names)
    return pytest.skip(f"{'/'.join(names)} is not installed")


# --- layouts


def test_the_layouts_are_those_of_the_bitcode():
    bitcode = installed("nvshmem", "lib", "libnvshmem_device_sm_80.bc").read_bytes()
    module = binding.parse_bitcode(bitcode, new_context())
    check({one.name: str(one) for one in module.struct_types})


def test_both_releases_are_known():
    check(TYPES)


STATE_OF, PARAMS_OF = TYPES


@pytest.mark.parametrize(
    ("structure", "old", "new", "message"),
    [
        (STATE_OF, "ptr, i64, ptr", "i64, i64, ptr", "state_v1 has i64 for heap_base, in 3.7 ptr"),
        (STATE_OF, "ptr, ptr }", "ptr, ptr, i64 }", "has 51 fields, in 3.7 50 up to unicast"),
        (STATE_OF, ", ptr, ptr }", ", ptr }", "has 49 fields, in 3.7 50 up to unicast_le_ids_"),
        (PARAMS_OF, "416", "417", r"has \[417 x i8\] for padding, in 3.7 \[416 x i8\]"),
        (PARAMS_OF, "[416 x i8]", "i8, [414 x i8]", r"has \[414 x i8\] for padding, in 3.8"),
        (PARAMS_OF, "[416 x i8]", "i8, [415 x i8]", "state_v1 has 50 fields, in 3.8 55 up to"),
        (STATE_OF, "host_state_v1", "host_state_v2", "has no nvshmemi_device_host_state_v1"),
    ],
)
def test_a_difference_is_named(structure, old, new, message):
    types = {**TYPES, structure: TYPES[structure].replace(old, new)}
    types[structure.replace(old, new)] = types.pop(structure)
    with pytest.raises(ShmemError, match=f"^NVSHMEM 3.9.*{message}.*: gpushmem knows 3.7 and 3.8$"):
        check(types, "3.9")


@pytest.mark.parametrize("structure", STRUCTURES)
def test_what_3_8_added_moves_no_field_of_3_7(structure):
    old, new = layout(structure, "3.7"), layout(structure)
    for name in set(old.names) - {"padding"}:
        assert old.fields[name][1] == new.fields[name][1]


# --- the headers' own functions, compiled for this machine

SOURCE = """
#define __device__
#define __host__
#include "device_host/nvshmem_common.cuh"
#include <cassert>
#include <cstdio>
static nvshmemi_device_host_state_t *state;
#define nvshmemi_device_state_d (*state)
#define NVSHMEMI_STATIC static
#define NVSHMEMI_DEVICE_ALWAYS_INLINE inline
#define _NVSHMEM_DEVICE_MACROS_H_
#define _NVSHMEM_COMMON_DEVICE_DEFINES_CUH_
#define __CUDA_ARCH__ 800
#include "non_abi/device/team/nvshmemi_team_defines.cuh"
#define TEAM(number) (state->team_pool[number])
extern "C" {
void use(void *address) { state = (nvshmemi_device_host_state_t *)address; }
long psync_longs() { return get_psync_len_per_team(); }
long psync(int team, int op) {
    return (long)nvshmemi_team_get_psync(TEAM(team), (nvshmemi_team_op_t)op);
}
long counter(int team) { return (long)nvshmemi_team_get_sync_counter(TEAM(team)); }
long my_pe(int team) { return nvshmemi_team_my_pe(team); }
long n_pes(int team) { return nvshmemi_team_n_pes(team); }
long translate(int from, int pe, int to) { return nvshmemi_team_translate_pe(from, pe, to); }
long identical(int one, int two) { return nvshmemi_team_is_identical(TEAM(one), TEAM(two)); }
long initial(int k) {
    static const nvshmemi_team_t team = NVSHMEMI_TEAM_INITIALIZER;
    static const nvshmemi_timeout_t timeout = NVSHMEMI_TIMEOUT_INITIALIZER;
    static const gpu_coll_env_params_t params = NVSHMEMI_GPU_COLL_PARAMS_INITIALIZER;
    static const nvshmemi_device_host_state_t state = NVSHMEMI_DEVICE_HOST_STATE_INITIALIZER;
    const long all[] = {state.version,        params.version, timeout.version,
                        team.version,         team.config.version,
                        team.reduce_recexch.version,
                        NVSHMEM_TEAMS_MIN,    NVSHMEMI_JOB_GPU_LDST_ATOMICS,
                        NVSHMEMI_JOB_GPU_PROXY, NVSHMEMI_PE_DIST_BLOCK};
    return all[k];
}
long offset(int k) {
    static const long all[] = {OFFSETS};
    return all[k];
}
}
"""


@pytest.fixture(scope="module")
def headers(tmp_path_factory):
    include = installed("nvshmem", "include")
    compiler = shutil.which("g++") or pytest.skip("there is no g++")
    offsets = [
        text.format(structure, name)
        for structure in STRUCTURES
        for name in layout(structure, RELEASE).names
        for text in ("offsetof({}, {})", "(long)sizeof((({0} *)0)->{1})", "(long)sizeof({0})")
    ]
    place = tmp_path_factory.mktemp("headers")
    source = SOURCE.replace("OFFSETS", ", ".join(offsets))
    (place / "headers.cc").write_text(source)
    library = place / "headers.so"
    for name in "cuda_runtime.h", "cuda_fp16.h", "cuda_bf16.h":
        (place / name).touch()  # these functions need nothing of CUDA
    command = [compiler, "-std=c++17", "-w", "-shared", "-fPIC", "-I", include, "-I", place]
    subprocess.run([*command, place / "headers.cc", "-o", library], check=True)
    headers = ctypes.CDLL(str(library))
    for name in "psync_longs", "psync", "counter", "my_pe", "n_pes", "translate", "identical":
        getattr(headers, name).restype = ctypes.c_long
    headers.offset.restype = headers.initial.restype = ctypes.c_long
    headers.use.argtypes = [ctypes.c_void_p]
    return headers


def test_the_layouts_are_those_of_the_headers(headers):
    wanted = [
        number
        for made in (layout(structure, RELEASE) for structure in STRUCTURES)
        for kind, offset, *_ in (made.fields[name] for name in made.names)
        for number in (offset, kind.itemsize, made.itemsize)
    ]
    assert [headers.offset(k) for k in range(len(wanted))] == wanted


# --- states


class Job:
    """The states of all PEs of a job in this process; heaps of other nodes are not mapped."""

    def __init__(self, n_pes, n_nodes=1, max_teams=12):
        self.n_pes, self.size = n_pes, n_pes // n_nodes
        nbytes = HEAP + internal_bytes(n_pes, max_teams, n_nodes)
        self.files = [os.memfd_create("heap") for _ in range(n_pes)]
        self.memory = []
        for file in self.files:
            os.truncate(file, nbytes)
            self.memory.append(np.frombuffer(mmap.mmap(file, nbytes), np.uint8))
        self.heaps = [address_of(memory) for memory in self.memory]
        self.nodes = [self.node(pe) for pe in range(n_pes)]
        self.states = [
            DeviceState(pe, n_pes, self.mapped(pe), nbytes, self.node(pe), max_teams, HEAP)
            for pe in range(n_pes)
        ]

    def node(self, pe):
        return range(pe // self.size * self.size, (pe // self.size + 1) * self.size)

    def mapped(self, pe):
        return [heap if k in self.node(pe) else 0 for k, heap in enumerate(self.heaps)]

    def add_team(self, number, members):
        for pe in members:
            self.states[pe].add_team(number, members)

    def team(self, pe, number):
        """The record that kernels of `pe` find for a team; None if there is none."""
        pool = ctypes.c_int64 * (number + 1)
        address = pool.from_address(int(self.states[pe].fields["team_pool"]))[number]
        return np.frombuffer(ctypes.string_at(address, TEAM.itemsize), TEAM)[0] if address else None

    def members(self, pe, number):
        team = self.team(pe, number)
        return np.frombuffer(
            ctypes.string_at(int(team["pe_mapping"]), 4 * int(team["size"])), np.int32
        ).tolist()


@pytest.fixture
def job():
    jobs = []

    def make(*args, **kwargs):
        jobs.append(Job(*args, **kwargs))
        return jobs[-1]

    yield make
    for one in jobs:
        for file in one.files:
            os.close(file)


def test_a_state_is_read_where_it_says(job):
    state = job(4).states[2]
    seen = np.frombuffer(ctypes.string_at(state.address, STATE.itemsize), STATE)[0]
    state.set(proxy=2, proxy_channels_buf=1234)
    later = np.frombuffer(ctypes.string_at(state.address, STATE.itemsize), STATE)[0]
    assert (seen["mype"], seen["npes"], seen["node_mype"], seen["node_npes"]) == (2, 4, 2, 4)
    assert (later["proxy"], later["proxy_channels_buf"]) == (2, 1234)
    with pytest.raises(ValueError):
        state.set(no_such_field=1)


def test_versions_and_constants_are_those_of_the_headers(job, headers):
    state, team = job(2).states[0], job(2).team(0, WORLD)
    timeout = np.frombuffer(ctypes.string_at(int(state.fields["timeout"]), 4), np.int32)[0]
    found = [
        state.fields["version"],
        state.fields["gpu_coll_env_params_var"]["version"],
        timeout,
        team["version"],
        team["config"]["version"],
        team["reduce_recexch"]["version"],
        FIRST_TEAM,
        state.fields["job_connectivity"],
        job(4, 2).states[0].fields["job_connectivity"],
        state.fields["pe_dist"],
    ]
    wanted = [headers.initial(k) for k in range(10)]
    if RELEASES[-1] != RELEASE:  # a version contains the structure's size: here that of the latest
        found[:6], wanted[:6] = ([n >> 16 for n in some[:6]] for some in (found, wanted))
    assert found == wanted


def test_heaps_of_other_nodes_are_not_mapped(job):
    made = job(6, 2)
    for pe, state in enumerate(made.states):
        peers = (ctypes.c_int64 * 6).from_address(int(state.fields["peer_heap_base_p2p"]))
        assert list(peers) == made.mapped(pe)
        assert state.fields["heap_base"] == made.heaps[pe]
        assert (state.fields["node_mype"], state.fields["node_npes"]) == (pe % 3, 3)


def test_words_that_kernels_change_are_zero_and_apart(job):
    fields = job(2).states[0].fields
    names = (
        "test_wait_any_start_idx_ptr",
        "global_exit_request_state",
        "global_exit_code",
        "region_active_count",
    )
    words = [int(fields[name]) for name in names]
    assert len({word // 8 for word in words}) == 4
    assert [ctypes.c_int64.from_address(word).value for word in words] == [0] * 4


def test_parameters_of_collectives(job):
    others = {"version", "padding", "fcollect_ll_supported"}
    assert set(layouts.COLLECTIVES.names) - set(DEFAULTS) == others
    one, two = (job(4, k).states[0].fields["gpu_coll_env_params_var"] for k in (1, 2))
    assert {name: one[name] for name in DEFAULTS} == DEFAULTS
    assert (one["fcollect_ll_supported"], two["fcollect_ll_supported"]) == (True, False)


@pytest.mark.parametrize("n_pes", [1, 2, 3, 8, 64])
def test_psync_is_as_long_as_the_headers_say(n_pes, headers):
    memory = np.zeros(internal_bytes(n_pes, FIRST_TEAM), np.uint8)
    heaps = [address_of(memory)] * n_pes
    state = DeviceState(0, n_pes, heaps, memory.nbytes, range(n_pes), FIRST_TEAM, 0)
    headers.use(state.address)
    assert psync_longs(n_pes) == headers.psync_longs()


@pytest.mark.parametrize("n_nodes", [1, 2])
def test_psync_and_counters_of_all_teams_lie_in_the_internal_memory(job, headers, n_nodes):
    n_pes, most = 6, 12
    made = job(n_pes, n_nodes, most)
    made.add_team(most - 1, list(range(n_pes))[::-1])
    start = made.heaps[1] + HEAP
    end = start + internal_bytes(n_pes, most, n_nodes)
    headers.use(made.states[1].address)
    last = most - 1 if n_nodes == 1 else int(made.team(1, most - 1)["team_same_mype_node"])
    assert headers.psync(WORLD, 0) == start
    assert headers.psync(last, 0) + 8 * psync_longs(n_pes) <= headers.counter(WORLD)
    assert headers.counter(last) + 16 == end
    for number in {WORLD, NODE, most - 1, last}:
        assert headers.psync(number, 0) % 16 == 0
        parts = [headers.psync(number, op) for op in range(7)]
        assert headers.psync(number, 0) <= min(parts)
        assert max(parts) + 8 * n_pes <= headers.psync(number, 0) + 8 * psync_longs(n_pes)
        assert list((ctypes.c_long * 2).from_address(headers.counter(number))) == [1, 1]


def test_the_predefined_teams(job):
    one, two = job(6), job(6, 2)
    teams = WORLD, SHARED, NODE, SAME_PLACE, SAME_GPU, LEADERS, MULTICAST
    everyone = list(range(6))
    assert [one.members(4, k) for k in teams] == [
        everyone, everyone, everyone, [4], [4], everyone, everyone,
    ]  # fmt: skip
    node = [3, 4, 5]
    assert [two.members(4, k) for k in teams] == [
        everyone, node, node, [1, 4], [4], everyone, node,
    ]  # fmt: skip
    flags = ["are_gpus_p2p_connected", "is_team_node", "is_team_same_mype_node"]
    assert [[int(one.team(4, k)[flag]) for flag in flags] for k in teams] == [
        [1, 1, 0], [1, 1, 0], [1, 1, 0], [1, 0, 1], [1, 1, 0], [1, 0, 0], [1, 1, 0],
    ]  # fmt: skip
    assert [[int(two.team(4, k)[flag]) for flag in flags] for k in teams] == [
        [0, 0, 0], [1, 1, 0], [1, 1, 0], [0, 0, 1], [1, 1, 0], [0, 0, 0], [1, 1, 0],
    ]  # fmt: skip
    assert {int(two.team(4, k)["ll_flag"]) for k in teams} == {1}
    assert two.team(4, WORLD)["team_node"] == NODE
    assert two.team(4, WORLD)["team_same_mype_node"] == SAME_PLACE


@pytest.mark.parametrize("members", [[0, 1, 2, 3, 4], [1, 3], [4], [3, 1, 0], [4, 2, 0], [2, 0, 3]])
@pytest.mark.parametrize("n_nodes", [1, 5])
def test_members_find_each_other(job, headers, members, n_nodes):
    made = job(5, n_nodes)
    made.add_team(FIRST_TEAM, members)
    for pe in members:
        headers.use(made.states[pe].address)
        assert headers.n_pes(FIRST_TEAM) == len(members)
        assert headers.my_pe(FIRST_TEAM) == members.index(pe)
        assert headers.identical(FIRST_TEAM, WORLD) == (members == [0, 1, 2, 3, 4])
        for rank, other in enumerate(members):
            assert headers.translate(FIRST_TEAM, rank, WORLD) == other
            assert headers.translate(WORLD, other, FIRST_TEAM) == rank
        for other in {*range(5)} - {*members}:
            assert headers.translate(WORLD, other, FIRST_TEAM) == -1
    assert all(made.team(pe, FIRST_TEAM) is None for pe in {*range(5)} - {*members})


def test_strides():
    assert [stride_of(one) for one in ([3], [0, 1], [1, 3, 5])] == [1, 1, 2]
    assert [stride_of(one) for one in ([1, 0], [4, 2, 0], [0, 1, 3], [0, 2, 1])] == [-1] * 4


def test_a_team_on_several_nodes_has_a_part_per_node_and_place(job):
    made = job(8, 2)
    members = [6, 1, 5, 2]
    made.add_team(8, members)
    parts = {
        pe: [
            made.members(pe, int(made.team(pe, 8)[part]))
            for part in ("team_node", "team_same_mype_node")
        ]
        for pe in members
    }
    assert parts == {
        6: [[6, 5], [6, 2]],
        1: [[1, 2], [1, 5]],
        5: [[6, 5], [1, 5]],
        2: [[1, 2], [6, 2]],
    }
    team = made.team(6, 8)
    assert [team[name] for name in ("is_team_node", "is_team_same_mype_node")] == [0, 0]
    node, place = (made.team(6, int(team[part])) for part in ("team_node", "team_same_mype_node"))
    assert (node["is_team_node"], node["is_team_same_mype_node"]) == (1, 0)
    assert (place["is_team_node"], place["is_team_same_mype_node"]) == (0, 1)
    assert (node["are_gpus_p2p_connected"], place["are_gpus_p2p_connected"]) == (1, 0)
    parts = [int(team["team_node"]), int(team["team_same_mype_node"])]
    made.states[6].remove_team(8)
    assert [made.team(6, number) for number in [8, *parts]] == [None] * 3


@pytest.mark.parametrize("members", [[4, 6, 5], [2, 6]])
def test_a_team_of_one_node_or_place_has_no_parts(job, members):
    made = job(8, 2)
    made.add_team(8, members)
    team = made.team(6, 8)
    assert (team["team_node"], team["team_same_mype_node"]) == (-1, -1)
    assert (team["is_team_node"], team["is_team_same_mype_node"]) == (5 in members, 2 in members)


@pytest.mark.parametrize("size", [*range(1, 18), 32, 33])
def test_partners_reduce(size):
    partners = [exchange_partners(rank, size) for rank in range(size)]
    values = [{rank} for rank in range(size)]
    for rank, (send_to, _, _) in enumerate(partners):
        if send_to >= 0:
            assert rank in partners[send_to][1]
            values[send_to] = values[send_to] | values[rank]
    assert sum(len(receives) for _, receives, _ in partners) == sum(p[0] >= 0 for p in partners)
    for phase in range(len(partners[-1][2])):
        before = list(values)
        for rank, (send_to, _, phases) in enumerate(partners):
            if send_to < 0:
                assert partners[phases[phase]][2][phase] == rank
                values[rank] = before[rank] | before[phases[phase]]
    assert all(values[rank] == {*range(size)} for rank in range(size) if partners[rank][0] < 0)


def test_partners_are_pes_of_the_job(job):
    made = job(7)
    members = [6, 0, 2, 3, 5]  # 6 sends to 0; 0, 2, 3, 5 exchange
    made.add_team(9, members)
    found = {}
    for pe in members:
        exchange = made.team(pe, 9)["reduce_recexch"]
        phases = int(exchange["step2_nphases"])
        rows = (ctypes.c_int64 * phases).from_address(int(exchange["step2_nbrs"]))
        senders = (ctypes.c_int32 * int(exchange["step1_nrecvs"])).from_address(
            int(exchange["step1_recvfrom"])
        )
        found[pe] = (
            int(exchange["step1_sendto"]),
            list(senders),
            [ctypes.c_int32.from_address(row).value for row in rows],
        )
    assert found == {
        6: (0, [], [-1, -1]),
        0: (-1, [6], [2, 3]),
        2: (-1, [], [0, 5]),
        3: (-1, [], [5, 0]),
        5: (-1, [], [3, 2]),
    }


def test_a_number_used_again_begins_from_zeros(job, headers):
    made = job(3)
    made.add_team(7, [0, 1])
    state = made.states[0]
    headers.use(state.address)
    start, length = headers.psync(7, 0), psync_longs(3)
    psync = (ctypes.c_long * length).from_address(start)
    counters = (ctypes.c_long * 2).from_address(headers.counter(7))
    others = (
        (ctypes.c_long * 1).from_address(start - 8),
        (ctypes.c_long * 1).from_address(start + 8 * length),
    )
    for one in (*others, psync):
        ctypes.memset(one, 1, ctypes.sizeof(one))
    counters[:] = [5, 6]
    used = os.fstat(made.files[0]).st_blocks
    state.remove_team(7)
    state.add_team(7, [0, 2])
    assert os.fstat(made.files[0]).st_blocks < used - 8 * length // 512 * 0.9
    assert not np.frombuffer(psync, np.int64).any()
    assert list(counters) == [1, 1]
    assert all(one[0] for one in others)


def test_private_memory_is_cleared_as_well():
    memory = np.zeros(internal_bytes(1, 9), np.uint8)
    state = DeviceState(0, 1, [address_of(memory)], memory.nbytes, range(1), 9, 0)
    start = 8 * 8 * psync_longs(1)
    memory[start : start + 8 * psync_longs(1)] = 1
    memory[start - 1] = 2
    state.add_team(8, [0])
    assert memory[start - 1] == 2
    assert not memory[start : start + 8 * psync_longs(1)].any()


def test_what_cannot_be(job):
    state = job(2).states[0]
    for number in (2, FIRST_TEAM - 1, 12):
        with pytest.raises(ShmemError, match=rf"^NVSHMEM's team {number} is not in 7\.\.11$"):
            state.add_team(number, [0, 1])
    with pytest.raises(ShmemError, match="needs 7 teams or more, not 6"):
        DeviceState(0, 1, [4096], 1, range(1), 6, 0)
    with pytest.raises(ShmemError, match="multiple of 16"):
        DeviceState(0, 1, [4096], 1, range(1), 7, 8)
