"""NIXL writes into a PE's heap while a kernel there waits; and our puts into NIXL's memory."""

import pickle
import sys
import time

import numpy as np
import pytest
import torch

import gpushmem as shmem
import gpushmem.torch as symmetric
from gpushmem.integrations import nixl

SIZE, ROUNDS = 1 << 18, 3


@shmem.jit
def take(out, x, flag, number):
    """Wait until NIXL has written `number`, which it does after `x`."""
    shmem.signal_wait_until(flag, shmem.CMP_GE, number)
    for i in range(x.size):
        out[i] = 2 * x[i]


shmem.init()
me = shmem.my_pe()
other = 1 - me
x, flag = symmetric.zeros(SIZE, dtype=torch.float32), shmem.zeros(1, "uint64")
pages = symmetric.zeros(8, 1024, dtype=torch.float32)
agent = nixl.agent(f"pe{me}")
registered = nixl.register(agent, x, flag, pages)


def exchanged(told):
    """What the other PE tells."""
    box, data = shmem.zeros(1 << 16, "uint8"), np.frombuffer(pickle.dumps(told), "uint8")
    box[: len(data)] = data
    shmem.barrier_all()
    return pickle.loads(shmem.peer_array(box, other).numpy().tobytes())


order = [3, 0, 7] if me == 0 else [1, 6, 2]
mine = [nixl.blocks(agent, x), nixl.blocks(agent, flag), nixl.blocks(agent, pages, order)]
told = exchanged((agent.get_agent_metadata(), [agent.get_serialized_descs(d) for d in mine]))
name = agent.add_remote_agent(told[0])
theirs = [agent.deserialize_descs(each) for each in told[1]]


def transfer(kind, local, remote):
    handle = agent.initialize_xfer(kind, local, remote, name)
    state = agent.transfer(handle)
    while state == "PROC":
        state = agent.check_xfer_state(handle)
    assert state == "DONE"
    agent.release_xfer_handle(handle)


# NIXL writes, a kernel waits.
out = shmem.to_device(np.zeros(SIZE, "float32"))
for number in range(1, ROUNDS + 1):
    if me == 1:
        take[1, 1](out, x, flag, number)
        shmem.synchronize()
        assert np.array_equal(out.numpy(), 2 * (np.arange(SIZE, dtype="float32") + 1000 * number))
    else:
        time.sleep(0.1)  # the kernel waits
        x.copy_(torch.arange(SIZE) + 1000 * number)
        flag[0] = number
        transfer("WRITE", mine[0], theirs[0])
        transfer("WRITE", mine[1], theirs[1])  # the first has ended
    shmem.barrier_all()

# A put of ours into memory that NIXL then reads, in rows.
rows = torch.arange(8.0)[:, None].expand(8, 1024) + 100 * (me + 1)
pages.copy_(rows)
shmem.barrier_all()
if me == 0:
    shmem.put(pages[1], pages[5], 1)  # 105 in row 1 there
    shmem.quiet()
    transfer("READ", mine[2], theirs[2])
    assert pages[:, 0].tolist() == [206, 101, 102, 105, 104, 105, 106, 202]
shmem.barrier_all()
with pytest.raises(shmem.ArgumentError, match="not contiguous"):
    nixl.register(agent, x[::2])
if "given-back" in sys.argv:
    registered.close()
    agent.remove_remote_agent(name)
shmem.finalize()
print(f"PE {me}: ok")
