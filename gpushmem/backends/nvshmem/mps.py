"""NVSHMEM's questions to the daemon of MPS, for one job of a machine at a time.

Where PEs share a GPU, NVSHMEM of a machine's first PE runs `nvidia-cuda-mps-control` twice while it
starts. The daemon may not answer if other jobs ask, too: NVSHMEM then takes it that there is no
MPS, or, the second time, ends the process without a word (`nvshmemi_determine_mpg_support_level`).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["turn"]

LONGEST = 30.0  # seconds to wait for other jobs: one of them may hang
DEFAULT = "/tmp/nvidia-mps"  # noqa: S108  (CUDA's own)


@contextmanager
def turn() -> Iterator[None]:
    """Within, no other job of gpushmem on this machine and its MPS is in such a block.

    Does nothing where there is no MPS, and goes on after LONGEST seconds all the same.
    """
    try:
        folder = os.open(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or DEFAULT, os.O_RDONLY)
    except OSError:
        yield
        return
    late = time.monotonic() + LONGEST
    try:
        while not _locked(folder) and time.monotonic() < late:
            time.sleep(0.02)
        yield
    finally:
        os.close(folder)


def _locked(folder: int) -> bool:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
