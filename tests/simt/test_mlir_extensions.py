"""Runs `mlir_extensions` in a process of its own: what it registers stays registered there."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba_cuda_mlir")


def test_extensions_of_numba_cuda_mlir():
    file = Path(__file__).with_name("mlir_extensions.py")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
