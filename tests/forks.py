"""A process that has loaded what PEs need, and forks one for each command, which starts at once.

Usage: python -m tests.forks SOCKET. A message is a JSON list of arguments and folder, with three
descriptors: standard input, output and error. The answers are the pid, then the exit code.
"""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile

MOST = 1 << 16  # bytes of a message


class Forks:
    """Runs `gpushmem` commands in copies of a process."""

    def __init__(self, env, folder):
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.forks", str(theirs.fileno())], env=env,
                cwd=folder, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
            )  # fmt: skip
        self.socket.recv(MOST)  # it is ready

    def run(self, args, cwd, timeout):
        """Run a command; its exit code, None if it took too long, and its output and errors."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            with open(os.devnull) as null:
                order = json.dumps([[str(arg) for arg in args], str(cwd)]).encode()
                socket.send_fds(self.socket, [order], [f.fileno() for f in (null, out, err)])
            pid = int(self.socket.recv(MOST))
            self.socket.settimeout(timeout)
            code = None
            try:
                code = int(self.socket.recv(MOST))
            except TimeoutError:
                pass
            finally:  # also at pytest's own limit: the next command gets its own answers
                self.socket.settimeout(None)
                if code is None:
                    os.killpg(pid, signal.SIGKILL)
                    self.socket.recv(MOST)
            return code, *(_text(file) for file in (out, err))

    def close(self):
        self.socket.close()
        self.process.wait()


def _text(file):
    file.seek(0)
    return file.read().decode(errors="surrogateescape")


def serve(requests):
    """Fork for each message; returns in the copies, ready to run the command, and at the end."""
    requests.send(b"ready")
    while True:
        message, fds, *_ = socket.recv_fds(requests, MOST, 3)
        if not message:
            return False
        args, cwd = json.loads(message)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            requests.close()
            for number, fd in enumerate(fds):
                os.dup2(fd, number)
                os.close(fd)
            os.chdir(cwd)
            sys.path[0], sys.argv[1:] = cwd, args
            return True
        for fd in fds:
            os.close(fd)
        requests.send(str(pid).encode())
        requests.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


if __name__ == "__main__":
    from gpushmem.start.launch import local

    local.preload("cpu")
    if serve(socket.socket(fileno=int(sys.argv[1]))):
        runpy.run_module("gpushmem", run_name="__main__", alter_sys=True)
