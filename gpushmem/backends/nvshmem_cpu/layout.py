"""The structures that NVSHMEM's host side fills and its device code reads, as NumPy dtypes.

Names and kinds of the fields are those of the header `device_host/nvshmem_types.h`. A line that
begins with a release is of this one alone. What 3.8 added lies after what 3.7 has, or in its
padding, so memory laid out for the newest release serves the older one, too.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from gpushmem.errors import ShmemError

__all__ = ["COLLECTIVES", "RECEXCH", "STATE", "TEAM", "TIMEOUT", "check", "layout"]

RELEASES = ("3.7", "3.8")
STRUCTURES = {
    "gpu_coll_env_params_v2": """
        int version barrier_dissem_kval barrier_tg_dissem_kval reduce_recexch_kval bcast_tree_kval
        int bcast_algo reduce_algo
        size_t fcollect_ll_threshold fcollect_nvls_threshold reduce_scratch_size
        int fcollect_algo
        size_t reducescatter_nvls_threshold
        int reducescatter_algo reduce_maxloc_algo
        size_t fcollect_ll128_threshold reduce_nvls_threshold
        3.8 bool fcollect_ll_supported
        3.7 char padding[416]
        3.8 char padding[415]
    """,
    "nvshmemi_timeout_v1": """
        int version
        uint64_t signal caller signal_addr signal_val_found signal_val_expected
        char padding[16]
    """,
    "nvshmemi_reduce_recexch_v1": """
        int version step1_sendto
        pointer step1_recvfrom step2_nbrs
        int step1_nrecvs step2_nphases
        char padding[32]
    """,
    "nvshmem_team_config_v2": """
        int version num_contexts
        uint64_t uniqueid
        char padding[48]
    """,
    "nvshmemi_team_v4": """
        int version my_pe start stride size team_idx
        nvshmem_team_config_v2 config
        long config_mask
        pointer nccl_comm
        nvshmemi_reduce_recexch_v1 reduce_recexch
        size_t rdxn_count
        uint32_t ll_flag
        uint64_t alltoall_pwrk[2] alltoall_count bcast_count bcast_sync_offset fcollect_count
        uint32_t fcollect_ll_flag
        bool are_gpus_p2p_connected is_team_node
        int team_node
        bool is_team_same_mype_node
        int team_same_mype_node
        pointer nvls_rsc nvls_rsc_base_ptr
        int team_dups[128]
        pointer pe_mapping
        uint64_t p2p_sync_on_stream_count
        bool are_gpus_nvls_connected
        3.8 uint64_t mc_leid_with_flag
    """,
    "nvshmemi_device_host_state_v1": """
        int version mype npes node_mype node_npes pe_dist proxy atomics_sync job_connectivity
        bool proxy_ops_are_ordered atomics_complete_on_quiet
        pointer heap_base
        size_t heap_size
        pointer peer_heap_base_p2p peer_heap_base_remote
        bool symmetric_heap_kind enable_rail_opt
        uint32_t atomics_le_min_size
        pointer timeout test_wait_any_start_idx_ptr team_pool psync_pool sync_counter
        gpu_coll_env_params_v2 gpu_coll_env_params_var
        pointer proxy_channels_buf proxy_channel_g_buf proxy_channel_g_coalescing_buf
        pointer proxy_channel_g_buf_head_ptr
        uint64_t proxy_channel_g_buf_size proxy_channel_g_buf_log_size
        pointer proxy_channels_issue proxy_channels_complete proxy_channels_complete_local_ptr
        pointer proxy_channels_quiet_issue proxy_channels_quiet_ack
        pointer proxy_channels_cst_issue proxy_channels_cst_ack
        uint64_t proxy_channel_buf_size
        uint32_t proxy_channel_buf_logsize
        pointer global_exit_request_state global_exit_code
        bool ibgda_is_initialized nvshmemi_is_nvshmem_initialized nvshmemi_is_nvshmem_bootstrapped
        int selected_device_transport tma_policy
        pointer tma_smem_bases
        size_t tma_smem_bases_len
        pointer tma_smem_size unicast_le_ids_
        3.8 bool counted_operations_available
        3.8 pointer region_slots region_active_count
        3.8 uint32_t region_slots_len region_slot_probe_limit
    """,
}
KINDS = {  # as in NumPy, where -1 stands for all bits, and in LLVM
    "int": ("i4", "i32"),
    "uint32_t": ("u4", "i32"),
    "bool": ("?", "i8"),
    "char": ("u1", "i8"),
    "pointer": ("i8", "ptr"),
    "size_t": ("i8", "i64"),
    "uint64_t": ("i8", "i64"),
    "long": ("i8", "i64"),
}


def _fields(structure: str, release: str) -> list[tuple[str, str, int]]:
    """The fields' kinds, names, and numbers of elements; 0: no array."""
    fields = []
    for line in STRUCTURES[structure].split("\n"):
        words = line.split()
        if words and words[0] in RELEASES and words.pop(0) != release:
            continue
        for word in words[1:]:
            name, _, count = word.rstrip("]").partition("[")
            fields.append((words[0], name, int(count or 0)))
    return fields


def layout(structure: str, release: str = RELEASES[-1]) -> np.dtype[Any]:
    """The dtype of a structure, with the gaps that C leaves between fields."""
    rows: list[Any] = [
        (name, KINDS[kind][0] if kind in KINDS else layout(kind, release), *([count] * (count > 0)))
        for kind, name, count in _fields(structure, release)
    ]
    return np.dtype(rows, align=True)


COLLECTIVES = layout("gpu_coll_env_params_v2")
TIMEOUT = layout("nvshmemi_timeout_v1")
RECEXCH = layout("nvshmemi_reduce_recexch_v1")
TEAM = layout("nvshmemi_team_v4")
STATE = layout("nvshmemi_device_host_state_v1")


def check(types: dict[str, str], release: str = "this release") -> None:
    """Raise `ShmemError` unless the types of NVSHMEM's bitcode are as this module knows them.

    `types` are a module's `struct_types`, their text by name; `release` is for the message.
    """
    text_of = {re.sub(r"^struct\.|\.\d+$", "", name): text for name, text in types.items()}
    known = " and ".join(RELEASES)
    found: dict[str, list[str]] = {}
    for structure in ("gpu_coll_env_params_v2", "nvshmemi_device_host_state_v1"):
        if structure not in text_of:
            raise ShmemError(f"NVSHMEM {release} has no {structure}: gpushmem knows {known}")
        found[structure] = _split(text_of[structure])
    _, difference = max(_difference(found, one) for one in RELEASES)
    if difference:
        raise ShmemError(f"NVSHMEM {release}'s {difference}: gpushmem knows {known}")


def _difference(found: dict[str, list[str]], release: str) -> tuple[int, str]:
    """How many fields are as in `release` before the first that is not, which is told."""
    alike = 0
    for structure, kinds in found.items():
        fields = _fields(structure, release)
        for (kind, name, count), is_kind in zip(fields, kinds, strict=False):
            wanted = KINDS[kind][1] if kind in KINDS else f"%struct.{kind}"
            wanted = f"[{count} x {wanted}]" if count else wanted
            if is_kind != wanted:
                return alike, f"{structure} has {is_kind} for {name}, in {release} {wanted}"
            alike += 1
        if len(kinds) != len(fields):
            last = fields[-1][1]
            return alike, (
                f"{structure} has {len(kinds)} fields, in {release} {len(fields)} up to {last}"
            )
    return alike + 1, ""


def _split(text: str) -> list[str]:
    """The kinds of a structure's fields from LLVM's text of it."""
    inside = text[text.index("{") + 1 : text.rindex("}")]
    return [re.sub(r"(%struct\.\w+)\.\d+$", r"\1", kind.strip()) for kind in inside.split(",")]
