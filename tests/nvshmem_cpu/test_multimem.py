"""The code of `multimem_reduce` and `multimem_store` around the switch's instructions.

Nothing here has memory that a switch combines. A job of one PE can do without: its own address
reaches all PEs, and what the instruction would give is what is there.
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest

import gpushmem as shmem
from gpushmem.backends.nvshmem_cpu import ABOUT
from tests.nvshmem.kernels import dtype_of

pytestmark = pytest.mark.skipif(ABOUT.missing() is not None, reason="needs NVSHMEM")

SIZES = [0, 1, 2, 7, 8, 9, 31, 70]
STARTS = [(0, 0), (1, 1), (3, 3), (5, 5), (8, 0), (1, 0), (2, 4), (3, 7)]  # of src, of dst


@shmem.jit
def reduce_parts(dst, src, scope):
    if scope == 0:
        shmem.multimem_reduce(dst, src, 0, "sum")
    elif scope == 1:
        shmem.multimem_reduce_warp(dst, src, 0, "sum")
    else:
        shmem.multimem_reduce_block(dst, src, 0, "sum")


@shmem.jit
def store_parts(dst, src, scope):
    if scope == 0:
        shmem.multimem_store(dst, src, 0)
    elif scope == 1:
        shmem.multimem_store_warp(dst, src, 0)
    else:
        shmem.multimem_store_block(dst, src, 0)


def pretend_there_is_a_switch(multimem, multicast, intrinsics, used):
    """For kernels compiled from now on; `used` is told which instructions they have."""

    def load(text, found, builder, address):
        used.add(text)
        place = builder.inttoptr(address, found.as_pointer())
        return builder.load(place, align=16 if found == multimem.FOUR else found.width // 8)

    intrinsics["gpushmem_mc_ptr"] = lambda builder, team, address: address
    for text, found in multimem.TEXTS.items():
        intrinsics[text] = lambda b, address, text=text, found=found: load(text, found, b, address)

    def store(builder, address, *words):
        used.add(multicast.STORE_WORD)
        place = builder.inttoptr(address, words[0].type.as_pointer())
        for k, word in enumerate(words):
            builder.store(word, builder.gep(place, [words[0].type(k)]))

    intrinsics[multicast.STORE_WORD] = store


def results(dtype):
    """Sums and copies are right; which instructions give them, and which should."""

    def body():
        from gpushmem.backends.nvshmem.operations import multicast, multimem
        from gpushmem.simt.compiler.target import INTRINSICS

        shmem.init()
        used = set()
        pretend_there_is_a_switch(multimem, multicast, INTRINSICS, used)
        src, dst = shmem.array(np.arange(1, 100).astype(dtype)), shmem.empty(90, dtype)
        for n in SIZES:
            for first, at in STARTS:
                for scope, threads in enumerate((1, 32, 50)):
                    for kernel in (reduce_parts, store_parts):
                        dst.copy_from(wanted := np.full(90, -1, dtype))
                        kernel[1, threads](dst[at:], src[first : first + n], scope)
                        wanted[at : at + n] = np.arange(1 + first, 1 + first + n)
                        case = f"{n} {first} {at} {scope}"
                        np.testing.assert_array_equal(dst.numpy(), wanted, case)
        kind = multimem.KINDS["sum", dtype_of(dtype)]
        shmem.finalize()
        loads = {f".{kind.word} ", f".{kind.pack or kind.word} "}
        return used - {multicast.STORE_WORD}, loads, multicast.STORE_WORD in used

    return shmem.spawn(body, backend="nvshmem-cpu")[0]


@pytest.mark.parametrize(
    "dtype",
    ["bfloat16", *(pytest.param(d, marks=pytest.mark.sweep) for d in ("float32", "float64"))],
)
def test_each_element_is_combined_and_stored_once(dtype):
    """In a process that has compiled no kernel for another backend."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as elsewhere:
        used, kinds, stores = elsewhere.submit(results, dtype).result()
    assert stores
    assert {text[text.index(".add") : text.index(" ") + 1] for text in used} == kinds
