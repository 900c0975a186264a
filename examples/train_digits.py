"""Train a small neural network on handwritten digits, data-parallel: the main job.

Every PE holds the whole network (64 inputs, 64 hidden units, 10 digits) and computes the gradient
of its part of each batch; the gradients are summed by an all-reduce inside a kernel. All PEs
then take the same step, so the result does not depend on their number.

    gpushmem run -n 4 examples/train_digits.py
"""

import argparse
import math

import numpy as np
from gpushmem.kernels import AllReduce
from numba import cuda
from sklearn.datasets import load_digits

import gpushmem as shmem
from gpushmem.progress import progress

INPUTS, HIDDEN, DIGITS = 64, 64, 10
BATCH, TEST, THREADS = 120, 360, 64


@shmem.jit
def dense(out, x, w, b, relu):
    """out = x @ w + b, for relu with negative values cut off; one thread an element."""
    k = cuda.grid(1)
    if k < out.size:
        row, col = k // out.shape[1], k % out.shape[1]
        total = b[col]
        for i in range(x.shape[1]):
            total += x[row, i] * w[i, col]
        out[row, col] = max(total, np.float32(0)) if relu else total


@shmem.jit
def cross_entropy(slope, loss, logits, label):
    """slope = softmax(logits) - one_hot(label), loss += cross-entropy; one thread a row."""
    row = cuda.grid(1)
    if row < logits.shape[0]:
        top = logits[row, 0]
        for j in range(1, logits.shape[1]):
            top = max(top, logits[row, j])
        total = np.float32(0)
        for j in range(logits.shape[1]):
            slope[row, j] = math.exp(logits[row, j] - top)
            total += slope[row, j]
        for j in range(logits.shape[1]):
            slope[row, j] /= total
        cuda.atomic.add(loss, 0, -np.log(slope[row, label[row]]))
        slope[row, label[row]] -= np.float32(1)


@shmem.jit
def backward(slope, above, w, out):
    """slope = (above @ w.T) where out > 0; one thread an element."""
    k = cuda.grid(1)
    if k < slope.size:
        row, col = k // slope.shape[1], k % slope.shape[1]
        total = np.float32(0)
        for j in range(above.shape[1]):
            total += above[row, j] * w[col, j]
        slope[row, col] = total if out[row, col] > 0 else np.float32(0)


@shmem.jit
def gradients(dw, db, x, slope):
    """dw = x.T @ slope, db = slope summed over rows; one thread an element of both."""
    k = cuda.grid(1)
    if k < dw.size + db.size:
        col = k % dw.shape[1]
        total = np.float32(0)
        for row in range(x.shape[0]):
            total += slope[row, col] * (x[row, k // dw.shape[1]] if k < dw.size else np.float32(1))
        if k < dw.size:
            dw[k // dw.shape[1], col] = total
        else:
            db[col] = total


@shmem.jit
def step(weights, speed, gradient, rate, momentum):
    """Gradient descent with momentum; one thread a weight."""
    k = cuda.grid(1)
    if k < weights.size:
        speed[k] = momentum * speed[k] - rate * gradient[k]
        weights[k] += speed[k]


def parts(flat):
    """Weights or gradients of the two layers, and the loss, as views of one array."""
    at, views = 0, []
    for shape in ((INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, DIGITS), (DIGITS,), (1,)):
        size = int(np.prod(shape))
        views.append(flat[at : at + size].reshape(shape))
        at += size
    return views


def blocks(n):
    return -(-n // THREADS)


def main(epochs, rate, momentum):
    shmem.init()
    me, n = shmem.my_pe(), shmem.n_pes()
    digits = load_digits()
    order = np.random.default_rng(1).permutation(len(digits.target))
    x, y = (digits.data[order] / 16).astype("float32"), digits.target[order]
    train, test = slice(TEST, None), slice(0, TEST)

    rng = np.random.default_rng(2)  # the same weights on every PE
    size = INPUTS * HIDDEN + HIDDEN + HIDDEN * DIGITS + DIGITS + 1
    start = np.zeros(size, "float32")
    for w in (parts(start)[0], parts(start)[2]):
        w[:] = rng.normal(0, np.sqrt(2 / w.shape[0]), w.shape)
    weights, speed = shmem.to_device(start), shmem.to_device(np.zeros_like(start))
    gradient = shmem.empty(size, "float32")  # symmetric: it is sent from
    w1, b1, w2, b2, _ = parts(weights)
    dw1, db1, dw2, db2, loss = parts(gradient)
    total = AllReduce(size=size, dtype="float32")

    rows = TEST  # room for the test set; a PE's part of a batch is smaller
    hidden, logits = (
        shmem.device_array((rows, HIDDEN), "f4"),
        shmem.device_array((rows, DIGITS), "f4"),
    )
    slope1, slope2 = (
        shmem.device_array((rows, HIDDEN), "f4"),
        shmem.device_array((rows, DIGITS), "f4"),
    )

    def forward(inputs):
        m = len(inputs)
        dense[blocks(m * HIDDEN), THREADS](hidden[:m], inputs, w1, b1, True)
        dense[blocks(m * DIGITS), THREADS](logits[:m], hidden[:m], w2, b2, False)

    def train_batch(rows_of_batch):
        mine = np.array_split(rows_of_batch, n)[me]  # this PE's part
        inputs, labels, m = shmem.to_device(x[mine]), shmem.to_device(y[mine]), len(mine)
        gradient.copy_from(0)
        if m:
            forward(inputs)
            cross_entropy[blocks(m), THREADS](slope2[:m], loss, logits[:m], labels)
            backward[blocks(m * HIDDEN), THREADS](slope1[:m], slope2[:m], w2, hidden[:m])
            gradients[blocks(dw2.size + DIGITS), THREADS](dw2, db2, hidden[:m], slope2[:m])
            gradients[blocks(dw1.size + HIDDEN), THREADS](dw1, db1, inputs, slope1[:m])
        total(gradient)
        scale = np.float32(rate / len(rows_of_batch))
        step[blocks(size - 1), THREADS](
            weights[: size - 1], speed, gradient, scale, np.float32(momentum)
        )
        return loss[0]

    def accuracy():
        forward(shmem.to_device(x[test]))
        return float(np.mean(logits[:TEST].numpy().argmax(1) == y[test]))

    shuffle = np.random.default_rng(3)
    samples = np.arange(len(x))[train]
    with progress(f"training on {n} PE{'s' * (n > 1)}", epochs, shown=me == 0) as bar:
        for epoch in bar.each(range(1, epochs + 1), lambda epoch: f"epoch {epoch}"):
            shuffle.shuffle(samples)
            sums = [train_batch(samples[k : k + BATCH]) for k in range(0, len(samples), BATCH)]
            score = accuracy()
            mean = sum(sums) / len(samples)
            if me == 0:
                bar.print(f"epoch {epoch:2}  loss {mean:.4f}  test accuracy {score:.1%}")
    final = weights.numpy()
    shmem.finalize()
    assert score >= 0.95, f"test accuracy {score:.1%}, at least 95 % expected"
    return final


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--rate", type=float, default=0.2)
    parser.add_argument("--momentum", type=float, default=0.9)
    main(**vars(parser.parse_args()))
