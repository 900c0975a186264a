"""Hold a launch's arguments against what the cubin says of its parameters.

CUDA cannot: it is given addresses without a count or sizes, and reads what lies there.
"""

import ctypes
import functools
import os

from tests.nvshmem.emulation.errors import EmulationError


def patch_core(core) -> None:
    """Make `cuda.core.launch` raise EmulationError for arguments that do not fit the kernel."""
    if os.environ.get("EMULATION_LAUNCHES") == "0":
        return
    launch = core.launch

    @functools.wraps(launch)
    def checked(stream, config, kernel, *args):
        check([info.size for info in kernel.arguments_info], args)
        return launch(stream, config, kernel, *args)

    core.launch = checked


def check(sizes, args) -> None:
    """Raise EmulationError unless `args` are as many as `sizes`, and each of its size."""
    if len(args) != len(sizes):
        raise EmulationError(f"{len(args)} arguments for a kernel of {len(sizes)} parameters")
    for i, (size, arg) in enumerate(zip(sizes, args, strict=True)):
        if size_of(arg) not in (size, None):
            raise EmulationError(f"argument {i}, {arg!r}, has {size_of(arg)} bytes, not {size}")


def size_of(arg) -> int | None:
    """Return how many bytes cuda.core makes of an argument; None: of an int, what is asked for.

    It makes 8 of an int, of which a kernel for a narrower one reads the first.
    """
    if isinstance(arg, bool):
        return 1
    if isinstance(arg, int):
        return None
    if isinstance(arg, float):
        return 8
    if isinstance(arg, complex):
        return 16
    if isinstance(arg, ctypes._SimpleCData):
        return ctypes.sizeof(arg)
    return getattr(arg, "itemsize", 8)  # NumPy's scalars; a Buffer is a pointer
