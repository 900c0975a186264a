"""2-D and 3-D transforms, complex64: fused, in three launches, and in SciPy and mpi4py."""

import numpy as np

NAME = "FFT"
SHAPES = (64, 64), (256, 256), (1024, 1024), (2048, 2048), (32, 32, 32), (64, 64, 64), (128,) * 3
CASES = [{"shape": shape} for shape in SHAPES]


def label(case):
    return " x ".join(map(str, case["shape"]))


def nbytes(case, n):
    return 8 * np.prod(case["shape"]).item() // n * (n - 1) // n


def rows_of(case, pe, n):
    shape = case["shape"][0] // n, *case["shape"][1:]
    rng = np.random.default_rng(pe)
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype("complex64")


def made(case):
    from gpushmem.kernels import FFT

    import gpushmem as shmem

    x = shmem.to_device(rows_of(case, shmem.my_pe(), shmem.n_pes()))
    plan, (rows, columns, *depth) = FFT(shape=case["shape"]), case["shape"]
    return plan, x, shmem.device_array((columns // shmem.n_pes(), rows, *depth), "complex64")


def fused(case):
    plan, x, out = made(case)
    return plan, lambda: plan(x, out=out)


def phases(case):
    """Rows as the plan transforms them, all-to-all of what goes to each PE, then columns."""
    from gpushmem.kernels import AllToAll, Plan, end
    from gpushmem.kernels.fft import log2, take_column, transform, transform_rows
    from gpushmem.kernels.parts import share_of
    from numba import cuda

    import gpushmem as shmem

    @shmem.jit
    def of_rows(x, parts, columns, depth, bundle, table, work, sent, team, epochs):
        """`parts` (n, any) get what goes to each PE."""
        width, inner = bundle * columns * depth, bundle * depth
        for k in range(x.size // width):
            part = sent[k * width : (k + 1) * width]
            mine = x[k * width : (k + 1) * width]
            transform_rows(mine, part, columns, depth, bundle, work, table, np.float32(1))
            for to in range(parts.shape[0]):
                first, last = share_of(columns, parts.shape[0], to)
                piece = part[first * inner : last * inner]
                shmem.copy_block(parts[to][k * piece.size : (k + 1) * piece.size], piece)
        end(epochs)

    @shmem.jit
    def of_columns(parts, out, rows, columns, depth, inner, group, table, work, team, epochs):
        size, n = rows * depth, parts.shape[0]
        for c in range(0, columns, group):
            count = min(group, columns - c)
            for source in range(n):
                lower, upper = share_of(rows, n, source)
                for g in range(count):
                    to = work[0][g * size + lower * depth : g * size + upper * depth]
                    take_column(to, parts[source], c + g, columns, inner, np.float32(1))
            cuda.syncthreads()
            part = out[c * size : (c + count) * size]
            transform(work, 0, part.size, rows, log2(depth), part, True, table, np.float32(1))
        end(epochs)

    whole, x, out = made(case)
    rows, columns, depth, bundle, group, _, _, table, works, sent, *_ = whole._workspace
    n, plan, work = shmem.n_pes(), Plan(threads=whole.threads), works[0]
    x, out = x.reshape(-1), out.reshape(-1)
    parts, came = (shmem.device_array((n, x.size // n), "complex64") for _ in range(2))
    flat = parts.reshape(-1), came.reshape(-1)
    exchange, inner = AllToAll(size=x.size // n, dtype="complex64"), bundle * depth
    first = x, parts, columns, depth, bundle, table, work, sent
    second = came, out, rows, columns // n, depth, inner, group, table, work
    return [
        ("rows", lambda: plan.launch(of_rows, 0, *first)),
        ("all-to-all", lambda: exchange(flat[0], out=flat[1])),
        ("columns", lambda: plan.launch(of_columns, 0, *second)),
    ]


def mpi(case, comm):
    from mpi4py import MPI
    from scipy.fft import fft, fftn

    x, n = rows_of(case, comm.rank, comm.size), comm.size
    rows, columns, *depth = x.shape
    sent = np.empty((n, columns // n, rows, *depth), "complex64")
    came, kind = np.empty_like(sent), MPI.C_FLOAT_COMPLEX

    def call():
        made = fftn(x, axes=tuple(range(1, x.ndim)))
        np.copyto(sent, made.reshape(rows, n, columns // n, *depth).swapaxes(0, 1).swapaxes(1, 2))
        comm.Alltoall([sent, kind], [came, kind])
        whole = came.swapaxes(0, 1).reshape(columns // n, n * rows, *depth)
        fft(whole, axis=1, overwrite_x=True)

    return call
