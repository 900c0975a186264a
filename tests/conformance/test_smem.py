"""`give_smem`: data move as ever while a block has given shared memory to NVSHMEM; its rules."""

import re
from pathlib import Path

import numpy as np
import pytest
from numba import cuda
from numba.core.errors import TypingError

import gpushmem as shmem
from gpushmem import ArgumentError, ShmemError
from gpushmem.ops import OPS, SMEM_BYTES
from tests import pes
from tests.conformance.test_collective_errors import said
from tests.pes import compile_first, on_several_nodes, sendable

PES = [1, 2, 3]
SIZES = {"float32": [1, 4, 333, 20_000], "uint8": [1, 16, 17, 4099]}
STATIC, THREADS, TILE = SMEM_BYTES[shmem.SMEM_MINIMUM], 96, 256
LEAST, SHAPE = SMEM_BYTES[shmem.SMEM_BARRIERS_ONLY], (2, STATIC // 8)
LINES = Path(__file__).read_text().splitlines()


def numbers_of(pe, n, dtype):
    return (1000 * pe + np.arange(n)).astype(dtype)


# --- data


@shmem.jit
def put_static(dst, src, pe):
    smem = cuda.shared.array(STATIC, "uint8", alignment=16)
    shmem.give_smem(smem)
    shmem.put_nbi_block(dst, src, pe)
    shmem.flush_block()
    cuda.syncthreads()
    for i in range(cuda.threadIdx.x, src.size, cuda.blockDim.x):
        src[i] = 7  # too late to be sent
    shmem.quiet()
    cuda.syncthreads()
    shmem.release_smem()


@shmem.jit
def put_dynamic(dst, src, pe):
    smem = cuda.shared.array(0, "float64", alignment=16)
    for _ in range(2):  # the second put changes nothing
        shmem.give_smem(smem)
        shmem.put_block(dst, src, pe)
        shmem.quiet()
        shmem.release_smem()
        smem[cuda.threadIdx.x] = 1.0  # it is the block's again
        cuda.syncthreads()


@shmem.jit
def get_static(dst, src, pe):
    """From the left: `dst` is the source, and `src` what is written."""
    smem = cuda.shared.array(SHAPE, "float32", alignment=16)
    shmem.give_smem(smem)
    shmem.get_nbi_block(src, dst, pe)
    shmem.quiet()
    shmem.release_smem()


@pytest.mark.parametrize("n_pes", PES)
@pytest.mark.parametrize("dtype", SIZES)
def test_puts_and_gets_move_what_they_always_do(run_pes, dtype, n_pes):
    examples = np.zeros(1, dtype), np.zeros(1, dtype), 0
    for kernel in (put_static, put_dynamic, get_static):
        compile_first(kernel, *examples, threads=32)

    def body():
        shmem.init()
        me = shmem.my_pe()
        left, right = (me - 1) % n_pes, (me + 1) % n_pes
        recommended = shmem.ask_smem(shmem.SMEM_RECOMMENDED)
        for n in SIZES[dtype]:
            dst = shmem.full(n + 1, 99, dtype=dtype)
            for kernel, dynamic in ((put_static, 0), (put_dynamic, recommended)):
                dst[:] = 99
                src = sendable(shmem.to_device(numbers_of(me, n, dtype)))
                shmem.barrier_all()
                kernel[1, THREADS, None, dynamic](dst, src, right)
                shmem.barrier_all()
                expected = [*numbers_of(left, n, dtype), np.dtype(dtype).type(99)]
                np.testing.assert_array_equal(dst.numpy(), expected)
            got = sendable(shmem.to_device(np.full(n, 99, dtype)))
            get_static[1, THREADS](dst[:n], got, right)
            np.testing.assert_array_equal(got.numpy(), numbers_of(me, n, dtype))
            shmem.barrier_all()
        shmem.finalize()

    run_pes(body, n_pes)


@shmem.jit
def put_tiles(dst, signal, me, pe):
    """Each block a row of tiles: from shared memory, which it fills again for the next one."""
    row, t = cuda.blockIdx.x, cuda.threadIdx.x
    tile = cuda.shared.array(TILE, "float32", alignment=16)
    smem = cuda.shared.array(LEAST, "uint8", alignment=16)
    shmem.give_smem(smem)
    for k in range(dst.shape[1]):
        for i in range(t, TILE, cuda.blockDim.x):
            tile[i] = 1000 * me + TILE * k + i + row
        cuda.syncthreads()
        if k % 2 == 0:
            shmem.put_nbi_block(dst[row, k], tile, pe)
            shmem.flush_block()
        else:
            shmem.put_signal_block(dst[row, k], tile, signal, 1, shmem.SIGNAL_ADD, pe)
        cuda.syncthreads()
    shmem.release_smem()
    if t == 0:
        shmem.quiet()


@on_several_nodes("shared memory cannot be sent to others")
@pytest.mark.parametrize("n_pes", PES)
def test_puts_from_shared_memory(run_pes, n_pes):
    rows, tiles = 3, 4
    examples = np.zeros((rows, tiles, TILE), np.float32), np.zeros(1, np.uint64), 0, 0
    compile_first(put_tiles, *examples, threads=32)

    def body():
        shmem.init()
        me = shmem.my_pe()
        dst, signal = shmem.full((rows, tiles, TILE), -1, "float32"), shmem.zeros(1, "uint64")
        put_tiles[rows, THREADS](dst, signal, me, (me + 1) % n_pes)
        shmem.barrier_all()
        arrived, count = dst.numpy(), int(signal.numpy()[0])
        shmem.finalize()
        return arrived, count

    for pe, (arrived, count) in enumerate(run_pes(body, n_pes)):
        numbers = 1000 * ((pe - 1) % n_pes) + np.arange(tiles * TILE, dtype="float32")
        for row in range(rows):
            np.testing.assert_array_equal(arrived[row].ravel(), numbers + row)
        assert count == rows * tiles // 2


@shmem.jit
def by_a_warp_then_a_thread(dst, src, pe):
    smem = cuda.shared.array(STATIC, "uint8", alignment=16)
    t = cuda.threadIdx.x
    shmem.give_smem(smem)
    if t < 32:
        shmem.put_nbi_warp(dst[0], src, pe)
        shmem.quiet()
    cuda.syncthreads()
    if t == 40:
        shmem.put_nbi(dst[1], src, pe)
        shmem.quiet()
    cuda.syncthreads()
    shmem.release_smem()


def test_other_scopes_may_use_it_one_after_the_other(run_pes):
    def body():
        shmem.init()
        me = shmem.my_pe()
        dst = shmem.full((3, 500), -1, "int64")
        src = sendable(shmem.to_device(numbers_of(me, 500, "int64")))
        by_a_warp_then_a_thread[1, 64](dst, src, 1 - me)
        shmem.barrier_all()
        arrived = dst.numpy()
        shmem.finalize()
        return arrived

    for pe, arrived in enumerate(run_pes(body, 2)):
        expected = numbers_of(1 - pe, 500, "int64")
        np.testing.assert_array_equal(arrived, [expected, expected, np.full(500, -1)])


# --- amounts


@shmem.jit
def ask(out, amount):
    out[0] = shmem.ask_smem(amount)
    out[1] = shmem.ask_smem(shmem.SMEM_RECOMMENDED)


AMOUNTS = shmem.SMEM_RECOMMENDED, shmem.SMEM_MINIMUM, shmem.SMEM_BARRIERS_ONLY


def test_amounts_are_the_same_in_kernels_and_on_the_host(run_pes):
    def body():
        shmem.init()
        asked, out = [], shmem.device_array(2, "int64")
        for amount in AMOUNTS:
            ask[1, 1](out, amount)
            asked.append((shmem.ask_smem(amount), *map(int, out.numpy())))
        shmem.finalize()
        return asked

    (asked,) = run_pes(body, 1)
    assert asked == [(65536, 65536, 65536), (32768, 32768, 65536), (1136, 1136, 65536)]
    assert [SMEM_BYTES[amount] for amount in AMOUNTS] == [65536, 32768, 1136]


NO_AMOUNT = (
    "ask_smem: there is no amount {} of shared memory: use SMEM_RECOMMENDED, SMEM_MINIMUM or "
    "SMEM_BARRIERS_ONLY"
)


def test_numbers_that_are_no_amount_on_the_host(alone):
    for number in (-1, 3, 2**40):
        with pytest.raises(ArgumentError, match=re.escape(NO_AMOUNT.format(number))):
            shmem.ask_smem(number)
    with pytest.raises(ArgumentError, match=r"ask_smem: there is no amount 1\.5: amount must"):
        shmem.ask_smem(1.5)


def test_they_are_for_kernels(alone):
    for name, given in (("give_smem", [np.zeros(2048)]), ("release_smem", [])):
        with pytest.raises(ShmemError, match=f"^{name} can be called inside kernels only$"):
            getattr(shmem, name)(*given)
        assert OPS[name].scope == "block"


# --- mistakes


@shmem.jit
def misuse(case, array, amount):  # noqa: PLR0912
    t = cuda.threadIdx.x
    smem = cuda.shared.array(4096, "uint8", alignment=16)
    if case == 0:
        shmem.give_smem(array)  # elsewhere
    elif case == 1:
        shmem.give_smem(smem[4:])  # misplaced
    elif case == 2:
        shmem.give_smem(smem[: LEAST - 1])  # small
    elif case == 3:
        shmem.give_smem(smem)  # first
        shmem.give_smem(smem[16:])  # again
    elif case == 4:
        shmem.release_smem()  # nothing
    elif case == 5:
        shmem.give_smem(smem)  # kept
        if t == 100:
            shmem.release_smem()
    elif case == 6:
        if t == 0:
            shmem.give_smem(smem)  # one
        cuda.syncthreads()
    elif case == 7:
        shmem.give_smem(smem)
        if t < 32:
            shmem.release_smem()  # some
    elif case == 8:
        shmem.give_smem(smem[16 * t :])  # unlike
    elif case == 9:
        array[0] = shmem.ask_smem(amount)  # amount
    elif case == 10:
        shmem.give_smem(smem)
        shmem.release_smem()
        shmem.release_smem()  # twice
    elif case == 12:
        shmem.give_smem(smem)
        if cuda.blockIdx.x > 0:
            shmem.release_smem()
            return
        shmem.barrier_block(shmem.TEAM_WORLD)
        shmem.broadcast_block(shmem.TEAM_WORLD, array[:64], array[:64], 0)  # broadcast
    else:
        shmem.give_smem(smem[:LEAST])
        shmem.release_smem()


@shmem.jit
def without_dynamic(array):
    shmem.give_smem(cuda.shared.array(0, "uint8"))  # dynamic


def at(label):
    """The place of the line that ends with a label."""
    (line,) = (n for n, line in enumerate(LINES, 1) if line.endswith(f"  # {label}"))
    return f"test_smem.py:{line} in "


ERRORS = {
    0: (
        "ArgumentError", "elsewhere",
        r"give_smem: smem, 4096 bytes at 0x[0-9a-f]+, is not in the block's shared memory: give an "
        r"array of cuda\.shared\.array; it is the symmetric array `array`",
    ),
    1: ("ArgumentError", "misplaced", r"smem begins 4 bytes after a multiple of 16: .*=16\)"),
    2: ("ArgumentError", "small", r"smem has 1135 bytes, and NVSHMEM keeps 1136 for itself: give "),
    3: ("KernelError", "again", r"give_smem: the block has given memory before, {first}misuse: "),
    4: ("KernelError", "nothing", r"release_smem: the block has given no memory: call give_smem"),
    5: ("KernelError", "kept", r"give_smem: the block has ended without release_smem: let every"),
    9: ("ArgumentError", "amount", re.escape(NO_AMOUNT.format(3))),
    10: ("KernelError", "twice", r"release_smem: the block has given no memory"),
    12: (
        "KernelError", "broadcast",
        r"broadcast_block: the block has given memory, test_smem\.py:\d+ in misuse, which "
        r"NVSHMEM's collectives let several warps use at once: call release_smem before",
    ),
}  # fmt: skip
BY_FEW = {
    6: r"Every thread of the block must call give_smem, with the same arguments: call it in all "
       r"threads$",
    7: r"release_smem: 32 of the 64 threads of the block have returned from the kernel",
    8: r"give_smem: its smem begins \d+ bytes (after|before) that of thread \(",
}  # fmt: skip


def found_in(run_pes, cases):
    """What is said of cases of `misuse`, of no dynamic memory, and afterwards of no mistake."""
    compile_first(misuse, 0, np.zeros(4096, np.uint8), 0, threads=32)

    def body():
        shmem.init()
        array = shmem.zeros(4096, "uint8")

        def run(case):
            misuse[2, 64](case, array, 3)

        found = {case: said(run, case) for case in (*cases, 11)}
        found["dynamic"] = said(lambda: without_dynamic[1, 32](array))
        shmem.finalize()
        return found

    (found,) = run_pes(body, 1)
    assert found[11] is None
    return found


@pytest.mark.skipif(pes.ON_GPUS, reason="NVSHMEM checks nothing")
@pytest.mark.gpushmem_check(False)  # its kernels fail
def test_mistakes_are_errors_with_the_line(run_pes):
    found = found_in(run_pes, ERRORS)
    for case, (kind, label, text) in ERRORS.items():
        whose = r"PE 0, kernel misuse, block \(\d, 0, 0\), thread \(\d+, 0, 0\)"
        assert re.match(f"{kind}: {whose}, {at(label)}", found[case]), (case, found[case])
        pattern = text.replace("{first}", at("first"))
        assert re.search(pattern, found[case]), (case, found[case])
    assert "give_smem: smem has 0 bytes, and NVSHMEM keeps 1136" in found["dynamic"]


@pytest.mark.checked
@pytest.mark.gpushmem_check(False)  # its kernels fail
def test_all_threads_of_the_block_call(run_pes):
    found = found_in(run_pes, BY_FEW)
    for case, text in BY_FEW.items():
        assert found[case].startswith("KernelError: "), (case, found[case])
        assert re.search(text, found[case], re.MULTILINE), (case, found[case])


def test_an_array_with_gaps_is_refused_when_compiling(alone):
    @shmem.jit
    def give(array):
        shmem.give_smem(cuda.shared.array(4096, "uint8")[::2])

    with pytest.raises(TypingError, match=r"give_smem: smem is not contiguous"):
        give[1, 32](shmem.zeros(1))
