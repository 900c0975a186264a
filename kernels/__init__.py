"""Kernels that compute and communicate, ready to use; and what to make others of (`Plan`).

docs/kernels.md has the ready ones, docs/plans.md tells how to write a plan with the parts.
"""

from gpushmem.kernels.all_reduce import AllReduce
from gpushmem.kernels.all_reduce_norm import AllReduceRMSNorm
from gpushmem.kernels.all_to_all_v import AllGatherV, AllToAllV
from gpushmem.kernels.arena import Arena
from gpushmem.kernels.bfs import BFS
from gpushmem.kernels.collectives import (
    AllGather,
    AllToAll,
    Broadcast,
    ExclusiveScan,
    ReduceScatter,
)
from gpushmem.kernels.embedding import EmbeddingBags
from gpushmem.kernels.fft import FFT
from gpushmem.kernels.flash_decode import FlashDecode
from gpushmem.kernels.gemm import AllGatherGemm, GemmAllReduce, GemmReduceScatter
from gpushmem.kernels.halo import HaloExchange
from gpushmem.kernels.jacobi import Jacobi
from gpushmem.kernels.kv_transfer import KVTransfer, TransferFailed
from gpushmem.kernels.locks import (
    mcs_lock,
    mcs_unlock,
    pop,
    push,
    ticket_lock,
    ticket_unlock,
    try_pop,
    try_push,
)
from gpushmem.kernels.moe import MoE, expert_ffn
from gpushmem.kernels.moe_dispatch import ExpertParallel
from gpushmem.kernels.moe_parts import route
from gpushmem.kernels.muon import ZeroMuon
from gpushmem.kernels.parts import (
    begin,
    block_sum,
    block_sum32,
    complete,
    copy,
    end,
    end_at,
    get_tile,
    member,
    part_of,
    put_tile,
    send,
    sum_in_order,
    tell,
    tell_others,
    wait_for,
    wait_for_all,
    wait_for_others,
)
from gpushmem.kernels.pipeline import (
    PipelinedLayers,
    PipelineExchange,
    give_back,
    send_item,
    wait_for_item,
)
from gpushmem.kernels.pipeline_schedules import Schedule, schedule
from gpushmem.kernels.plan import SLOTS, Plan
from gpushmem.kernels.ring_attention import RingAttention
from gpushmem.kernels.ring_attention_backward import RingAttentionBackward
from gpushmem.kernels.sample_sort import SampleSort
from gpushmem.kernels.spmv import SpMV
from gpushmem.kernels.tasks import NO_TASK, TaskPool, next_task, push_task
from gpushmem.kernels.ulysses import ContextParallel, Ulysses
from gpushmem.kernels.zero import ZeroAdam

__all__ = [
    "BFS", "FFT", "NO_TASK", "SLOTS", "AllGather", "AllGatherGemm", "AllGatherV", "AllReduce",
    "AllReduceRMSNorm", "AllToAll", "AllToAllV", "Arena", "Broadcast", "ContextParallel",
    "EmbeddingBags", "ExclusiveScan", "ExpertParallel", "FlashDecode", "GemmAllReduce",
    "GemmReduceScatter", "HaloExchange", "Jacobi", "KVTransfer", "MoE", "PipelineExchange",
    "PipelinedLayers", "Plan", "ReduceScatter", "RingAttention", "RingAttentionBackward",
    "SampleSort", "Schedule", "SpMV", "TaskPool", "TransferFailed", "Ulysses", "ZeroAdam",
    "ZeroMuon", "begin", "block_sum", "block_sum32", "complete", "copy", "end", "end_at",
    "expert_ffn", "get_tile", "give_back", "mcs_lock", "mcs_unlock", "member", "next_task",
    "part_of", "pop", "push", "push_task", "put_tile", "route", "schedule", "send", "send_item",
    "sum_in_order", "tell", "tell_others", "ticket_lock", "ticket_unlock", "try_pop",
    "try_push", "wait_for", "wait_for_all", "wait_for_item", "wait_for_others",
]  # fmt: skip
