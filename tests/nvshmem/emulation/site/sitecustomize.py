"""Imported by every Python that finds this folder on its path: see `emulation.environment`."""

import os
import sys
from pathlib import Path

if os.environ.get("EMULATION_LIBCUDA"):
    root = str(Path(__file__).parents[4])
    if root not in sys.path:
        sys.path.append(root)
    from tests.nvshmem.emulation import install

    install()
