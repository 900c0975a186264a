"""What a kernel that fails does to its process, to others on the GPU, and to those that come later.

python bench/gpu/fault.py

With MPS (CUDA_MPS_PIPE_DIRECTORY is set) one kernel fails, since it ends the work of all; without,
one of each KIND. Beside it a process launches kernel after kernel, and another waits for a kernel
that waits for a signal. Both stay until a third has tried to begin; when all have ended, a fourth
begins. Each says what it met. The exit status is 1 if that is not what docs/gpu.md says.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cuda.core import LaunchConfig, Program, ProgramOptions, launch

import gpushmem as shmem

SOURCE = """
extern "C" __device__ void __assertfail(const char *, const char *, unsigned, const char *, size_t);
extern "C" __global__ void assertion(char *x) { __assertfail("x", "file", 1, "f", 1); }
extern "C" __global__ void misaligned(char *x) { *(volatile long long *)(x + 1) = 1; }
extern "C" __global__ void trap(char *x) { asm volatile("trap;"); }
"""
KINDS = ("bounds", "assertion", "misaligned", "trap")
MPS = "CUDA_MPS_PIPE_DIRECTORY" in os.environ
LONG = 40  # seconds


@shmem.jit
def store(x, i):
    x[i] += 1


@shmem.jit
def wait(flag):
    shmem.signal_wait_until(flag, shmem.CMP_EQ, 1)


def say(text):
    print(text, flush=True)


def fails(kind):
    """A kernel of this process fails; the process ends as one that does not expect it."""
    shmem.init(heap_size="16M")
    x = shmem.zeros(64)
    if kind == "bounds":
        store[1, 1](x, 1 << 40)
    else:
        arch = f"sm_{shmem.runtime.current().backend._device.cuda.arch}"
        made = Program(SOURCE, "c++", ProgramOptions(arch=arch)).compile("cubin")
        stream = shmem.stream().cuda
        place = x.__cuda_array_interface__["data"][0]
        launch(stream, LaunchConfig(grid=1, block=1), made.get_kernel(kind), place)
    for call in (shmem.synchronize, x.numpy, shmem.finalize):
        try:
            call()
            say(f"{call.__name__}: no error")
        except shmem.ShmemError as error:
            say(f"{call.__name__}: {type(error).__name__}: {error}")
    shmem.synchronize()


def goes_on(over):
    """Launch kernel after kernel until the end, or an error."""
    shmem.init(heap_size="16M")
    x, n = shmem.zeros(1, "int64"), 0
    say("ready")
    try:
        while not over.exists():
            store[1, 1](x, 0)
            n += 1
            assert x.numpy()[0] == n
            time.sleep(0.01)
        say(f"{n} kernels, all right")
        shmem.finalize()
    except shmem.ShmemError as error:
        stay(over, f"after {n} kernels {type(error).__name__}: {error}")


def waits(over):
    """Wait for a kernel that waits until the end."""
    shmem.init(heap_size="16M")
    flag, stream = shmem.zeros(1, "uint64"), shmem.stream()
    shmem.signal_op(flag, 0, shmem.SIGNAL_SET, 0)
    wait[1, 1, stream](flag)
    say("ready")
    try:
        while not over.exists():
            time.sleep(0.05)
            shmem.quiet()
        shmem.signal_op(flag, 1, shmem.SIGNAL_SET, 0)
        stream.synchronize()
        say("the kernel ended as it should")
        shmem.finalize()
    except shmem.ShmemError as error:
        stay(over, f"{type(error).__name__}: {error}")


def stay(over, text):
    """Say what was met, and keep the GPU until the end."""
    say(text)
    while not over.exists():
        time.sleep(0.05)


def begins():
    """A process that comes later."""
    try:
        shmem.init(heap_size="16M")
        x = shmem.zeros(1)
        store[1, 1](x, 0)
        assert x.numpy()[0] == 1
        shmem.finalize()
        say("all right")
    except shmem.ShmemError as error:
        say(f"{type(error).__name__}: {error}")


class Process:
    """One of this script's roles, in a process of its own."""

    def __init__(self, folder, *words):
        self.name, self.file = " ".join(words), folder / "-".join(words)
        over = [str(folder / "over")] if words[0] in ("goes_on", "waits") else []
        with self.file.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gpushmem", "run", "--backend", "nvshmem", "-n", "1",
                 __file__, *words, *over],
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def said(self):
        return self.file.read_text(errors="replace")

    def until(self, met):
        """Wait until that is met, or the process has ended, or for long."""
        late = time.monotonic() + LONG
        while self.process.poll() is None and not met(self.said()) and time.monotonic() < late:
            time.sleep(0.05)
        return self

    def end(self):
        """Wait for the end; return what was said, which is printed, too."""
        self.until(lambda said: False)
        code = self.process.poll()
        if code is None:
            self.process.kill()
        lines = "".join(f"  {line}\n" for line in self.said().splitlines())
        print(f"--- {self.name}: exit status {code}\n{lines}", end="", flush=True)
        return self.said()


def main(folder):
    beside = [Process(folder, name).until(lambda s: "ready" in s) for name in ("goes_on", "waits")]
    failing = [Process(folder, "fails", kind) for kind in (KINDS[:1] if MPS else KINDS)]
    right = ["a kernel of this PE failed" in process.end() for process in failing]
    if MPS:
        for process in beside:
            process.until(lambda said: "Error" in said)
    third = Process(folder, "begins", "beside").end()
    (folder / "over").touch()
    met = [process.end() for process in beside]
    fourth = Process(folder, "begins", "later").end()
    if MPS:
        right += ["with MPS, it may be one of another process" in said for said in met]
        right.append("MPS takes no new process" in third)
    else:
        right += ["all right" in met[0], "as it should" in met[1], "all right" in third]
    right.append("all right" in fourth)
    print("as expected:", right, flush=True)
    return all(right)


ROLES = {role.__name__: role for role in (fails, goes_on, waits, begins)}

if len(sys.argv) == 1:
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(not main(Path(folder)))
role = ROLES[sys.argv[1]]
role(*({"fails": sys.argv[2:], "begins": []}.get(sys.argv[1], [Path(sys.argv[-1])])))
