"""Operations of warps and blocks, and collectives, that the wrong threads call, or unlike ones."""

import os
import re
import time
from pathlib import Path

import numpy as np
import pytest
from numba import cuda

import gpushmem as shmem
from tests.conformance.test_collective_errors import said
from tests.pes import compile_first

WEAK = os.environ.get("GPUSHMEM_MEMORY") == "weak"
pytestmark = [
    pytest.mark.checked,
    pytest.mark.skipif(WEAK, reason="names the threads that come first with native memory"),
]

FULL = 0xFFFFFFFF
WORLD = shmem.TEAM_WORLD
LINES = Path(__file__).read_text().splitlines()


def at(label):
    """The place of the line that ends with a label, in `misuse`."""
    (line,) = (n for n, line in enumerate(LINES, 1) if line.endswith(f"  # {label}"))
    return f"test_scoped_misuse.py:{line} in "


# --- operations of a warp or a block


@shmem.jit
def misuse(case, dst, src, signal):  # noqa: PLR0912
    t = cuda.threadIdx.x
    if case == 0:
        if t == 0:
            shmem.put_block(dst, src, 0)  # 0a
        cuda.syncthreads()  # 0b
    elif case == 1:
        if t < 63:
            cuda.syncthreads()  # 1a
        else:
            shmem.put_block(dst, src, 0)  # 1b
    elif case == 2:
        if t < 32:
            shmem.put_block(dst, src, 0)  # 2a
        else:
            shmem.get_block(dst, src, 0)  # 2b
    elif case == 3:
        if t == 0:
            shmem.put_warp(dst, src, 0)  # 3a
        cuda.syncwarp()  # 3b
    elif case == 4:
        if t == 37:
            shmem.get_warp(dst, src, 0)  # 4b
        cuda.syncthreads()  # 4a
    elif case == 5:
        if t == 31:
            shmem.put_warp(dst, src, 0)  # 5b
        else:
            dst[0] = cuda.shfl_sync(FULL, t, 1)  # 5a
    elif case == 6:
        if t == 0:
            shmem.put_block(dst, src, 0)  # 6a
        else:
            shmem.put_warp(dst, src, 0)
    elif case == 7:
        if t == 0:
            shmem.put_block(dst, src, 0)  # 7a
        else:
            shmem.put_block(signal, signal, 0)  # 7b
    elif case == 8:
        if t == 0:
            shmem.put_nbi_block(dst, src, 0)  # 8a
        else:
            cuda.ballot_sync(FULL, 1)  # 8b
    elif case == 9:
        shmem.put_block(dst[t:], src[:1], 0)  # places
    elif case == 10:
        shmem.put_block(dst, src[: 1 + t % 2], 0)  # sizes
    elif case == 11:
        shmem.put_signal_block(dst, src, signal, t // 2, shmem.SIGNAL_SET, 0)  # values
    elif case == 12:
        if t < 32:
            shmem.barrier_all_block()  # gone
    elif case == 13:
        if t % 32 == 7:
            return
        shmem.put_warp(dst, src, 0)  # lane


# (thread that fails, its line, what it does), (thread it meets, its line, what it is in), the rest
APART = [
    ((1, "0b", "syncthreads"), (0, "0a", "put_block"), "put_block"),
    ((63, "1b", "put_block"), (0, "1a", "syncthreads"), "put_block"),
    ((32, "2b", "get_block"), (0, "2a", "put_block"), "get_block"),
    ((1, "3b", "syncwarp"), (0, "3a", "put_warp"), "put_warp"),
    ((37, "4b", "get_warp"), (32, "4a", "syncthreads"), "get_warp"),
    ((31, "5b", "put_warp"), (0, "5a", "shfl_sync"), "put_warp"),
    None,
    ((1, "7b", "put_block"), (0, "7a", "put_block"), "put_block"),
    ((1, "8b", "vote_sync"), (0, "8a", "put_nbi_block"), "put_nbi_block"),
]
OTHERWISE = {
    6: "put_warp, while thread (0, 0, 0) is in put_block, {6a}misuse. Every thread of the warp",
    9: "{places}misuse: put_block: its dst begins 8 bytes after that of thread (0, 0, 0), {places}",
    10: "put_block: its src has 2 elements, that of thread (0, 0, 0), {sizes}misuse, has 1. Every",
    11: "thread (2, 0, 0), {values}misuse: put_signal_block: its value is 1, that of thread (0, 0",
    12: "{gone}misuse: barrier_all_block: 32 of the 64 threads of the block have returned from the",
    13: "{lane}misuse: put_warp: 1 of the 32 threads of the warp have returned from the kernel. E",
}  # fmt: skip


def expected(case, swapped=None):
    if case in OTHERWISE:
        return re.sub(r"{(\w+)}", lambda label: at(label[1]), OTHERWISE[case])
    (thread, line, does), (other, place, is_in), name = APART[case]
    if case == swapped:
        thread, line, does, other, place, is_in = other, place, is_in, thread, line, does
    one, scope = name.rsplit("_", 1)
    both = "; their dtypes, or their `op`, differ" if does == is_in else ""
    return (
        f"thread ({thread}, 0, 0), {at(line)}misuse: {does}, while thread ({other}, 0, 0) is in "
        f"{is_in}, {at(place)}misuse{both}. Every thread of the {scope} must call {name}, with the "
        f"same arguments: call it in all threads, or use `{one}` in one thread"
    )


def test_threads_that_do_not_make_one_call(alone):
    """Each is an error that names both threads and lines; nothing is done, and the job goes on."""
    dst, src, signal = shmem.zeros(128, "int64"), shmem.ones(64, "int64"), shmem.zeros(1, "uint64")
    for case in range(14):
        misuse[1, 64](case, dst, src, signal)
        with pytest.raises(shmem.KernelError) as e:
            shmem.synchronize()
        # Who comes first depends on how threads are run.
        assert expected(case) in str(e.value) or expected(case, swapped=case) in str(e.value)
        assert not dst.numpy().any(), case
    misuse[1, 64](99, dst, src, signal)
    shmem.synchronize()


@shmem.jit
def proper(dst, src, out, rounds):
    """Calls that belong together; threads come to them in all orders, and wake late."""
    t = cuda.threadIdx.x
    warp = t // 32
    for k in range(rounds):
        if t < 40:
            shmem.put_block(dst[k:], src[k : k + 2], 0)
        else:
            shmem.put_block(dst[k:], src[k : k + 2], np.int32(0))  # alike, at another line
        if t % 3 == 0:
            cuda.syncthreads()
        else:
            cuda.syncthreads()
        shmem.put_warp(dst[100 + 10 * warp :], src[:1], 0)
        if t % 32 < 16:
            cuda.syncwarp(0xFFFF)
        else:
            cuda.syncwarp(0xFFFF0000)
        shmem.get_warp(out[warp : warp + 1], src, 0)
        if warp == 0:
            for _ in range(k % 3):
                shmem.put_warp(dst[200:], src[:1], 0)  # while the other warp is at the barrier
        cuda.syncthreads()
        if cuda.shfl_sync(0xFFFFFFFF, t, 0) == 32 * warp:
            shmem.fence()
        shmem.put_nbi_block(dst[300:], src[:4], 0)
    if t < 32:
        shmem.put_warp(dst[400:], src[:3], 0)  # when the other warp has returned


def test_threads_that_make_one_call(alone):
    dst, out = shmem.zeros(500, "int64"), shmem.zeros(2, "int64")
    src = shmem.array(np.arange(1, 65))
    proper[3, 64](dst, src, out, 20)
    shmem.synchronize()
    found = dst.numpy()
    assert found[:21].tolist() == list(range(1, 22))
    assert found[[100, 110, 200, 300, 303, 402]].tolist() == [1, 1, 1, 1, 4, 3]
    assert out.numpy().tolist() == [1, 1]


# --- collectives


@shmem.jit
def crowd(case, dst, src):
    t = cuda.threadIdx.x
    if case == 0:
        shmem.barrier_all()  # each
    elif case == 1:
        cuda.syncthreads()
        shmem.fcollect(WORLD, dst, src)  # each of them
    elif case == 2:
        shmem.sync_warp(WORLD)  # warps
    elif case == 3:
        shmem.sync_all_block()  # blocks
    elif t == 0:
        shmem.barrier_all()  # first
    elif t == 1:
        shmem.sync_all()  # second


CROWDS = [  # blocks, and what is said
    (1, "thread (1, 0, 0), {each}: barrier_all, while thread (0, 0, 0) of block (0, 0, 0) is in a "
        "collective of the same team, 0, {each}. A collective is one call per PE: let one thread "
        "call barrier_all, or all threads of one block barrier_all_block"),
    (1, "{each of them}: fcollect, while thread ("),
    (1, "(0, 0, 0) is in a collective of the same team, 0, {warps}. A collective is one call per "
        "PE: let one warp call sync_warp, or all threads of one block sync_block"),
    (3, "block (1, 0, 0), thread (0, 0, 0), {blocks}: sync_all_block, while thread (0, 0, 0) of "
        "block (0, 0, 0) is in a collective of the same team, 0, {blocks}. A collective is one call"
        " per PE: let one block call sync_all_block"),
    (1, "thread (1, 0, 0), {second}: sync_all, while thread (0, 0, 0) of block (0, 0, 0) is in a "
        "collective of the same team, 0, {first}. "),
]  # fmt: skip


@pytest.mark.parametrize("n_pes", [1, 3])
def test_a_collective_is_one_call_per_pe(run_pes, n_pes):
    """Also where nobody has to wait in it; and afterwards the PEs are still in step."""
    compile_first(crowd, 0, np.zeros(1), np.zeros(1), threads=32)
    compile_first(shmem.barrier, 0)

    def body():
        shmem.init()
        dst, src = shmem.zeros(n_pes), shmem.ones(1)
        got = []
        for case, (blocks, _) in enumerate(CROWDS):
            got.append(said(lambda: crowd[blocks, 64](case, dst, src)))  # noqa: B023
            shmem.barrier(shmem.TEAM_SHARED)
        shmem.finalize()
        return got

    for texts in run_pes(body, n_pes):
        for said_, (_, wanted) in zip(texts, CROWDS, strict=True):
            where = re.sub(r"{([\w ]+)}", lambda label: at(label[1]) + "crowd", wanted)
            assert said_.startswith("CollectiveMismatch: PE "), said_
            # Who acts for a block: the first thread in lockstep, else the last to arrive.
            text = said_.replace("thread (63, 0, 0)", "thread (0, 0, 0)")
            assert where in text, (text, where)


@shmem.jit
def in_turn(dst, src, teams):
    """One thread at a time, though not the same one; blocks on teams of their own."""
    t, team = cuda.threadIdx.x, teams[cuda.blockIdx.x]
    for k in range(5):
        if t == 7 * k:
            shmem.barrier(team)
            shmem.reduce(team, dst[cuda.blockIdx.x :], src[cuda.blockIdx.x :][:1], "sum")
        cuda.syncthreads()
    shmem.sync_block(team)
    if t == 9:
        shmem.barrier(team)
        shmem.sync(team)


@pytest.mark.parametrize("n_pes", [1, 5])
def test_collectives_that_threads_call_in_turn(run_pes, n_pes):
    compile_first(in_turn, np.zeros(1), np.zeros(1), np.zeros(1, np.int64), threads=32)

    def body():
        shmem.init()
        dst, src = shmem.zeros(3), shmem.ones(3)
        teams = shmem.to_device(np.array([WORLD, shmem.TEAM_SHARED, shmem.TEAM_NODE]))
        for blocks in (3, 1, 2):
            in_turn[blocks, 40](dst, src, teams)
        result = dst.numpy().tolist()
        shmem.finalize()
        return result

    assert run_pes(body, n_pes) == [[float(n_pes)] * 3] * n_pes


@shmem.jit
def wait_in(team):
    shmem.barrier(team)  # stream


def test_two_streams_in_collectives_of_one_team(run_pes):
    """The one that comes second fails; the first goes on."""
    compile_first(wait_in, shmem.TEAM_WORLD)

    def body():
        shmem.init()
        flag = shmem.zeros(1, "uint64")
        streams, got = [shmem.stream() for _ in range(2)], []
        if shmem.my_pe() == 0:
            for stream in streams:
                wait_in[1, 1, stream](shmem.TEAM_NODE)
            while not any(stream.done() for stream in streams):
                time.sleep(0.001)
            failed = next(stream for stream in streams if stream.done())
            with pytest.raises(shmem.CollectiveMismatch) as error:
                failed.synchronize()
            got.append(str(error.value))
            shmem.signal_op(flag, 1, shmem.SIGNAL_SET, 1)
        else:
            shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
            wait_in[1, 1](shmem.TEAM_NODE)
        return got

    (text,), nothing = run_pes(body, 2)
    place = at("stream") + "wait_in"
    assert f"{place}: barrier, while thread (0, 0, 0) of block (0, 0, 0) is in a" in text
    assert f"collective of the same team, {shmem.TEAM_NODE}, {place}. A" in text
    assert nothing == []
