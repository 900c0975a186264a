"""Count the ways to place 12 queens, by tasks: whose deque is empty steals from others.

gpushmem run -n 4 examples/queens.py
"""

import numpy as np
from gpushmem.kernels import NO_TASK, TaskPool, begin, end, next_task, push_task
from numba import cuda

import gpushmem as shmem

N, DEPTH, DEALT = 12, 13, 3  # rows of the board, and boards on the way; rows that are tasks
ALL = (1 << N) - 1  # squares of a row


@shmem.jit(device=True)
def placed(board, column):
    """The board with a queen in its next row, as one number; -1 if another attacks that square.

    Squares of the next row that are attacked along columns, and both diagonals: N bits each.
    """
    row, square = board >> 3 * N, 1 << column
    columns, left, right = board & ALL, board >> N & ALL, board >> 2 * N & ALL
    if (columns | left | right) & square:
        return -1
    columns, left, right = columns | square, (left | square) << 1 & ALL, (right | square) >> 1
    return (row + 1) << 3 * N | right << 2 * N | left << N | columns


@shmem.jit(device=True)
def ways(board):
    """How many ways there are to complete a board: column by column, row by row."""
    boards, columns = cuda.local.array(DEPTH, np.int64), cuda.local.array(DEPTH, np.int64)
    boards[0], columns[0], depth, found = board, 0, 0, 0
    while depth >= 0:
        if boards[depth] >> 3 * N == N or columns[depth] == N:
            found += boards[depth] >> 3 * N == N
            depth -= 1
            continue
        after = placed(boards[depth], columns[depth])
        columns[depth] += 1
        if after >= 0:
            depth += 1
            boards[depth], columns[depth] = after, 0
    return found


@shmem.jit(collective=True)
def queens(total, done, tasks, team, epochs):
    """Thread 0 deals out boards of few rows; the threads of a block share the others' columns."""
    epoch, t = begin(epochs), cuda.threadIdx.x
    if shmem.team_my_pe(team) == 0 and cuda.blockIdx.x == 0 and t == 0:
        push_task(tasks, 0)
    board = next_task(tasks, team, epoch)
    while board != NO_TASK:
        if board >> 3 * N < DEALT:
            if t == 0:
                for column in range(N):
                    after = placed(board, column)
                    if after >= 0:
                        assert push_task(tasks, after)
        else:
            found = 0
            for column in range(t, N, cuda.blockDim.x):
                after = placed(board, column)
                found += ways(after) if after >= 0 else 0
            shmem.atomic_add(total, found, 0)
            if t == 0:
                cuda.atomic.add(done, 0, 1)
        board = next_task(tasks, team, epoch)
    end(epochs)


with shmem.session() as world:
    total, done = shmem.zeros(1, "int64"), shmem.to_device(np.zeros(1, "int64"))
    with TaskPool(places=1024) as pool:
        pool(queens, total, done)
    # All PEs have met to free it: all is done.
    print(f"PE {world.my_pe} did {done.numpy()[0]} tasks")
    if world.my_pe == 0:
        assert total.numpy()[0] == 14200
        print("14200 ways to place 12 queens")
