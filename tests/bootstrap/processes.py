"""Processes that are to find each other, forked, with the environment a launcher would give."""

import atexit
import contextlib
import os
import pickle
import signal
import socket
import sys
import time
import traceback

import pytest

from gpushmem.job import job as jobs
from gpushmem.job import ranks
from gpushmem.start import bootstrap

FOREIGN = ("GPUSHMEM_", "OMPI_", "PMI_", "PMIX_", "MPI_LOCAL", "SLURM_", "TORCHELASTIC_")
FOREIGN += ("RANK", "WORLD_SIZE", "MASTER_", "PALS_")
JOB = str(os.getpid())  # a number of its own for each run of the tests
OF_TESTS = {"GPUSHMEM_BACKEND", "GPUSHMEM_CACHE_DIR", "GPUSHMEM_TIER"}  # what these set themselves


def clean(environment=os.environ):
    """The environment without what a launcher, or a user, might have set."""
    return {
        name: value
        for name, value in environment.items()
        if name in OF_TESTS or not name.startswith(FOREIGN)
    }


class Process:
    """A forked process that runs `body()` with the environment `env`."""

    def __init__(self, body, **env):
        self._result, self._output = os.memfd_create("result"), os.memfd_create("output")
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                code = self._run(body, env)
            finally:
                os._exit(code)

    def _run(self, body, env):
        for fd in (1, 2):
            os.dup2(self._output, fd)
        sys.stdout = open(1, "w", buffering=1, closefd=False)
        sys.stderr = open(2, "w", buffering=1, closefd=False)
        kept = clean()
        os.environ.clear()
        os.environ.update({**kept, "GPUSHMEM_BOOTSTRAP_TIMEOUT": "20", **env})
        jobs.adopt(None)
        ranks.adopt(None)
        atexit._clear()
        try:
            value = body()
        except BaseException:
            traceback.print_exc()
            return 1
        finally:
            atexit._run_exitfuncs()
        with open(self._result, "wb", closefd=False) as file:
            pickle.dump(value, file)
        return 0

    def wait(self, timeout=30):
        """Its exit code and output; it is killed, and the test fails, if it takes too long."""
        until = time.monotonic() + timeout
        while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > until:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                pytest.fail(f"a process still ran after {timeout} s:\n{self.output}")
            time.sleep(0.005)
        self.value = self._read(self._result)
        self.value = pickle.loads(self.value) if self.value else None
        text = self.output
        os.close(self._result)
        os.close(self._output)
        return text

    @property
    def output(self):
        """What it has printed so far."""
        return self._read(self._output).decode(errors="replace")

    def _read(self, fd):
        return os.pread(fd, os.fstat(fd).st_size, 0)


def joined(name=None):
    """Find the others; then PE 0 writes to every segment, and all read theirs: it is one memory."""

    def body():
        job = bootstrap.join(name)
        for pe, fd in enumerate(job.heap_fds if job.my_pe == 0 else ()):
            os.pwrite(fd, b"%06d" % (1000 * pe), 0)
        mine = job.heap_fds[job.my_pe]
        until = time.monotonic() + 20
        while os.fstat(mine).st_size < 6 and time.monotonic() < until:
            time.sleep(0.002)
        assert os.pread(mine, 6, 0) == b"%06d" % (1000 * job.my_pe)
        return job.my_pe, job.n_pes, job.bootstrap

    return body


def run_all(n, body, env_of, timeout=40):
    """Run `body` in n processes, PE k with `env_of(k)`; return their values, or fail."""
    processes = [Process(body, **env_of(pe)) for pe in range(n)]
    texts = [process.wait(timeout) for process in processes]
    for pe, process in enumerate(processes):
        if process.value is None:
            pytest.fail(f"PE {pe} failed:\n{texts[pe]}", pytrace=False)
    return [process.value for process in processes]


def free_port():
    """A port nobody listens at."""
    with contextlib.closing(socket.socket()) as sock:
        sock.bind(("localhost", 0))
        return sock.getsockname()[1]


def tcp(n, port, key="a secret"):
    """The environment of PE k of a job of tcp://, as a function of k."""
    return lambda pe: {
        "GPUSHMEM_BOOTSTRAP": f"tcp://localhost:{port}", "GPUSHMEM_PE": str(pe),
        "GPUSHMEM_N_PES": str(n), "GPUSHMEM_JOB_KEY": key,
    }  # fmt: skip


def step(n, job=JOB, **more):
    """The environment of PE k of a step of Slurm, set by hand: there is no srun here."""
    return lambda pe: {
        "SLURM_JOB_ID": job, "SLURM_STEP_ID": "0", "SLURM_PROCID": str(pe),
        "SLURM_NTASKS": str(n), "SLURM_STEP_NUM_TASKS": str(n), **more,
    }  # fmt: skip


def short(env_of):
    """The same with little patience."""
    return lambda pe: env_of(pe) | {"GPUSHMEM_BOOTSTRAP_TIMEOUT": "1.5"}
