"""Programs on a terminal of their own."""

import os
import pty
import re
import select
import subprocess
import sys
from contextlib import contextmanager

from tests.conftest import PLAIN, ROOT


@contextmanager
def on_a_terminal(*args, raw=False, stdout=None, **env):
    """Python with these arguments; yields the process, and what it has printed so far, a function.

    That is without the terminal's control sequences, unless it is to be `raw`. What goes to
    `stdout` is not in it, if that is given.
    """
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, *map(str, args)], stdin=slave, stdout=stdout or slave, stderr=slave,
        env={**PLAIN, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "150",
             "GPUSHMEM_PROGRESS": "1", **env},
    )  # fmt: skip
    os.close(slave)
    data = b""

    def printed():
        nonlocal data
        while select.select([master], [], [], 0)[0]:
            try:
                data += os.read(master, 1 << 16)
            except OSError:  # it has ended
                break
        text = data.decode(errors="ignore")
        return text if raw else re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)

    try:
        yield process, printed
    finally:
        process.kill()
        process.wait()
        os.close(master)
