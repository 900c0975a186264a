"""Shared memory for NVSHMEM, through which GPUs move data by their copy engine, TMA."""

from __future__ import annotations

from gpushmem.ops.roles import Amount, Index, Shared
from gpushmem.ops.row import BLOCK, declare


@declare(on_host=True, stream=False)
def ask_smem(amount: Amount) -> Index:
    """Return how many bytes of shared memory a block gives to NVSHMEM with `give_smem`.

    `amount` is SMEM_RECOMMENDED (65536 bytes), SMEM_MINIMUM (32768), or SMEM_BARRIERS_ONLY (1136),
    which NVSHMEM keeps for itself: with these alone only puts from shared memory are faster. CUDA
    has 48 KiB for static arrays, so the first is for dynamic ones: on the host, give the number to
    the launch, `kernel[grid, block, stream, ask_smem(SMEM_RECOMMENDED)]`. Raises `ArgumentError`
    for other amounts. NVSHMEM 3.8: nvshmemx_ask_smem.
    """


@declare(scopes=(BLOCK,), suffix=False)
def give_smem(smem: Shared) -> None:
    """Give shared memory of the block to NVSHMEM, for puts and gets by the GPU's copy engine, TMA.

    `smem` is contiguous, of any dtype, in the block's static or dynamic shared memory; it begins at
    a multiple of 16 bytes (`cuda.shared.array(n, dtype, alignment=16)`) and has at least
    `ask_smem(SMEM_BARRIERS_ONLY)` bytes. It is NVSHMEM's until `release_smem`, which the block must
    call before it returns: the kernel neither reads nor writes it, and finds anything there
    afterwards. The cpu backend raises for other memory, for memory given twice, for collectives
    before `release_smem`, and for a block that ends without it.

    The operations stay what they are. On GPUs of compute capability 9.0 and up, and with
    NVSHMEM_TMA_POLICY=ENABLE in the environment, TMA copies for `put`, `put_signal` and `get`, in
    all forms, if the PE is in TEAM_SHARED, and if both arrays begin at multiples of 16 bytes and a
    multiple of 16 bytes is copied; for `_block` forms and local arrays in global memory the block
    also needs 64 threads. All else is copied as without this call.

    A put from shared memory reads the array itself, which is outside of `smem`. All others, and
    gets, go through `smem`, of which there is one: until `release_smem`, let no two threads or
    warps of the block put or get at the same time, and call no collectives but barriers and `sync`.
    One thread begins the copy of a `_block` or `_warp` form, and `fence`, `flush` and `quiet` then
    cover only copies that the calling thread began: let all threads of the form call them, and then
    synchronise. Barriers of the block cover all. NVSHMEM 3.8: nvshmemx_give_smem.
    """


@declare(scopes=(BLOCK,), suffix=False)
def release_smem() -> None:
    """End what `give_smem` began: the memory is the block's again.

    It waits for all that TMA still copies for the block, so afterwards `fence`, `flush` and `quiet`
    of one thread again cover what the others have put, if they have synchronised; they are needed
    as ever. The cpu backend raises if the block has given nothing. NVSHMEM 3.8:
    nvshmemx_release_smem, which waits for nothing itself.
    """
