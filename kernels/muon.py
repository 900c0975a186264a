"""The step of Muon over PEs: each matrix has an owner, who makes its update orthogonal.

Muon replaces the momentum of a matrix's gradients, U S V' by its singular values, by about U V':
all directions count the same. Newton and Schulz's iteration finds that by products alone. From
x = u / |u| (Frobenius), with coefficients a, b, c,

    y = x x'        x = (a + b y + c y y) x        5 times, or (of tall ones) from the other side

It needs the whole matrix. So a matrix belongs to one PE, and all that is done for it is done there:

    1. first pass      the owner gets the sum of all PEs' gradients            `buckets`
    2. for each matrix momentum; the products, by the library; polynomials in between
    3. second pass     the owner updates its matrices, and sends them to all   `buckets`

Products of an (r, c) matrix take 2 m m (2 k + m) operations each time, if m is the smaller and k
the larger of r and c. Those that take most are dealt out first, each to the PE that has least to
do, so no PE has more than a matrix's work above another. Nothing is done twice, and what is sent is
as little as for `ZeroAdam`: each gradient once to its owner, each parameter to each other PE.

As in `gemm_beside` products are cuBLASLt's on GPUs and those of BLAS on CPUs, there by kernels that
are bound (of 64 rows `gemm` takes 42 us to call, 6 to multiply). A call can be captured in a graph.
Products are of `product_dtype`; between them `polynomial` goes through matrices of (m, m). The last
one's coefficients have the factor by which the rate is adjusted to the matrix's shape.

Muon is Keller Jordan's, https://kellerjordan.github.io/posts/muon/ (2024), and so are coefficients;
owners in data-parallel training are from his and from Moonshot's, Liu et al., "Muon is scalable for
LLM training", 2025, whose factor for rates like AdamW's is "match_rms_adamw". Names and defaults
are those of torch.optim.Muon.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from gpushmem.kernels.all_reduce_norm import plain_row_of, squares_by_four
from gpushmem.kernels.buckets import InBuckets, aligned, gathering, summing
from gpushmem.kernels.parts import begin, block_sum32, end_at, fours_of, part_of
from numba import cuda

import gpushmem as shmem
from gpushmem.checks import dtype_of, integer, shown

__all__ = ["COEFFICIENTS", "ZeroMuon", "owners_of", "reference"]

SPREAD = 4  # times as many blocks as send and wait go through a matrix: they wait for nobody
COEFFICIENTS = 3.4445, -4.7750, 2.0315
ADJUSTMENTS = {
    "original": lambda rows, columns: math.sqrt(max(1, rows / columns)),
    "match_rms_adamw": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
}


def mapping(function: Any, both: bool, by_four: bool) -> Any:
    """What sets `to`, and if `both` `more`, to a function of elements of x and y, and of `c`."""

    @shmem.jit(device=True)
    def run(to, more, x, y, c):
        """The four have one axis, and one size; some may be the same."""
        t, threads, fours = cuda.threadIdx.x, cuda.blockDim.x, 0
        if by_four:
            fours = min(fours_of(to), fours_of(more), fours_of(x), fours_of(y))
            for i in range(t, fours, threads):
                v, w = shmem.load_vector(x, 4 * i, 4), shmem.load_vector(y, 4 * i, 4)
                a0, b0 = function(v[0], w[0], c)
                a1, b1 = function(v[1], w[1], c)
                a2, b2 = function(v[2], w[2], c)
                a3, b3 = function(v[3], w[3], c)
                shmem.store_vector(to, 4 * i, (a0, a1, a2, a3))
                if both:
                    shmem.store_vector(more, 4 * i, (b0, b1, b2, b3))
        for i in range(4 * fours + t, to.size, threads):
            a, b = function(x[i], y[i], c)
            to[i] = a
            if both:
                more[i] = b

    return run


@shmem.jit(device=True)
def mixed(gradient, average, c):
    """The update, and the average of gradients."""
    g = np.float32(gradient) * c[0]
    average += (g - average) * c[1]
    return g + (average - g) * c[2], average


@shmem.jit(device=True)
def scaled(value, other, c):
    return np.float32(value) * c[0], 0


@shmem.jit(device=True)
def of_second_degree(y, yy, c):
    return c[0] * np.float32(y) + c[1] * np.float32(yy), 0


@shmem.jit(device=True)
def moved(made, w, c):
    w = w * c[0] - c[1] * np.float32(made)
    return w, w


@shmem.jit(device=True)
def nothing(piece):
    return np.float32(0)


@shmem.jit
def multiply(to, a, b, team, epochs):
    """Set `to` to a @ b, on CPUs."""
    shmem.gemm_block(to, a, b, False)


def second_pass_by(move: Any, now: bool) -> Any:
    """The kernel that updates this PE's matrices, and `now`, or not yet, gets the others'."""

    @shmem.jit(device=True)
    def update(parameters, made, state, first, f, starts):
        """Update a piece by what was made; synchronises the block.

        `starts`: parameters are the first masters.
        """
        master = state[0][first : first + parameters.size]
        if starts:
            for i in range(cuda.threadIdx.x, master.size, cuda.blockDim.x):
                master[i] = parameters[i]
            cuda.syncthreads()
        move(parameters, master, made, master, f)
        cuda.syncthreads()

    gather = gathering(update, False, now)

    @shmem.jit(collective=True)
    def second_pass(
        made, parameters, table, piece, state, counts, rules, sums, told, near, team, epochs
    ):
        """Of all buckets, by what was `made` of this PE's matrices, which lie as its state does."""
        epoch, b = begin(epochs), cuda.blockIdx.x
        f = np.float32(1 - rules[0] * rules[1]), np.float32(rules[0])
        for k in range(table.shape[0]):
            epoch = gather(
                made, parameters, table, k, piece, state, f, counts[k, b] == 0, sums, told, near,
                team, epoch,
            )  # fmt: skip
        end_at(epochs, epoch - 1)
        if cuda.threadIdx.x == 0:
            for k in range(table.shape[0]):
                counts[k, b] += 1

    return second_pass


def kernels_for(by_four: bool, sum_of_squares: Any) -> dict[str, Any]:
    """All kernels, by name."""
    mix, scale = mapping(mixed, True, by_four), mapping(scaled, False, by_four)
    combine = mapping(of_second_degree, False, by_four)

    @shmem.jit
    def momentum(gradients, at, state, held, size, rules, squares, team, epochs):
        """Replace a matrix's gradients by its update; `squares` (blocks,) are of that."""
        b, (first, last) = cuda.blockIdx.x, part_of(size, cuda.gridDim.x, cuda.blockIdx.x)
        g, m = gradients[at + first : at + last], state[1, held + first : held + last]
        c = np.float32(rules[3]), np.float32(1 - rules[2]), np.float32(rules[4])
        mix(g, m, g, m, c)
        cuda.syncthreads()
        square = sum_of_squares(g)
        if cuda.threadIdx.x == 0:
            squares[b] = square

    @shmem.jit
    def normalised(x, gradients, at, size, squares, rules, team, epochs):
        """Set `x` (size,) to the update of a matrix over its norm."""
        first, last = part_of(size, cuda.gridDim.x, cuda.blockIdx.x)
        square = np.float32(0)
        for b in range(squares.size):
            square += squares[b]
        c = (np.float32(1) / max(math.sqrt(square), np.float32(rules[5])),)
        u = gradients[at + first : at + last]
        scale(x[first:last], u, u, u, c)

    @shmem.jit
    def polynomial(y, yy, m, coefficients, team, epochs):
        """Set `yy` (m m,) to a + b y + c yy, of matrices (m, m); y is used up."""
        first, last = part_of(m * m, cuda.gridDim.x, cuda.blockIdx.x)
        a = np.float32(coefficients[0])
        c = np.float32(coefficients[1]), np.float32(coefficients[2])
        one = (first + m) // (m + 1) + cuda.threadIdx.x  # of the diagonal, which is rounded once
        stop = min((last + m) // (m + 1), m)
        for k in range(one, stop, cuda.blockDim.x):
            d = k * (m + 1)
            y[d] = a + c[0] * np.float32(y[d]) + c[1] * np.float32(yy[d])
        cuda.syncthreads()
        part = yy[first:last]
        combine(part, part, y[first:last], part, c)
        cuda.syncthreads()
        for k in range(one, stop, cuda.blockDim.x):
            yy[k * (m + 1)] = y[k * (m + 1)]

    move = mapping(moved, True, by_four)
    return {
        "momentum": momentum, "normalised": normalised, "polynomial": polynomial,
        "summing": summing(nothing),
        "second_pass": {now: second_pass_by(move, now) for now in (True, False)},
    }  # fmt: skip


KERNELS = {  # by whether there is a GPU; for CPUs plain loops are vectorised
    True: kernels_for(True, squares_by_four),
    False: kernels_for(False, plain_row_of(np.float32, block_sum32)[0]),
}


class Matrix(NamedTuple):
    """A matrix of this PE's: where it is, and what its products are made of."""

    at: int  # in the arrays
    held: int  # in the state
    size: int
    m: int  # the smaller of its extents
    tall: bool
    xs: tuple[Any, ...]  # two places, the first in the end: with one axis, two, transposed
    ys: tuple[Any, ...]  # (m, m), two, with one axis, and with two
    coefficients: tuple[Any, ...]  # of the last step, and of the others


def cost(shape: tuple[int, int]) -> int:
    """Operations of a step of the iteration."""
    m, k = min(shape), max(shape)
    return 2 * m * m * (2 * k + m)


def owners_of(shapes: list[tuple[int, int]], n: int) -> list[int]:
    """Whose each matrix is, of n PEs: the dearest are dealt out first, to who has least to do."""
    owners, load = [0] * len(shapes), [0] * n
    for k in sorted(range(len(shapes)), key=lambda k: -cost(shapes[k])):
        owners[k] = least = min(range(n), key=load.__getitem__)
        load[least] += cost(shapes[k])
    return owners


class ZeroMuon(InBuckets):
    """Update matrices of `shapes` by all PEs' gradients, with Muon: `plan(gradients, parameters)`.

    Both are device arrays of one axis, of `plan.size` elements, in which matrix k begins at element
    `plan.starts[k]`, row by row; what is in between is of no use. `parameters`, `gradients`, their
    dtypes and `average` are as for `ZeroAdam`, as are `lr`, the step, and `start` for buckets:
    `buckets` says how many matrices are in each, one behind the other. `start` has gradients
    summed, the call does the rest; with `overlap_param_gather` `gather` gets the others' matrices.

    Matrix k belongs to PE `plan.owners[k]`, which keeps for it masters and momentum, in float32.
    Products are of `product_dtype`, bfloat16 as PyTorch's or another float; `coefficients`,
    `steps`, `eps`, `nesterov` and `adjust_lr_fn` ("original", "match_rms_adamw") are those of
    torch.optim.Muon. The PE has workspace for products, on the device: its matrices, the largest of
    them once more, and two of the smaller extent's square.
    """

    names = "master", "momentum_buffer"

    def __init__(
        self, *, shapes: Any, dtype: Any, gradient_dtype: Any = None,
        product_dtype: Any = "bfloat16", buckets: tuple[int, ...] | None = None, lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95, nesterov: bool = True,
        coefficients: tuple[float, float, float] = COEFFICIENTS, eps: float = 1e-7, steps: int = 5,
        adjust_lr_fn: str | None = None, average: bool = True, overlap_param_gather: bool = False,
        team: Any = shmem.TEAM_WORLD, blocks: int | None = None, threads: int | None = None,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        self.shapes = shapes_of(f"{name}: shapes", shapes)
        sizes = [aligned(math.prod(shape)) for shape in self.shapes]
        given = sum(sizes), dtype, gradient_dtype, overlap_param_gather, team, blocks, threads
        super().__init__(*given)
        counts = (len(sizes),) if buckets is None else buckets
        if sum(counts) != len(sizes) or not counts:
            raise shmem.ArgumentError(
                f"{name}: buckets have {shown(counts)} matrices; there are {len(sizes)}"
            )
        if adjust_lr_fn not in (None, *ADJUSTMENTS):
            raise shmem.ArgumentError(
                f"{name}: adjust_lr_fn is {adjust_lr_fn!r}; it can be {', '.join(ADJUSTMENTS)}"
            )
        self.product_dtype, self.steps = dtype_of(f"{name}: product_dtype", product_dtype), steps
        self._known("product_dtype", self.product_dtype)
        self._adjusted = ADJUSTMENTS[adjust_lr_fn or "original"]
        self._coefficients = coefficients
        self.owners = owners_of(self.shapes, self.n_pes)
        self._place(sizes, counts)
        mean, mix = 1 / self.n_pes if average else 1, momentum if nesterov else 1
        rules = np.array([lr, weight_decay, momentum, mean, mix, eps])
        self._rules = shmem.to_device(rules)
        self._kernels = KERNELS[bool(self.tuning.multiprocessors)]
        self._summing = self._kernels["summing"]
        self._found = shmem.to_device(np.zeros(self.blocks, "float32"))
        self._squares = shmem.to_device(np.zeros(SPREAD * self.blocks, "float32"))
        self._matrices = list(self._mine())
        self.bound += 10 * len(self._matrices)

    def _place(self, sizes: list[int], counts: tuple[int, ...]) -> None:
        """Say where matrices begin: of each bucket those of PE 0, those of PE 1, and so on."""
        self.starts, bounds, at, last = [0] * len(sizes), [], 0, 0
        for count in counts:
            bounds.append([at])
            first, last = last, last + count
            for pe in range(self.n_pes):
                for k in range(first, last):
                    if self.owners[k] == pe:
                        self.starts[k], at = at, at + sizes[k]
                bounds[-1].append(at)
        self._divide(np.array(bounds), len(self.names))

    def _mine(self) -> Iterator[Matrix]:
        """Make what there is for each of this PE's matrices, and workspace."""
        kind, held = self.product_dtype, 0
        mine = [k for k, pe in enumerate(self.owners) if pe == self.my_pe and min(self.shapes[k])]
        self._made = shmem.to_device(np.zeros(self._state.shape[1], kind))
        most = max((math.prod(self.shapes[k]) for k in mine), default=0)
        square = max((min(self.shapes[k]) for k in mine), default=0) ** 2
        spare, *both = (shmem.device_array(size, kind) for size in (most, square, square))
        coefficients = np.array(self._coefficients, "float64")
        others = shmem.to_device(coefficients)
        for k in sorted(mine, key=self.starts.__getitem__):  # as they lie in the state
            shape, m, size = self.shapes[k], min(self.shapes[k]), math.prod(self.shapes[k])
            last = shmem.to_device(coefficients * self._adjusted(*shape))
            places = self._made[held : held + size], spare[:size]
            yield Matrix(
                self.starts[k], held, size, m, shape[0] > shape[1],
                tuple((x, x.reshape(shape), x.reshape(shape).T) for x in places),
                tuple((y[: m * m], y[: m * m].reshape(m, m)) for y in both), (last, others),
            )  # fmt: skip
            held += aligned(size)

    def _finish(self, gradients: Any, parameters: Any, stream: Any) -> None:
        self.repeat(self._multiply_all, stream, gradients, parameters)

    def _multiply_all(self, gradients: Any, parameters: Any, stream: Any) -> None:
        self.on(stream)
        for matrix in self._matrices:
            self._make_orthogonal(matrix, gradients, stream)
        given = self._made, parameters, self._table, self.piece, self._state, self._counts
        boxes = *self._parameters, self.reachable
        second_pass = self._kernels["second_pass"][not self.overlap_param_gather]
        self.launch(second_pass, stream, *given, self._rules, *boxes)

    def _make_orthogonal(self, matrix: Matrix, gradients: Any, stream: Any) -> None:
        """Queue all that is done for a matrix between the sum of its gradients and its update."""
        at, held, size, m, tall, xs, ((y1, y), (yy1, yy)), coefficients = matrix
        kernels = self._kernels

        def launch(name: str, *args: Any) -> None:
            shape = SPREAD * self.blocks, self.threads, stream
            self.launch_as(shape, self._epochs, kernels[name], *args)

        launch("momentum", gradients, at, self._state, held, size, self._rules, self._squares)
        x1, x, transposed = xs[self.steps % 2]
        launch("normalised", x1, gradients, at, size, self._squares, self._rules)
        for left in reversed(range(self.steps)):
            self._multiply(y, *((transposed, x) if tall else (x, transposed)), stream)
            self._multiply(yy, y, y, stream)
            launch("polynomial", y1, yy1, m, coefficients[left > 0])
            _, to, to_transposed = xs[left % 2]
            self._multiply(to, *((x, yy) if tall else (yy, x)), stream)
            x, transposed = to, to_transposed

    def _multiply(self, to: Any, a: Any, b: Any, stream: Any) -> None:
        if self.tuning.multiprocessors:
            shmem.gemm(to, a, b, False, stream=stream)
        else:
            self.launch_as((1, self.threads, stream), self._epochs, multiply, to, a, b)


def shapes_of(what: str, shapes: Any) -> list[tuple[int, int]]:
    """The shapes of matrices, or an `ArgumentError`."""
    if not (_is_list(shapes) and all(_is_list(shape) and len(shape) == 2 for shape in shapes)):
        raise shmem.ArgumentError(f"{what} must be a list of (rows, columns), not {shown(shapes)}")
    return [(integer(f"{what}: rows", r, 0), integer(f"{what}: columns", c, 0)) for r, c in shapes]


def _is_list(value: Any) -> bool:
    return isinstance(value, tuple | list)


def reference(
    matrix: Any, gradients: list[Any], state: dict[str, Any], *, lr: float = 1e-3,
    weight_decay: float = 0.1, momentum: float = 0.95, nesterov: bool = True,
    coefficients: tuple[float, float, float] = COEFFICIENTS, eps: float = 1e-7, steps: int = 5,
    adjust_lr_fn: str | None = None, average: bool = True,
) -> Any:  # fmt: skip
    """A matrix after a step, from all PEs' gradients; `state` is replaced, at first it is empty."""
    g = np.sum([x.astype("float32") for x in gradients], axis=0).astype(gradients[0].dtype)
    g = g.astype("float64") / (len(gradients) if average else 1)
    m = state.get("momentum_buffer", 0) * momentum + (1 - momentum) * g
    u = g + (m - g) * momentum if nesterov else m
    x = (u.T if u.shape[0] > u.shape[1] else u) / max(np.linalg.norm(u), eps)
    a, b, c = coefficients
    for _ in range(steps):
        y = x @ x.T
        x = a * x + (b * y + c * y @ y) @ x
    x = x.T if u.shape[0] > u.shape[1] else x
    rate = lr * ADJUSTMENTS[adjust_lr_fn or "original"](*u.shape)
    w = state.get("master", matrix).astype("float64") * (1 - lr * weight_decay) - rate * x
    state.update(master=w, momentum_buffer=m)
    return w.astype(matrix.dtype)
