"""A pipeline of relu(x @ w), two layers a stage, 8 microbatches, float32, 1F1B.

Beside NumPy with mpi4py also PyTorch's `torch.distributed.pipelining`.
"""

import gloo
import numpy as np

NAME = "Pipeline"
SIZES = ((32, 128), (128, 128), (256, 256), (512, 512))  # rows of a microbatch, numbers in a row
CASES = [{"rows": rows, "hidden": hidden} for rows, hidden in SIZES]
LAYERS, MICROBATCHES = 2, 8


def label(case):
    nbytes = 4 * case["rows"] * case["hidden"]
    return f"{case['rows']} x {case['hidden']}, {nbytes >> 10} KiB"


def arrays(case):
    """Weights, and a batch."""
    rows, hidden = case["rows"], case["hidden"]
    rng = np.random.default_rng(0)
    weights = rng.normal(0, (2 / hidden) ** 0.5, (LAYERS, hidden, hidden)).astype("f4")
    return weights, rng.normal(size=(MICROBATCHES, rows, hidden)).astype("f4")


def nbytes(case, n):
    return 4 * case["rows"] * case["hidden"] * MICROBATCHES  # of the first stage


def fused(case):
    from gpushmem.kernels import PipelinedLayers

    import gpushmem as shmem

    weights, batch = map(shmem.to_device, arrays(case))
    weights = weights.reshape(1, *weights.shape)
    gradients = shmem.device_array(weights.shape, "float32")
    loss = shmem.device_array(batch.shape[:2], "float32")
    plan = PipelinedLayers(**case, layers=LAYERS, microbatches=MICROBATCHES, dtype="float32")
    given = {"x": batch, "target": batch, "loss": loss}
    return plan, lambda: plan(weights, gradients=gradients, **given)


def phases(case):
    """All forwards, then all backwards, by hosts, products by the library."""
    from gpushmem.kernels import PipelineExchange
    from gpushmem.kernels.pipeline import squared_error, through_relu

    import gpushmem as shmem

    @shmem.jit
    def relu(y):
        through_relu(y, y)

    @shmem.jit
    def back_through_relu(grad, y):
        through_relu(grad, y)

    @shmem.jit
    def error(grad, loss, y, target):
        squared_error(grad, loss, y, target)

    me, n, threads = shmem.my_pe(), shmem.n_pes(), shmem.tuning().threads
    weights, batch = map(shmem.to_device, arrays(case))
    shape, per_batch = batch.shape[1:], range(MICROBATCHES)
    exchange = PipelineExchange(shape=shape, dtype="float32", window=MICROBATCHES)
    kept = shmem.device_array((MICROBATCHES, LAYERS + 1, *shape), "float32")
    values = [[kept[m, k] for k in range(LAYERS + 1)] for m in per_batch]
    if me == 0:
        for m in per_batch:
            values[m][0] = batch[m]
    grads, sent = shmem.device_array((LAYERS, *shape), "float32"), shmem.device_array(shape, "f4")
    of = [grads[k] for k in range(LAYERS)]
    made, loss = shmem.device_array(weights.shape, "float32"), shmem.device_array(shape[:1], "f4")
    w, dw = ([each[k] for k in range(LAYERS)] for each in (weights, made))
    back = [each.T for each in w]
    across = [[values[m][k].T for k in range(LAYERS)] for m in per_batch]
    targets = [batch[m] for m in per_batch]

    def forward():
        for y in values:
            if me > 0:
                exchange.recv_forward(out=y[0])
            for k in range(LAYERS):
                shmem.gemm(y[k + 1], y[k], w[k], False, stream=0)
                relu[1, threads](y[k + 1])
            if me < n - 1:
                exchange.send_forward(y[-1])

    def backward():
        for m, y in enumerate(values):
            if me < n - 1:
                exchange.recv_backward(out=of[-1])
            else:
                error[1, threads](of[-1], loss, y[-1], targets[m])
            for k in reversed(range(LAYERS)):
                back_through_relu[1, threads](of[k], y[k + 1])
                if k > 0 or me > 0:
                    shmem.gemm(of[k - 1] if k else sent, of[k], back[k], False, stream=0)
                shmem.gemm(dw[k], across[m][k], of[k], m > 0, stream=0)
            if me > 0:
                exchange.send_backward(sent)

    return [("forward", forward), ("backward", backward)]


def mpi(case, comm):
    """1F1B in NumPy; sends do not wait."""
    weights, batch = arrays(case)
    me, n, dw = comm.rank, comm.size, np.zeros_like(weights)
    ahead = min(n - me - 1, MICROBATCHES)
    values, pending = {}, []

    def send(x, to, tag):
        pending.append(comm.Isend(x, to, tag))

    def forward(m):
        y = [batch[m] if me == 0 else np.empty_like(batch[0])]
        if me > 0:
            comm.Recv(y[0], me - 1, m)
        for each in weights:
            y.append(np.maximum(y[-1] @ each, 0))
        values[m] = y
        if me < n - 1:
            send(y[-1], me + 1, m)

    def backward(m):
        y = values.pop(m)
        if me < n - 1:
            grad = np.empty_like(y[-1])
            comm.Recv(grad, me + 1, m)
        else:
            grad = y[-1] - batch[m]
            (grad * grad).sum(axis=1)
        for k in reversed(range(LAYERS)):
            grad *= y[k + 1] > 0
            dw[k] += y[k].T @ grad
            if k > 0 or me > 0:
                grad = grad @ weights[k].T
        if me > 0:
            send(grad, me - 1, m)

    def call():
        dw[:] = 0
        for m in range(MICROBATCHES + ahead):
            if m < MICROBATCHES:
                forward(m)
            if m >= ahead:
                backward(m - ahead)
        for request in pending:
            request.Wait()
        pending.clear()

    return call


def pytorch(case, comm):
    """PyTorch's own pipeline: the same schedule, by Gloo."""
    import torch
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    gloo.begin(comm)
    weights, batch = arrays(case)
    model = torch.nn.Sequential()
    for each in weights:
        layer = torch.nn.Linear(*each.shape, bias=False)
        layer.weight.data = torch.from_numpy(each.T.copy())
        model.extend([layer, torch.nn.ReLU()])
    x = torch.from_numpy(batch.reshape(-1, batch.shape[-1]))
    stage = PipelineStage(model, comm.rank, comm.size, torch.device("cpu"))

    def loss(y, target):
        return (y - target).square().sum() / 2

    schedule = Schedule1F1B(stage, MICROBATCHES, loss, scale_grads=False)
    given = [x] if comm.rank == 0 else []
    last = {"target": x} if comm.rank == comm.size - 1 else {}

    def call():
        model.zero_grad()
        schedule.step(*given, **last)

    return call
