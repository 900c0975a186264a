"""Loads nvshmem4py's device functions, without PyTorch.

nvshmem4py imports PyTorch where it is installed, for the host's tensors. This backend calls nothing
of that, and PyTorch would take longer to load than all else.
"""

import sys

absent = "torch" not in sys.modules
if absent:
    sys.modules["torch"] = None  # type: ignore[assignment]  # to import it is an error now
try:
    import nvshmem.bindings.device.numba  # noqa: F401
finally:
    if absent:
        del sys.modules["torch"]
