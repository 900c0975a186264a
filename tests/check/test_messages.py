"""Data x order x flag x wait x reader, as a table: messages from one PE to another.

docs/memory-model.md, "Guarantees". Each case is a kernel of one program: PE 0 writes, or lets PE 1
fetch, sets a flag for which PE 1 waits, and a thread there reads. It is right if each part is.
"""

import json
from itertools import product
from random import Random

import pytest

HEAD = """
import gpushmem as shmem
from numba import cuda

shmem.init(heap_size="64M")
flags, arrays = shmem.zeros({n}, dtype="uint64"), shmem.zeros((3, 2 * {n}), dtype="int32")
"""
MESSAGE = """
@shmem.jit
def {name}(data, src, out, flag):
    i = cuda.threadIdx.x
    if shmem.my_pe() == 0:
        if i == 0:
            {write}
            {order}
            {tell}
    else:
        if i == 0:
            {wait}
        {met}
        if i == {reader}:
            {read}
"""
LAUNCH = """
{name}[1, 64](*(a[{k} : {k} + 2] for a in arrays), flags[{k} // 2 :])
"""
WRITES = {
    "p": "shmem.p(data, 1, 1)", "put": "shmem.put(data, src, 1)",
    "put_nbi": "shmem.put_nbi(data, src, 1)", "iput": "shmem.iput(data, src, 1, 1, 2, 1)",
    "store": "shmem.peer_array(data, 1)[0] = 1", "atomic": "shmem.atomic_set(data, 1, 1)",
}  # fmt: skip
ORDERS = {"nothing": "pass", "flush": "shmem.flush()", "fence": "shmem.fence()",
          "quiet": "shmem.quiet()", "system": "cuda.threadfence_system()"}  # fmt: skip
TELLS = {
    "signal": "shmem.signal_op(flag, 1, shmem.SIGNAL_SET, 1)", "p": "shmem.p(flag, 1, 1)",
    "put_signal": "shmem.put_signal(out, src, flag, 1, shmem.SIGNAL_ADD, 1)",
    "set": "shmem.atomic_set(flag, 1, 1)", "inc": "shmem.atomic_inc(flag, 1)",
    "fetch": "shmem.atomic_fetch_add(flag, 1, 1)",
}  # fmt: skip
WAITS = {
    "signal": "shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)",
    "wait": "shmem.wait_until(flag, shmem.CMP_NE, 0)",
    "test": "while not shmem.test(flag, shmem.CMP_GE, 1):\n                pass",
    "signals": "while shmem.signal_fetch(flag) == 0:\n                pass",
    "fetch": "while shmem.atomic_fetch(flag, 1) != 1:\n                pass",
    "g": "while shmem.g(flag, 1) == 0:\n                pass",
}  # fmt: skip
READERS = {"same": ("pass", 0), "block": ("cuda.syncthreads()", 32), "other": ("pass", 32),
           "lane": ("if i < 32:\n            cuda.syncwarp()", 1)}  # fmt: skip
READS = {
    "get": "shmem.get(out, data, 0)", "g": "out[1] = shmem.g(data, 0)",
    "load": "out[1] = shmem.peer_array(data, 0)[0]", "iget": "shmem.iget(out, data, 1, 1, 2, 0)",
}  # fmt: skip


def pushed(write, order, tell, wait, reader):
    """The kernel in which PE 0 writes to PE 1, and whether that is in order."""
    met, thread = READERS[reader]
    name = "_".join(("pushed", write, order, tell, wait, reader))
    kernel = MESSAGE.format(
        name=name, write=WRITES[write], order=ORDERS[order], tell=TELLS[tell], wait=WAITS[wait],
        met=met, reader=thread, read="out[1] = data[0]",
    )  # fmt: skip
    ordered = order in ("fence", "quiet") or (order, write) == ("system", "store")
    return name, kernel, ordered and wait != "g" and reader != "other"


def pulled(order, tell, wait, reader, read):
    """The kernel in which PE 1 fetches what PE 0 has stored, and whether that is in order."""
    met, thread = READERS[reader]
    name = "_".join(("pulled", order, tell, wait, reader, read))
    kernel = MESSAGE.format(
        name=name, write="data[0] = 1", order=ORDERS[order], tell=TELLS[tell], wait=WAITS[wait],
        met=met, reader=thread, read=READS[read],
    )  # fmt: skip
    return name, kernel, order in ("fence", "quiet") and wait != "g" and reader != "other"


CASES = [
    *map(pushed, *zip(*product(WRITES, ORDERS, TELLS, WAITS, READERS), strict=True)),
    *map(pulled, *zip(*product([o for o in ORDERS if o != "system"], TELLS, WAITS, READERS, READS),
                      strict=True)),
]  # fmt: skip


@pytest.mark.parametrize("number", [
    pytest.param(30, id="some"),
    pytest.param(400, id="many", marks=[pytest.mark.sweep, pytest.mark.timeout(900)]),
])  # fmt: skip
def test_a_message_is_right_if_each_of_its_parts_is(run_cli, tmp_path, number):
    cases = Random(number).sample(CASES, number)
    launches = (LAUNCH.format(name=name, k=2 * k) for k, (name, *_) in enumerate(cases))
    kernels = "".join(kernel for _, kernel, _ in cases)
    script = tmp_path / "table.py"
    script.write_text(HEAD.format(n=number) + kernels + "".join(launches) + "shmem.finalize()\n")
    options = ["--backend", "cpu", "--check", "--check-format", "json", "-n", 2]
    problems = json.loads(run_cli("run", *options, script, code=66, timeout=800).stdout)
    found = {a["line"].partition(" in ")[2] for problem in problems for a in problem["accesses"]}
    assert sorted(found) == sorted(name for name, _, right in cases if not right)
