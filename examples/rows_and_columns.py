"""Sum over rows and columns of a grid of PEs: teams, and collectives on them in one kernel.

gpushmem run -n 4 examples/rows_and_columns.py
"""

import math

import numpy as np

import gpushmem as shmem


@shmem.jit
def sums(row, column, values, by_row, by_column):
    shmem.reduce_block(row, by_row, values, "sum")
    shmem.reduce_block(column, by_column, by_row, "max")


with shmem.session() as world:
    me, n = world.my_pe, world.n_pes
    width = math.isqrt(n)  # PEs in a row; the last row may be shorter
    row, column = world.split_2d(width)
    values = shmem.full(100, me, dtype="int64")
    by_row, by_column = (shmem.zeros(100, dtype="int64") for _ in range(2))
    sums[1, 64](row, column, values, by_row, by_column)
    world.barrier()

    grid = [list(range(n))[k : k + width] for k in range(0, n, width)]
    print(f"PE {me}, {row.my_pe} of {row.n_pes} in its row: the row's sum is {by_row.numpy()[0]}")
    assert (by_row.numpy() == sum(grid[me // width])).all()
    assert (by_column.numpy() == max(sum(r) for r in grid if me % width < len(r))).all()
    shmem.get(values, by_row, 0)
    np.testing.assert_array_equal(values.numpy(), np.full(100, sum(grid[0])))
