"""Sum an array over all PEs of a team: eight algorithms, one plan.

    one shot     each PE sends all of its array to every other, and adds up what it has
    two shot     each PE adds up one part for all: parts go there, sums come back
    ring         parts travel round a ring, and are added to at each stop; then once more, as sums
    multicast    each PE loads the sums of one part from all, and stores them on all: the switch
                 adds and copies; where there is none, the PE does
    in place     as multicast, in the arrays themselves, which are symmetric: nothing is copied
    ll           one shot, with a flag beside each 4 bytes: no signals, no fences; for small arrays
    ll128        one shot, with a flag for each 120 bytes, which NVLink keeps in one piece
                 ll128_two_shot: two shot, in the same way

    two shot, 3 PEs, arrays of parts a b c:

          PE 0  a0 b0 c0          b0 -> PE 1   c0 -> PE 2          a -> PE 1, PE 2
          PE 1  a1 b1 c1    1.    a1 -> PE 0   c1 -> PE 2    2.    b -> PE 0, PE 2
          PE 2  a2 b2 c2          a2 -> PE 0   b2 -> PE 1          c -> PE 0, PE 1

    ring, 3 PEs, arrays of chunks 0 1 2:

          step 0    PE 0 --0--> PE 1 --1--> PE 2 --2--> PE 0     add
          step 1    PE 0 --2--> PE 1 --0--> PE 2 --1--> PE 0     add
          step 2    PE 0 --1--> PE 1 --2--> PE 2 --0--> PE 0     keep
          step 3    PE 0 --0--> PE 1 --1--> PE 2 --2--> PE 0     keep

A long array is summed piece by piece, each an epoch of its own (see `plan`): the boxes are as large
as a piece, stay in the cache, and while PEs wait in one block they work in others.

What a PE sends, for n PEs and arrays of S bytes in P pieces:

                  bytes              messages
    one shot      (n - 1) S          (n - 1) P
    two shot      2 (n - 1) S / n    2 (n - 1) P
    ring          2 (n - 1) S / n    2 (n - 1) P, one after the other
    multicast     S / n              2 (n - 1) P, all of them signals; it loads S / n sums, too
    in place      the same           2 (n - 1) a block
    ll            2 (n - 1) S        (n - 1) P; it sends 2 S to itself, too
    ll128         16/15 (n - 1) S    the same, 16/15 S to itself
    ll128 in two  32/15 (n - 1) S/n  2 (n - 1) P, 16/15 S / n to itself

The rule of `plan` holds for the last three without a fence. The flag is the epoch, and each PE
sends to every other in each epoch, and receives from it. That PE q was done with a box of epoch
e - 2 before PE p writes to it again follows from what each of them does one after the other. A
thread of q has the value of a unit before it leaves the loop that waits for it; q's block meets,
then sends in epoch e - 1. p receives that; its block meets, then it sends in epoch e. No store is
made before a branch that it depends on is decided, so none of p's is there before q has all units
of epoch e - 2. And the flag of a unit is never that of epoch e before its data are: they are one
word, or one line. In two slots the flags are those of e - 2 or, where a piece is shorter, of
earlier epochs: all others than e. With two shots PEs whose parts are empty hear of each other
through PE 0, whose part never is: it sends its sum when it has received from all.

In place others load from `x` and store to it: a PE's part of a block's part of it on all PEs, once
all PEs have come to the call, and until that PE has told this one. So nobody but the owner of a
part touches it in between, and when the call is over on a PE all have done with its `x`.

`two_level` makes two levels of these, for PEs on several nodes; `all_reduce_wire` sends floats of
8 bits.

There are n - 1 additions for each element, on one PE; with one shot, on each. All PEs add up the
addends of an element in the same order, or take one PE's sum, so all end with the same bits. One
shot and two shot are those of TensorRT-LLM and vLLM for NVLink, the multicast is theirs for NVLink
SHARP; the ring is that of Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters
of workstations", J. Parallel Distrib. Comput. 69, 2009; ll is the protocol of that name in NCCL.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gpushmem.kernels import all_reduce_wire as on_wire
from gpushmem.kernels.parts import (
    begin,
    complete,
    end,
    end_at,
    member,
    part_of,
    send,
    signal_others,
    sum_in_order,
    tell,
    tell_others,
    wait_for,
    wait_for_others,
)
from gpushmem.kernels.pieces import InPieces, part_size, piece_size
from gpushmem.kernels.plan import SLOTS, Plan
from gpushmem.kernels.two_level import levels_of
from numba import cuda

import gpushmem as shmem

__all__ = ["AllReduce", "reference"]


@shmem.jit(device=True)
def one_shot(mine, boxes, signals, sums, summed, near, team, epoch):
    """Sum a piece in place; `boxes` (n, piece), `signals` (n,); all are of this block and slot."""
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    for k in range(1, n):
        send(boxes[me], mine, signals[me:], epoch, member(team, (me + k) % n), near)
    tell_others(signals[me:], epoch, team, near)
    wait_for_others(signals, epoch, team)
    sum_in_order(mine, boxes, me, n)


@shmem.jit(device=True)
def sum_my_part(mine, boxes, signals, near, team, epoch):
    """The first half of two shot: send parts to who sums them, sum mine; synchronises the block."""
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    for k in range(1, n):
        to = (me + k) % n
        first, last = part_of(mine.size, n, to)
        send(boxes[me], mine[first:last], signals[me:], epoch, member(team, to), near)
    tell_others(signals[me:], epoch, team, near)
    wait_for_others(signals, epoch, team)
    first, last = part_of(mine.size, n, me)
    sum_in_order(mine[first:last], boxes, me, n)


@shmem.jit(device=True)
def take_sums(mine, sums, signals, team, epoch):
    """The end of two shot: copy what the others have summed, before my part and behind it."""
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    first, last = part_of(mine.size, n, me)
    wait_for_others(signals, epoch, team)
    shmem.copy_block(mine[:first], sums[:first])
    shmem.copy_block(mine[last:], sums[last : mine.size])


@shmem.jit(device=True)
def two_shot(mine, boxes, signals, sums, summed, near, team, epoch):
    """As `one_shot`; `boxes` (n, part), `sums` (piece,), `summed` (n,) the signals of these."""
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    sum_my_part(mine, boxes, signals, near, team, epoch)
    first, last = part_of(mine.size, n, me)
    for k in range(1, n):
        pe, box = member(team, (me + k) % n), sums[first:last]
        send(box, mine[first:last], summed[me:], epoch, pe, near)
    tell_others(summed[me:], epoch, team, near)
    take_sums(mine, sums, summed, team, epoch)


@shmem.jit(device=True)
def multicast(mine, boxes, signals, sums, summed, near, team, epoch):
    """As `two_shot`; `boxes` (1, piece), for the others to load from, `signals` (n,)."""
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    loaded = boxes[0][: mine.size]
    shmem.copy_block(loaded, mine)
    complete()
    signal_others(signals[me:], epoch, team)
    wait_for_others(signals, epoch, team)
    first, last = part_of(mine.size, n, me)
    shmem.multimem_reduce_block(mine[first:last], loaded[first:last], team, "sum")
    shmem.multimem_store_block(sums[first:], mine[first:last], team)
    tell_others(summed[me:], epoch, team, near)
    take_sums(mine, sums, summed, team, epoch)


@shmem.jit(device=True)
def ring(mine, boxes, signals, sums, summed, near, team, epoch):
    """As `one_shot`; `boxes` (n, part), `signals` (steps,).

    A box is used again n steps later. What has come by then left the right PE n - 1 steps ago: it
    had read the box before.
    """
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    right = member(team, (me + 1) % n)
    for step in range(2 * (n - 1)):
        # The chunk to pass on is the one that came in the step before.
        first, last = part_of(mine.size, n, (me - step) % n)
        box, signal, outgoing = boxes[step % n], signals[step:], mine[first:last]
        send(box, outgoing, signal, epoch, right, near)
        if near:
            tell(signal, epoch, right)
        wait_for(signal, epoch)
        first, last = part_of(mine.size, n, (me - step - 1) % n)
        if step < n - 1:
            shmem.reduce_local_block(mine[first:last], box[: last - first], "sum")
        else:
            shmem.copy_block(mine[first:last], box[: last - first])


def with_flags(put: Any, reduce: Any) -> Any:
    """One shot by LL or LL128."""

    @shmem.jit(device=True)
    def with_flags(mine, boxes, signals, sums, summed, near, team, epoch):
        """As `one_shot`; `boxes` (n, units), one for what comes from each PE, itself included."""
        me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
        for k in range(1, n + 1):
            put(boxes[me], mine, epoch, member(team, (me + k) % n))
        reduce(mine, boxes[:n], epoch, "sum")

    return with_flags


@shmem.jit(device=True)
def ll128_two_shot(mine, boxes, signals, sums, summed, near, team, epoch):
    """As `two_shot`; `boxes` (n, units), and as many `sums`, one for what each PE has summed."""
    me, n = shmem.team_my_pe(team), shmem.team_n_pes(team)
    for k in range(1, n + 1):
        to = (me + k) % n
        first, last = part_of(mine.size, n, to)
        shmem.put_ll128_block(boxes[me], mine[first:last], epoch, member(team, to))
    first, last = part_of(mine.size, n, me)
    shmem.reduce_ll128_block(mine[first:last], boxes[:n], epoch, "sum")
    for k in range(1, n):
        shmem.put_ll128_block(sums[me], mine[first:last], epoch, member(team, (me + k) % n))
    for k in range(1, n):
        other = (me + k) % n
        first, last = part_of(mine.size, n, other)
        shmem.reduce_ll128_block(mine[first:last], sums[other : other + 1], epoch, "sum")


# Those who have no `sums` get empty ones.
SUMMING = {
    "one_shot": one_shot, "two_shot": two_shot, "ring": ring, "multicast": multicast,
    "ll": with_flags(shmem.put_ll_block, shmem.reduce_ll_block),
    "ll128": with_flags(shmem.put_ll128_block, shmem.reduce_ll128_block),
    "ll128_two_shot": ll128_two_shot,
}  # fmt: skip


@shmem.jit(collective=True)
def in_place(x, piece, arrived, summed, team, epochs):
    """`x` is symmetric; `arrived`, `summed` (SLOTS, blocks, n)."""
    me, n, epoch = shmem.team_my_pe(team), shmem.team_n_pes(team), begin(epochs)
    b, s = cuda.blockIdx.x, epoch % SLOTS
    lower, upper = part_of(x.size, cuda.gridDim.x, b)
    first, last = part_of(upper - lower, n, me)
    tell_others(arrived[s, b, me:], epoch, team, True)
    wait_for_others(arrived[s, b], epoch, team)
    for start in range(lower + first, lower + last, piece):
        mine = x[start : min(start + piece, lower + last)]
        shmem.multimem_reduce_block(mine, mine, team, "sum")
        shmem.multimem_store_block(mine, mine, team)
    tell_others(summed[s, b, me:], epoch, team, True)
    wait_for_others(summed[s, b], epoch, team)
    complete()  # what it has stored on itself
    end(epochs)


def kernel_for(sum_piece: Any) -> Any:
    """The kernel that sums an array piece by piece."""

    @shmem.jit(collective=True)
    def all_reduce(x, piece, inbox, arrived, sums, summed, near, team, epochs):
        """Boxes (SLOTS, blocks, ...): each block has its own, and its own part of `x`."""
        epoch, b = begin(epochs), cuda.blockIdx.x
        lower, upper = part_of(x.size, cuda.gridDim.x, b)
        for first in range(lower, upper, piece):
            mine, s = x[first : min(first + piece, upper)], epoch % SLOTS
            boxes, signals, summed_ = inbox[s, b], arrived[s, b], summed[s, b]
            sum_piece(mine, boxes, signals, sums[s, b], summed_, near, team, epoch)
            epoch += 1
        end_at(epochs, epoch - 1)

    return all_reduce


ALGORITHMS = {name: kernel_for(sum_piece) for name, sum_piece in SUMMING.items()}
WIRED = {name: kernel_for(sum_piece) for name, sum_piece in on_wire.WIRED.items()}


class AllReduce(InPieces):
    """Sum arrays of `size` elements of `dtype` over a team, in place: `plan(x)`.

    `x` is any device array of that size; every PE ends with the same bits. `algorithm` is
    "one_shot", "two_shot", "ring", "multicast", "in_place", "ll", "ll128", "ll128_two_shot" or
    "two_level" (see the module); by default what the size, the links and the nodes suggest, but not
    "in_place", for which `x` must be symmetric. On GPUs take those of LL128 over NVLink alone.
    Each block has boxes for n pieces (of `tuning().piece_bytes`), twice; in place it has none.
    float16 and bfloat16 are added as float32, and rounded once; by "ring" at each PE, by
    "two_level" on each node, too.

    With `wire="float8_e4m3"` 8-bit floats are sent, by "one_shot" or "two_shot", with errors of at
    most 1/16 of each addend, and of the sum (see `all_reduce_wire`): of float16, bfloat16, float32.
    """

    def __init__(
        self, *, size: int, dtype: Any, team: Any = shmem.TEAM_WORLD,
        algorithm: str | None = None, wire: str | None = None, blocks: int | None = None,
        threads: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(size, dtype, team, blocks, threads)
        nbytes = size * self.dtype.itemsize
        self.algorithm = algorithm or (suggested if wire is None else in_shots)(self, nbytes)
        if self.algorithm == "ring":  # what is sent, and waited for, is a part of a piece
            self.piece = piece_size(self, size, dtype, self.n_pes)
        self._workspace: tuple[Any, ...] = ()
        self.wire, self._levels = wire, None
        kernels = {IN_PLACE: in_place, **ALGORITHMS} if wire is None else WIRED
        self._kernel = kernels.get(self.algorithm)
        if wire is not None:
            on_wire.check_wire(self, self.algorithm, wire)
            self._workspace = (self.piece, *on_wire.workspace(self, self.algorithm))
            return
        if algorithm == "two_level" or (algorithm is None and self.algorithm == "two_shot"):
            self._levels = levels_of(self, by_name=algorithm is not None)
        if self._levels is not None:
            self.algorithm, self.inboxes = "two_level", self._levels.inboxes
        elif self.algorithm == IN_PLACE:
            check_reachable(self, IN_PLACE)
            signals = (self.signals(self.blocks, self.n_pes) for _ in range(2))
            self._workspace = max(1, min(self.piece, AT_ONCE // self.dtype.itemsize)), *signals
        else:
            self._workspace = (self.piece, *workspace(self, self.algorithm, self.piece, dtype))

    def __call__(self, x: Any, *, stream: Any = 0) -> None:
        """Replace `x` by its sum over the team; asynchronous, in `stream`'s order.

        Raises `ArgumentError` if its size or dtype are not the plan's, `SymmetryError` if it is not
        symmetric and has to be.
        """
        flat = self.flat(x)
        self.expect("x", flat, (self.size,), self.dtype)
        if self.algorithm == IN_PLACE and not isinstance(flat, shmem.SymmetricArray):
            raise shmem.SymmetryError(
                "AllReduce: with the algorithm 'in_place' x must be a symmetric array, the same on "
                "all PEs: allocate it with gpushmem.empty or zeros, or take another algorithm"
            )
        if self._levels is None:
            self.launch(self._kernel, stream, flat, *self._workspace)
        else:
            self._levels(flat, stream)

    def sends(self) -> tuple[int, int]:
        """Bytes and messages that a PE sends in a call, at most: the last parts may be smaller."""
        if self._levels is not None:
            return self._levels.sends()
        if self.wire is not None:
            return on_wire.traffic(self, self.algorithm)
        pieces = self.blocks if self.algorithm == IN_PLACE else self.pieces
        return traffic(self.algorithm, self.n_pes, self.size * self.dtype.itemsize, pieces)

    def free(self) -> None:
        """As any plan's; then the teams of two levels."""
        super().free()
        if self._levels is not None:
            self._levels.free()


IN_PLACE, WARP = "in_place", 32
AT_ONCE = 64 << 10  # bytes that are summed in place, and are still in a near cache to be stored
FLAGGED = "ll", "ll128", "ll128_two_shot"  # these have boxes of units


def suggested(plan: Plan, nbytes: int) -> str:
    """The algorithm for arrays of so many bytes.

    Each sends more than the next, and has less to wait for: ll no fences and signals, which on GPUs
    take as long as `tuning().ll_bytes`; nor ll128, in one shot or in two, for up to `ll128_bytes`
    that a shot sends; one shot one round of them, up to `one_shot_bytes`; two shot two. In the
    place of two shot `AllReduce` takes two levels where it can (`levels_of`).
    """
    n, tuning = plan.n_pes, plan.tuning
    sent = (n - 1) * nbytes
    if sent == 0 or not plan.reachable:
        return in_shots(plan, nbytes)
    if sent <= tuning.ll_bytes:
        return "ll"
    if plan.threads >= WARP and sent <= tuning.ll128_bytes:
        return "ll128"
    if plan.threads >= WARP and n > 2 and sent // n <= tuning.ll128_bytes:
        return "ll128_two_shot"
    return in_shots(plan, nbytes)


def in_shots(plan: Plan, nbytes: int) -> str:
    """The algorithm, one shot or two."""
    n, most = plan.n_pes, plan.tuning.one_shot_bytes
    return "one_shot" if n <= 2 or (n - 1) * nbytes <= most else "two_shot"


def workspace(plan: Plan, algorithm: str, piece: int, dtype: Any) -> tuple[Any, ...]:
    """Boxes and signals for pieces of so many elements: of parts, and of their sums; `near`."""
    if algorithm not in SUMMING:
        raise shmem.ArgumentError(
            f"{type(plan).__name__}: there is no algorithm {algorithm!r}; "
            f"there are {', '.join(SUMMING)}, and for AllReduce {IN_PLACE}"
        )
    if algorithm == "multicast" or algorithm in FLAGGED:
        check_reachable(plan, algorithm)
    if "ll128" in algorithm and plan.tuning.multiprocessors and plan.threads < WARP:
        raise shmem.ArgumentError(
            f"{type(plan).__name__}: the algorithm {algorithm!r} is for blocks of {WARP} threads "
            f"or more, not of {plan.threads}"
        )
    n, blocks, part = plan.n_pes, plan.blocks, part_size(piece, plan.n_pes)
    item = int(np.dtype(dtype).itemsize)
    units, lines = units_for(piece * item), lines_for(piece * item)
    shapes = {  # of boxes, of their signals; of sums, of their signals
        "one_shot": ((n, piece), n, (0,), 0), "two_shot": ((n, part), n, (piece,), n),
        "ring": ((n, part), 2 * (n - 1), (0,), 0), "multicast": ((1, piece), n, (piece,), n),
        "ll": ((n, units), 0, (0,), 0), "ll128": ((n, lines), 0, (0,), 0),
        "ll128_two_shot": ((n, lines_for(part * item)), 0, (n, lines_for(part * item)), 0),
    }  # fmt: skip
    boxes, arrived, sums, summed = shapes[algorithm]
    boxed = "uint64" if algorithm in FLAGGED else dtype
    return (
        plan.boxes(blocks, *boxes, dtype=boxed), plan.signals(blocks, arrived),
        plan.boxes(blocks, *sums, dtype=boxed), plan.signals(blocks, summed), plan.reachable,
    )  # fmt: skip


def check_reachable(plan: Plan, algorithm: str) -> None:
    """Raise `ArgumentError` for an algorithm that loads and stores if that cannot be."""
    if not plan.reachable:
        raise shmem.ArgumentError(
            f"{type(plan).__name__}: the algorithm {algorithm!r} loads and stores in the memory of "
            "all members of the team, and not all are in TEAM_SHARED; take another one"
        )


def units_for(nbytes: int) -> int:
    """How many units of LL so many bytes take: an even number, so all boxes begin at 16 bytes."""
    return 2 * -(-nbytes // 8)


def lines_for(nbytes: int) -> int:
    """How many words the lines of LL128 have, for so many bytes."""
    return 32 * -(-nbytes // 240)


def traffic(algorithm: str, n: int, nbytes: int, pieces: int) -> tuple[int, int]:
    """Bytes and messages that each of `n` PEs sends; the bytes at most: parts may be uneven."""
    if algorithm == "one_shot":
        return (n - 1) * nbytes, (n - 1) * pieces
    if algorithm in ("multicast", IN_PLACE):
        return -(-nbytes // n), 2 * (n - 1) * pieces
    if algorithm == "ll":
        return 8 * (n - 1) * -(-nbytes // 4), (n - 1) * pieces
    if algorithm == "ll128":
        return 8 * (n - 1) * lines_for(nbytes), (n - 1) * pieces
    if algorithm == "ll128_two_shot":
        return 16 * (n - 1) * lines_for(-(-nbytes // n)), 2 * (n - 1) * pieces
    return 2 * (n - 1) * -(-nbytes // n), 2 * (n - 1) * pieces


def reference(arrays: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """What every PE ends with, from all PEs' arrays."""
    return np.sum(np.stack(arrays), axis=0, dtype=arrays[0].dtype)
