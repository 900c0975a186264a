"""Jobs of the cpu backend whose PEs behave as if they were on several nodes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SEEN = """
import json
import numpy as np
import gpushmem as shmem

@shmem.jit
def look(x, near, null, teams):
    for pe in range(shmem.n_pes()):
        near[pe] = shmem.team_translate_pe(shmem.TEAM_WORLD, pe, shmem.TEAM_SHARED)
        null[pe] = shmem.peer_array(x, pe).ctypes.data == 0
    for k, team in enumerate((shmem.TEAM_SHARED, shmem.TEAM_NODE)):
        teams[2 * k], teams[2 * k + 1] = shmem.team_my_pe(team), shmem.team_n_pes(team)

@shmem.jit
def total(out, x):
    shmem.reduce(shmem.TEAM_NODE, out, x, "sum")

def refused(call):
    try:
        call()
    except shmem.SymmetryError as error:
        assert "is not in TEAM_SHARED; use put and get" in str(error), error
        return True
    return False

with shmem.session(heap_size="4M") as world:
    me, n = world.my_pe, world.n_pes
    x, out = shmem.full(2, me, "int64"), shmem.zeros(2, "int64")
    near, null, teams = (shmem.to_device(np.zeros(k, "int64")) for k in (n, n, 4))
    look[1, 1](x, near, null, teams)
    assert null.numpy().tolist() == [refused(lambda: shmem.peer_array(x, pe)) for pe in range(n)]
    assert near.numpy().tolist() == [world.translate_pe(pe, shmem.TEAM_NODE) for pe in range(n)]
    assert refused(lambda: shmem.multicast_array(x, world))
    total[1, 1](out, x)
    shmem.multicast_array(x, shmem.TEAM_SHARED)[1] = 7
    seen = {
        "near": near.numpy().tolist(), "null": null.numpy().tolist(),
        "teams": teams.numpy().tolist(), "sum": int(out.numpy()[0]),
    }
    halves = world.split_strided(0, n // 2, 2)  # one PE of each node
    far = bool(halves) and refused(lambda: shmem.multicast_array(x, halves))
    print(json.dumps([me, seen, far]))
"""


def program(tmp_path, text):
    path = tmp_path / "program.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize("n", [4, 6])
def test_what_shares_memory_is_one_node(run_cli, tmp_path, n):
    done = run_cli("run", "-n", n, "--nodes", 2, program(tmp_path, SEEN), code=0)
    seen = {me: (said, far) for me, said, far in map(json.loads, done.stdout.splitlines())}
    half = n // 2
    assert len(seen) == n
    for me, (said, far) in seen.items():
        node = range(me // half * half, me // half * half + half)
        assert said["near"] == [pe - node.start if pe in node else -1 for pe in range(n)]
        assert said["null"] == [pe not in node for pe in range(n)]
        assert said["teams"] == [me - node.start, half] * 2
        assert said["sum"] == sum(node)
        assert far == (me % half == 0)


REFUSED = """
import json
import numpy as np
from numba import cuda
import gpushmem as shmem

@shmem.jit
def store(x, y, pe):
    there = shmem.peer_array(x, pe)
    there[3] = 1  # far

@shmem.jit
def add(x, y, pe):
    there = shmem.peer_array(x, pe)
    cuda.atomic.add(there, 0, 1)  # far

@shmem.jit
def pass_on(x, y, pe):
    there = shmem.peer_array(x, pe)
    shmem.put(x, there, shmem.my_pe())  # far

@shmem.jit
def store_to_all(x, y, pe):
    shmem.multicast_array(x, shmem.TEAM_WORLD)[0] = 1  # team

@shmem.jit
def sum_of_all(x, y, pe):
    shmem.multimem_reduce_warp(y, x[:2], shmem.TEAM_WORLD, "sum")  # sum

@shmem.jit
def put_block(x, y, pe):
    shmem.put_signal_nbi_block(x[1:], y, x.view(np.uint64), 1, shmem.SIGNAL_SET, pe)  # src

@shmem.jit
def iput(x, y, pe):
    shmem.iput(x, y, 2, 1, 2, pe)  # src

@shmem.jit
def get(x, y, pe):
    shmem.get_warp(y[2:], x, pe)  # dst

@shmem.jit
def from_local(x, y, pe):
    mine = cuda.local.array(2, np.int64)
    mine[0] = mine[1] = 1
    shmem.put(x, mine, pe)  # src kernel

@shmem.jit
def put_ll(x, y, pe):
    shmem.put_ll_warp(x.view(np.uint64), y[:2], 1, pe)  # far

KERNELS = put_ll, store, add, pass_on, store_to_all, sum_of_all, put_block, iput, get, from_local
HOST = {
    "put on the host": lambda x, y, pe: shmem.put(x, y, pe),
    "put on a stream": lambda x, y, pe: shmem.put(x, y, pe, stream=shmem.stream()),
    "get on the host": lambda x, y, pe: shmem.get(y, x, pe),
    "iget on the host": lambda x, y, pe: shmem.iget(y, x, 1, 2, 2, pe),
}

def attempt(call):
    try:
        call()
        shmem.synchronize()
    except shmem.ShmemError as error:
        return f"{type(error).__name__}: {error}"
    return ""

with shmem.session(heap_size="4M") as world:
    x = shmem.zeros(8, "int64")
    y = shmem.to_device(np.arange(4))
    said = {}
    near, far = 1, world.n_pes - 1
    for pe in (near, far) if world.my_pe == 0 else ():
        for kernel in KERNELS:
            if kernel not in (store_to_all, sum_of_all) or pe == far:
                said[f"{kernel.__name__} {pe}"] = attempt(lambda: kernel[1, 32](x, y, pe))
        for name, call in HOST.items():
            said[f"{name} {pe}"] = attempt(lambda: call(x, y, pe))
    known = shmem.register(y)
    for kernel in (put_block, iput, get):
        said[f"registered {kernel.__name__}"] = attempt(lambda: kernel[1, 32](x, known, far))
    said["registered host"] = attempt(lambda: shmem.put(x, known[1:], far))
    shmem.unregister(known)
    said["unregistered"] = attempt(lambda: get[1, 32](x, y, far)) if world.my_pe == 0 else ""
    said["symmetric"] = attempt(lambda: put_block[1, 32](x, x[4:], far))
    world.barrier()
    if world.my_pe == 0:
        print(json.dumps(said))
"""


def said_by(run_cli, path, *options):
    return json.loads(run_cli("run", "-n", 4, *options, path, code=0).stdout)


def test_what_only_one_node_can_do_is_refused(run_cli, tmp_path):
    """And nothing is with one node: it is other code in the store."""
    path = program(tmp_path, REFUSED)
    assert not any(said_by(run_cli, path).values())
    said = said_by(run_cli, path, "--nodes", 2)
    lines, name = {}, ""
    for number, line in enumerate(REFUSED.splitlines(), 1):
        name = line[4:].partition("(")[0] if line.startswith("def ") else name
        if "  # " in line:
            lines[name] = number, line.partition("  # ")[2]
    words = {
        "far": "PE 3 is on another node: loads and stores, with peer_array or put_ll, do not reach",
        "team": "multicast_array: PE 2 of the team is on another node",
        "sum": "multimem_reduce_warp: PE 2 of the team is on another node",
        "src": "PE 3 is on another node, and src (",
        "dst": "PE 3 is on another node, and dst (",
    }
    for name, (number, why) in lines.items():
        assert said.pop(f"{name} 1", "") == ""
        what, _, kernel = why.partition(" ")
        error = said.pop(f"{name} 3")
        assert error.startswith("SymmetryError: PE 0, kernel "), error
        assert f"program.py:{number} in {name}: " in error, error
        assert words[what] in error, error
        if what in ("src", "dst"):
            assert "register this one (gpushmem.register)" in error, error
            assert ("memory of the kernel" if kernel else "device memory `y") in error, error
    for name in ("put on the host", "put on a stream", "get on the host", "iget on the host"):
        assert said.pop(f"{name} 1") == ""
        assert f"is on another node, and {'dst' if 'get' in name else 'src'} (" in said.pop(
            f"{name} 3"
        )
    assert "is neither symmetric nor registered" in said.pop("unregistered")
    assert said
    assert not any(said.values()), said


FEW = """
import json
import gpushmem as shmem

@shmem.jit
def block(x, pe):
    shmem.put_block(x, x, pe)

@shmem.jit
def warp(x, pe):
    shmem.put_warp(x, x, pe)

def attempt(kernel, threads, pe):
    try:
        kernel[1, threads](x, pe)
        shmem.synchronize()
    except shmem.KernelError as error:
        return str(error)
    return ""

shmem.init()
x = shmem.zeros(4)
calls = [(kernel, n, pe) for kernel in (block, warp) for n in (31, 32, 40, 64) for pe in (1, 3)]
said = [(kernel.__name__, n, pe, attempt(kernel, n, pe)) for kernel, n, pe in calls]
shmem.barrier_all()
if shmem.my_pe() == 0:
    print(json.dumps([shmem.tuning().threads, said]))
shmem.finalize()
"""


def test_a_part_of_a_warp_cannot_send_to_another_node(run_cli, tmp_path):
    path = program(tmp_path, FEW)
    threads, said = said_by(run_cli, path)
    assert (threads, [error for *_, error in said]) == (128, [""] * 16)
    threads, said = said_by(run_cli, path, "--nodes", 2)
    assert threads == 128
    refused = [(name, n, pe) for name, n, pe, error in said if error]
    assert refused == [("block", 31, 3), ("warp", 31, 3), ("warp", 40, 3)]
    words = [
        error.partition("warp has ")[2].partition(" threads")[0] for *_, error in said if error
    ]
    assert words == ["31 of 32", "31 of 32", "8 of 32"]


def test_nodes_are_equal_and_pretended_by_the_cpu_backend_only(run_cli, tmp_path):
    path = program(tmp_path, "import gpushmem as shmem; shmem.init()")
    done = run_cli("run", "-n", 4, "--nodes", 3, path, code=1)
    assert "4 PEs cannot be divided equally over 3 nodes" in done.stderr
    done = run_cli("run", "-n", 4, "--nodes", 2, "--backend", "nvshmem", path, code=2)
    assert "--nodes: PEs of the nvshmem backend are on the machines where they are" in done.stderr


READY = ROOT / "tests/check/ready_kernels.py"
RUNS = [
    *("one_shot", "two_shot", "ring", "streams", "norm", "norm_two_shot", "all_gather_gemm"),
    *("gemm_reduce_scatter", "gemm_all_reduce", "gemm_sent", "jacobi2", "moe", "low_latency"),
    *("throughput", "int8", "rows", "scan"),
]


@pytest.mark.sweep
@pytest.mark.parametrize("run", RUNS)
def test_kernels_run_on_two_nodes(run_cli, run):
    run_cli("run", "-n", 4, "--nodes", 2, READY, run, timeout=150, code=0)


@pytest.mark.sweep
@pytest.mark.parametrize("run", ["jacobi3", "jacobi_one_block"])
def test_kernels_run_on_a_node_for_each_pe(run_cli, run):
    run_cli("run", "-n", 3, "--nodes", 3, READY, run, timeout=150, code=0)


@pytest.mark.parametrize("run", ["multicast", pytest.param("ll", marks=pytest.mark.sweep)])
def test_a_kernel_that_stores_to_all_says_that_it_needs_one_node(run_cli, run):
    done = run_cli("run", "-n", 4, "--nodes", 2, READY, run, code=1)
    assert f"the algorithm {run!r} loads and stores in the memory of all members" in done.stderr


@pytest.mark.sweep
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["attention", "embedding", "exchange", "operators"])
def test_operators_of_pytorch_run_on_two_nodes(name):
    """But those that send memory of the user's own, which must be registered."""
    command = [sys.executable, "-m", "pytest", "-o", "timeout=400", f"tests/torch/test_{name}.py"]
    nodes = {"GPUSHMEM_NODES": "2"}
    done = subprocess.run(
        [*command, "-m", "not sweep", "-k", "not pages_of_tensors"], cwd=ROOT,
        env=os.environ | nodes,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


@pytest.mark.sweep
@pytest.mark.timeout(660)  # llm.py trains
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_examples_run_on_two_nodes(run_cli, path):
    done = run_cli("run", "-n", 4, "--nodes", 2, path, timeout=600, code=0)
    assert done.stderr == ""
