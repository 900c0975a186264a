"""A storm of kills: jobs one of whose processes is killed at a random moment.

Each ends in under a second, says who was killed, and leaves nothing: memory and sockets of a job
have no names, and are gone with its processes. Jobs are forked from this process, which has
imported and compiled everything; several run at once. What a job is, and when who is killed,
follows from the seed and the job's number.

Usage: python -m tests.launch.storm SEED COUNT FOLDER; the last line that it prints is JSON.
"""

import json
import os
import random
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import gpushmem as shmem
from gpushmem.start.launch import local
from gpushmem.start.launch.program import Program
from tests.pes import compile_first

AT_ONCE = 3
LIMIT = 1.0  # seconds from the kill to the end of the last process
TURN = 0.03  # seconds that a turn of the loop that looks counts at most: where it comes to its turn
# late, the machine stands still or has much else to do, and the job waits as well
FOR_EVER = 30.0


@shmem.jit
def meet_often(x):
    for _ in range(1000):
        shmem.barrier_all()


@shmem.jit
def wait_for_one(x):
    shmem.wait_until(x, shmem.CMP_EQ, 1)


@shmem.jit
def compute(x):
    i = 0
    while i >= 0:
        i = (i + 1) % 1000
        x[0] += i


def in_waits(x):
    """PE 0 is at work, so nobody can say that no PE goes on."""
    if shmem.my_pe() == 0:
        time.sleep(FOR_EVER)
    wait_for_one[1, 1](x)
    shmem.synchronize()


def in_barriers(x):
    while True:
        meet_often[1, 1](x)
        shmem.barrier_all()


def computing(x):
    if shmem.my_pe() % 2:
        while True:
            sum(range(1000))
    compute[1, 1](x)
    shmem.synchronize()


def ending(x):
    time.sleep(0.05 * random.Random(shmem.my_pe()).random())
    shmem.finalize()


# What a job's PEs do, and the seconds from its start within which one is killed.
KINDS = {in_waits: 0.8, in_barriers: 0.8, computing: 0.8, ending: 0.4, None: 2.5}
NEW = """
import time
from gpushmem.start import bootstrap
peers = bootstrap.find_peers()
peers.broadcast(b"x" if peers.my_pe == 0 else None)
time.sleep(30)
"""


def body_of(kind):
    def body():
        shmem.init(heap_size="1M")
        x = shmem.zeros(1, "int64")
        shmem.barrier_all()
        kind(x)

    return body


@dataclass
class Job:
    """A job, and what became of it."""

    number: int
    kind: object
    n: int
    victim: int  # -1: the launcher
    signal: int
    delay: float
    pid: int = 0  # of the launcher, whose session all processes are in
    output: int = -1
    hit: str = ""  # who was killed in the end
    seconds: float | None = None  # since the kill
    status: int | None = None

    @staticmethod
    def of(seed, number):
        """The job of this number; new processes take long, and are few."""
        rnd = random.Random(f"{seed}/{number}")
        kind = None if number % 10 == 9 else rnd.choice([k for k in KINDS if k])
        n = rnd.choice((2, 3, 4)) if kind else 2
        longest = rnd.choice((0.08, KINDS[kind]))  # at the start, or at any time
        number_of = rnd.choice((signal.SIGKILL, signal.SIGTERM))
        return Job(number, kind, n, rnd.randrange(-1, n), number_of, rnd.uniform(0, longest))

    def __str__(self):
        what = self.kind.__name__ if self.kind else "new processes"
        name = signal.Signals(self.signal).name
        return (
            f"job {self.number}: {self.n} PEs, {what}; {name} to {self.hit} at {self.delay:.3f} s"
        )

    def start(self, folder):
        """Fork a launcher; its group ends with it."""
        self.output = os.memfd_create("output")
        self.started = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                for fd in (1, 2):
                    os.dup2(self.output, fd)
                os.environ |= {"TMPDIR": str(folder), "XDG_RUNTIME_DIR": str(folder)}
                script = ("script", (str(folder.parent / "new.py"),))
                what = body_of(self.kind) if self.kind else Program(*script)
                outcome = local.launch(self.n, what, threads_per_pe=1)
                os.write(2, f"{outcome.summary()}\n".encode())
                os._exit(outcome.code)
            finally:
                os._exit(99)

    def strike(self):
        """Kill the victim, or the launcher if there is no such PE."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        there = 0 <= self.victim < len(children)
        pid = int(children[self.victim]) if there else self.pid
        self.hit = f"a PE of {self.n}" if there else "the launcher"
        self.seconds = 0.0
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, self.signal)

    def over(self):
        """Whether all its processes have ended."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None and not in_session(self.pid)

    def said(self):
        """What it has printed."""
        return os.pread(self.output, os.fstat(self.output).st_size, 0).decode(errors="replace")

    def wrong(self):
        """What is wrong with how it ended; "" if nothing is."""
        name, code = signal.Signals(self.signal).name, 128 + self.signal
        if self.hit == "the launcher":
            # 0: it ended before. -signal: by SIGKILL, or before it had PEs to see to.
            good = self.status in (-self.signal, code, 0)
        else:
            named = f"of {self.n} was killed by {name}" in self.said()
            good = (self.status == code and named) or (self.kind is ending and self.status == 0)
        return "" if good else f"exit code {self.status}"


def in_session(number):
    """Processes of a session, zombies excepted."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
                if int(fields[3]) == number and fields[0] not in "ZX":
                    found.append(int(process.name))
    return found


def ours_in_shm():
    return {name for name in os.listdir("/dev/shm") if "gpushmem" in name}


def end(job):
    """Whatever became of it, nothing of it is to outlive the test."""
    for pid in [*in_session(job.pid), *([job.pid] if job.status is None else [])]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if job.status is None:
        os.waitpid(job.pid, 0)


def storm(seed, count, tmp_path):
    """Run jobs and kill; return what went wrong, and the seconds that each took to end."""
    folder = tmp_path / "files"
    folder.mkdir()
    (tmp_path / "new.py").write_text(NEW)
    waiting = [Job.of(seed, k) for k in range(count)]
    running, wrong, took = [], [], []
    before, now = ours_in_shm(), time.monotonic()
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                running.append(waiting.pop(0))
                running[-1].start(folder)
            last, now = now, time.monotonic()
            for job in list(running):
                if job.seconds is None:
                    if now - job.started >= job.delay:
                        job.strike()
                    continue
                job.seconds += min(TURN, now - last)
                over = job.over()
                if not over and job.seconds < LIMIT:
                    continue
                running.remove(job)
                took.append(job.seconds)
                late = "" if over else f"after {LIMIT:g} s there are {in_session(job.pid)}"
                end(job)
                if late or job.wrong():
                    wrong.append(f"{job}: {late or job.wrong()}\n{job.said()}")
                os.close(job.output)
            time.sleep(0.005)
    finally:
        for job in running:
            end(job)
    assert list(folder.iterdir()) == []
    assert ours_in_shm() == before
    return wrong, took


def main(seed, count, folder):
    local.preload("cpu")
    for kernel in (meet_often, wait_for_one, compute):
        compile_first(kernel, np.zeros(1, np.int64))
    wrong, took = storm(seed, int(count), Path(folder))
    print(json.dumps({"wrong": wrong, "slowest": max(took)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
