"""Run functions in PEs that use the emulation, each forked from one process that imported it all.

    results = pes.run(2, function, argument, env={"EMULATION_DEVICES": "1"})

`function` is one of a module's, found there by its name. In it `init()` makes the PE one of its
job. Each call is a new job. A process forked after CUDA was initialised could not use it: neither
the tests' process nor the one that forks does that.
"""

import atexit
import faulthandler
import importlib
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback

import pytest

from tests.nvshmem.emulation import ROOT, environment

LIMIT = 30.0
_server: list[subprocess.Popen] = []
_here: dict = {}  # in a PE: which of how many it is, and the job's unique id


class PesFailed(AssertionError):
    """With all that the PEs printed."""


def run(n: int, function, *args, env=None, limit: float = LIMIT) -> list:
    """Call `function(*args)` in `n` PEs; return their results, or raise PesFailed."""
    request = (n, function.__module__, function.__qualname__, args, dict(env or {}), limit)
    server = _start()
    pickle.dump(request, server.stdin)
    server.stdin.flush()
    results, printed = pickle.load(server.stdout)
    if results is None:
        raise PesFailed(printed)
    return results


def in_pes(*sizes, **options):
    """Make a PE's program a test: one of `run`, in jobs of so many PEs, with these options."""

    def decorate(program):
        def alone():
            run(sizes[0], program, **options)

        def test(n):
            run(n, program, **options)

        test = pytest.mark.parametrize("n", sizes)(test) if len(sizes) > 1 else alone
        for name in ("__name__", "__module__", "__doc__"):
            setattr(test, name, getattr(program, name))
        test.program, program.__qualname__ = program, f"{test.__name__}.program"
        return test

    return decorate


def _start():
    if not _server or _server[0].poll() is not None:
        command = [sys.executable, "-m", __name__]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        _server[:] = [subprocess.Popen(command, cwd=ROOT, env=environment(), **pipes)]
        atexit.register(_end, _server[0])
    return _server[0]


def _end(server):
    server.stdin.close()
    server.wait(10)
    server.stdout.close()


def init():
    """Initialise NVSHMEM in this PE, on the device of its number; return device and stream."""
    import nvshmem.core
    from cuda.core import Device

    me, n = _here["me"], _here["n"]
    device = Device(me % len(Device.get_all_devices()))
    device.set_current()
    how = {"uid": _here["uid"], "rank": me, "nranks": n, "initializer_method": "uid"}
    nvshmem.core.init(device=device, **how)
    return device, device.create_stream()


def uid():
    """Return the job's unique id, and this PE's number and their count."""
    return _here["uid"], _here["me"], _here["n"]


# ---- in the process that forks ----


def _serve():
    # Pickles travel by what was stdout; what anything prints goes to stderr.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    import nvshmem.core

    this = sys.modules["tests.nvshmem.emulation.pes"] = sys.modules["__main__"]
    del this
    while sys.stdin.buffer.peek(1):
        request = pickle.load(sys.stdin.buffer)
        importlib.import_module(request[1])  # once for all PEs
        pickle.dump(_job(nvshmem.core.get_unique_id(), *request), replies)
        replies.flush()


def _job(unique_id, n, module, name, args, env, limit):
    outputs = [os.memfd_create("output") for _ in range(n)]
    answers = [os.memfd_create("answer") for _ in range(n)]
    sys.stdout.flush()
    pids = []
    for me in range(n):
        pids.append(os.fork())
        if not pids[-1]:
            _here.update(me=me, n=n, uid=unique_id)
            _pe(module, name, args, env, limit, outputs[me], answers[me])
    codes = _wait(pids, limit)
    printed = "".join(
        f"--- PE {me}, exit {codes[me]}\n{_printed(outputs[me])}\n" for me in range(n)
    )
    results = (
        None if any(codes.values()) else [pickle.loads(_content(answer)) for answer in answers]
    )
    for descriptor in outputs + answers:
        os.close(descriptor)
    return results, printed


def _printed(descriptor):
    lines = _content(descriptor).decode(errors="replace").splitlines()
    return "\n".join(line for line in lines if not line.startswith("Extension modules"))


def _content(descriptor):
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _pe(module, name, args, env, limit, output, answer):
    code = 1
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        faulthandler.enable(file=2)
        faulthandler.dump_traceback_later(limit, exit=True, file=2)
        os.environ["EMULATION_TIMEOUT"] = str(limit / 2)
        os.environ.update({key: str(value) for key, value in env.items()})
        function = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
        result = function(*args)
        _check_waits()
        os.write(answer, pickle.dumps(result))
        code = 0
    except BaseException:
        traceback.print_exc()
        from tests.nvshmem.emulation import driver

        print("waited for a held stream:", driver.waits())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # What `atexit` would do is the parent's; a job's file is unlinked once all have mapped it.
        os._exit(code)


def _check_waits():
    """Fail if a call would have waited for ever, and its error was passed over."""
    from tests.nvshmem.emulation import driver

    found = driver.waits()
    assert not found, f"on a GPU this PE would hang: {found}"


def _wait(pids, limit):
    """Return the exit codes. Once one has failed, the others get two seconds."""
    codes, deadline = {}, time.monotonic() + limit + 5
    while len(codes) < len(pids):
        for me, pid in enumerate(pids):
            if me not in codes and (done := os.waitpid(pid, os.WNOHANG))[0]:
                codes[me] = os.waitstatus_to_exitcode(done[1])
                if codes[me]:
                    deadline = min(deadline, time.monotonic() + 2)
        if time.monotonic() > deadline:
            for me, pid in enumerate(pids):
                if me not in codes:
                    os.kill(pid, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(0.002)
    return codes


if __name__ == "__main__":
    _serve()
