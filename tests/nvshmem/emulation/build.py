"""Compile the stub of the CUDA driver, once for each state of its source, and load it.

It is found because of its name: whoever asks for `libcuda.so.1` after it is loaded gets it, as the
loader knows libraries by the name written in them.
"""

import ctypes
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parent / "libcuda"
LIBRARY = "EMULATION_LIBCUDA"  # the compiled stub, for child processes


def missing() -> str | None:
    """Return what the emulation needs and this environment lacks, or None."""
    for package in ("cuda.core", "nvshmem"):
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            found = None
        if found is None:
            return f"{package} is not installed"
    if shutil.which("gcc") is None:
        return "there is no gcc"
    return None if _headers() else "there is no cuda.h, of nvidia-cuda-runtime"


def _headers() -> str | None:
    from cuda.pathfinder import find_nvidia_header_directory

    return find_nvidia_header_directory("cudart")


def compiled() -> Path:
    """Return the path of the stub, compiled if this source was not before."""
    headers = _headers()
    if missing():
        raise RuntimeError(f"no emulation: {missing()}")
    source = sorted(SOURCE.iterdir())
    digest = hashlib.sha256(headers.encode() + b"".join(file.read_bytes() for file in source))
    folder = Path(tempfile.gettempdir(), f"emulated-cuda-{os.getuid()}", digest.hexdigest()[:16])
    library = folder / "libcuda.so.1"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _compile([file for file in source if file.suffix == ".c"], headers, library)
    return library


def _compile(files, headers, library):
    # Renamed when it is whole: another process may be waiting for the same.
    made = library.with_name(f"{os.getpid()}.so")
    command = ["gcc", "-O1", "-g", "-Wall", "-shared", "-fPIC", "-fvisibility=hidden"]
    command += [f"-I{headers}", "-Wl,-soname,libcuda.so.1", *map(str, files)]
    command += ["-o", str(made), "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the stub of the CUDA driver does not compile:\n{done.stderr}")
    made.rename(library)


@cache
def load() -> ctypes.CDLL:
    """Load the stub, as this process's `libcuda.so.1`."""
    path = os.environ.get(LIBRARY) or str(compiled())
    for line in Path("/proc/self/maps").read_text().splitlines():
        loaded = line.rpartition(" ")[2]
        if "libcuda.so" in loaded and loaded != path:
            raise RuntimeError(f"{loaded} is loaded: call install() before cuda is imported")
    return ctypes.CDLL(path)
