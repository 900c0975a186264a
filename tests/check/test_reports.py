"""What reports say: the names of memory, and cures, which make a program clean."""

import json
import re
from bisect import bisect

NAMES = """
import gpushmem as shmem
from numba import cuda

ROWS = 4

@cuda.jit(device=True)
def inside(t):
    inner = cuda.shared.array(64, "int16")
    inner[t % 63] = t

@shmem.jit
def kernel():
    t = cuda.threadIdx.x
    table = cuda.shared.array(shape=(ROWS, 16), dtype="int32")
    first, unused = cuda.shared.array(32, "float32"), cuda.shared.array(32, "float32")
    first[t % 32] = t
    if t < 2:
        table[2, 3] = t
        all_of_it = cuda.shared.array(0, "float64")
        again, part = cuda.shared.array(0, "uint8"), all_of_it[4:]
        part[3] = t
        again[1] = t
    inside(t)

@shmem.jit
def rows(x):
    x[3, 1] = cuda.threadIdx.x

shmem.init(heap_size="1M")
kernel[1, 64, 0, 128]()
x = shmem.zeros((4, 8))
rows[1, 2](x)
shmem.finalize()
"""


def found(run_cli, path, *args, pes=1, options=()):
    """What is found in a program."""
    done = run_cli(
        "run", "--backend", "cpu", "--check", "--check-format", "json", *options, "-n", pes, path,
        *args,
    )  # fmt: skip
    assert done.returncode in (0, 66), done.stderr
    return json.loads(done.stdout[done.stdout.index("[") :])


def test_shared_arrays_have_their_names_and_indices(run_cli, tmp_path):
    path = tmp_path / "names.py"
    path.write_text(NAMES)
    memories = {one["memory"].split(", allocated")[0] for one in found(run_cli, path)}
    block = "in shared memory of block 0 on PE 0"
    assert memories == {
        f"`first[0]` {block} (float32, shape (32,)", f"`table[2, 3]` {block} (int32, shape (4, 16)",
        f"`all_of_it[7]` {block} (float64, dynamic", f"`again[1]` {block} (uint8, dynamic",
        f"`inner[0]` {block} (int16, shape (64,)", "`x[3, 1]` on PE 0 (float64, shape (4, 8)",
    }  # fmt: skip


# --- cures


HEAD = """
from numba import cuda
import gpushmem as shmem

shmem.init(heap_size="16M")
kept = []
"""
LAUNCH = """
data, dst, out = (shmem.zeros(8) for _ in range(3))
flag, ack = (shmem.zeros(1, "uint64") for _ in range(2))
kernel[1, {threads}](data, dst, out, flag, ack, flag.view("uint8")[:1], shmem.ones(1, "uint64"))
kept.append((data, dst, out, flag, ack))
"""
KERNEL = """
@shmem.jit
def kernel(data, dst, out, flag, ack, part, one):
    i, other = cuda.threadIdx.x, 1 - shmem.my_pe()
"""
SENDS = """
    shmem.put(dst, data, other)
    shmem.fence()
    {flag}
    shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)
    out[0] = dst[0]
"""
STEPS = """
    for step in range(1, 4):
        {wait}
        shmem.put_signal{form}(dst, data, flag, step, shmem.SIGNAL_SET, other)
        if i == 0:
            shmem.signal_wait_until(flag, shmem.CMP_GE, step)
        cuda.syncthreads()
        {uses}
        {then}
        if i == 0:
            shmem.signal_op(ack, 1, shmem.SIGNAL_ADD, other)
"""
GETS = """
    for step in range(1, 4):
        shmem.signal_wait_until(ack, shmem.CMP_GE, step - 1)
        data[0] = step
        shmem.fence()
        shmem.signal_op(flag, step, shmem.SIGNAL_SET, other)
        shmem.signal_wait_until(flag, shmem.CMP_GE, step)
        shmem.get_nbi(dst, data, other)
        {then}
        shmem.signal_op(ack, 1, shmem.SIGNAL_ADD, other)
"""
READS = """
    out[i] = data[i]
    {then}
    if i == 0:
        shmem.signal_op(flag, 1, shmem.SIGNAL_SET, other)
        shmem.signal_wait_until(flag, shmem.CMP_GE, 1)
    cuda.syncthreads()
    shmem.put_block(data, dst, other)
"""
TILES = """
    for step in range(3):
        data[i] = step
        cuda.syncthreads()
        out[i] += data[7 - i]
        {then}
"""
ADDS = """
    {add}
"""
MEETS = """
    shmem.put(dst, data, other)
    {then}
    shmem.sync_all()
    out[0] = dst[0]
"""
ACK = "shmem.signal_wait_until(ack, shmem.CMP_GE, step - 1)"
ALL_WAIT = {"wait": f"if i == 0: {ACK}\n        cuda.syncthreads()", "form": "_block"}
TELLS = "thread 0 of the block tells PE 0, and does not know of this"
TO_FLAG = "p, atomic_set or signal_op"
P = {"flag": "shmem.p(flag, 1, other)"}
CURES = {
    "put": (SENDS, {"flag": "shmem.put(flag, one, other)"}, 1, P,
            {f"{TO_FLAG} instead of put at LINE, as signal_wait_until waits for it"}),
    "iput": (SENDS, {"flag": "shmem.iput(flag, one, 1, 1, 1, other)"}, 1, P,
             {f"{TO_FLAG} instead of iput at LINE, as signal_wait_until waits for it"}),
    "store": (SENDS, {"flag": "shmem.peer_array(flag, other)[0] = 1"}, 1, P,
              {f"{TO_FLAG} instead of the store at LINE, as signal_wait_until waits for it"}),
    "a byte": (SENDS, {"flag": "shmem.peer_array(part, other)[0] = 1"}, 1, P,
               {f"{TO_FLAG} of all 8 bytes instead of the store at LINE, as signal_wait_until "
                "waits for it"}),
    "p of a byte": (SENDS, {"flag": "shmem.p(part, 1, other)"}, 1, P,
                    {"p of all 8 bytes at LINE, as signal_wait_until"}),
    "credit of a block": (
        STEPS, ALL_WAIT | {"uses": "out[i] += dst[i]", "then": "pass"}, 8,
        {"then": "cuda.syncthreads()"}, {f"cuda.syncthreads() before signal_op at LINE: {TELLS}"},
    ),
    "credit of a put": (
        STEPS, {"wait": ACK, "form": "", "uses": "shmem.put_nbi(out, dst, other)", "then": "pass"},
        1, {"then": "shmem.quiet()"},
        {"flush() or quiet() before signal_op at LINE",
         "fence() before signal_op at LINE, or put_signal instead of the two calls"},
    ),
    "credit of a get": (GETS, {"then": "pass"}, 1, {"then": "shmem.quiet()"},
                        {"quiet() before signal_op at LINE", "quiet() between the two"}),
    "the next step": (
        TILES, {"then": "pass"}, 8, {"then": "cuda.syncthreads()"},
        {"cuda.syncthreads() or cuda.syncwarp() after LINE, before the next step comes to LINE"},
    ),
    "plain additions": (
        ADDS, {"add": "data[i // 2] += 1"}, 8, {"add": "cuda.atomic.add(data, i // 2, 1)"},
        {"an operation of cuda.atomic, or another element for each thread"},
    ),
    "sync": (MEETS, {"then": "pass"}, 1, {"then": "shmem.quiet()"},
             {"quiet() before sync_all at LINE, by PE 0"}),
    "not read by all": (READS, {"then": "pass"}, 8, {"then": "cuda.syncthreads()"},
                        {f"cuda.syncthreads() before signal_op at LINE: {TELLS}"}),
    "credit waited for by one": (
        STEPS,
        {"wait": f"if i == 0: {ACK}", "form": "_block", "uses": "out[i] += dst[i]",
         "then": "cuda.syncthreads()"},
        8, {"wait": f"if i == 0: {ACK}\n        cuda.syncthreads()"},
        {"quiet() between the two, by PE 0",
         "fence() between this write and that of LINE in kernel",
         "cuda.syncthreads() after signal_wait_until at LINE: thread 0 of the block has waited "
         "there, this one has not"},
    ),
}  # fmt: skip


def of_all(cured):
    """The programs of CURES, one behind the other in a job, and the lines where they begin."""
    text, starts = HEAD, []
    for body, parts, threads, cure, _ in CURES.values():
        starts.append(text.count("\n") + 1)
        text += KERNEL + body.format(**parts | (cure if cured else {}))
        text += LAUNCH.format(threads=threads)
    return text, starts


def test_the_cures_that_are_told_make_programs_clean(run_cli, tmp_path):
    path, cures = tmp_path / "program.py", {name: set() for name in CURES}
    text, starts = of_all(cured=False)
    path.write_text(text)
    for problem in found(run_cli, path, pes=2):
        line = re.search(r"program\.py:(\d+)", problem["accesses"][0]["line"])[1]
        name = list(CURES)[bisect(starts, int(line)) - 1]
        cure = re.sub(r"program\.py:\d+", "LINE", problem["cure"])
        cures[name].add(cure.partition("missing: ")[2])
    assert cures == {name: told for name, (*_, told) in CURES.items()}
    path.write_text(of_all(cured=True)[0])
    assert found(run_cli, path, pes=2) == []
