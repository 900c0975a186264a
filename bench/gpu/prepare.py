"""Compile the kernels of both sides, several at a time, so that measuring only loads them.

python bench/gpu/prepare.py FOLDER [PROCESSES]

nvshmem4py compiles NVSHMEM's headers anew for every kernel: some 5 s each. Its machine code is kept
in FOLDER/theirs; ours goes where it always goes, which is FOLDER/ours (GPUSHMEM_CACHE_DIR).
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

SIDES = ("ours", "theirs")


def prepare(folder, processes=None):
    """Compile all that is not there; {side: {name: seconds}}. Raises if a kernel cannot be."""
    folder = Path(folder).resolve()
    for side in SIDES:
        (folder / side).mkdir(parents=True, exist_ok=True)
    env = os.environ | {"GPUSHMEM_CACHE_DIR": str(folder / "ours")}
    processes = processes or os.cpu_count()
    children = [
        subprocess.Popen(
            [sys.executable, __file__, str(folder), str(processes), str(k)],
            env=env, stdout=subprocess.PIPE, text=True,
        )
        for k in range(processes)
    ]  # fmt: skip
    took = {side: {} for side in SIDES}
    outputs = [child.communicate()[0] for child in children]
    for line in "".join(outputs).splitlines():
        side, name, seconds = json.loads(line)
        took[side][name] = seconds
    if any(child.returncode for child in children):
        raise RuntimeError("a kernel does not compile: see above")
    return took


def path_of(folder, name):
    return Path(folder) / "theirs" / name.replace(" ", "-")


def jobs():
    """What is compiled: neighbours, which take as long, by different processes."""
    from pairs import PAIRS

    return [(side, name) for side in SIDES for name in PAIRS]


def compile_ours(folder, name):
    from cuda.core import Device
    from pairs import PAIRS, ours

    from gpushmem.backends.nvshmem.aot import artifact

    major, minor = Device(0).compute_capability
    artifact(ours(name), PAIRS[name].argtypes, {}, f"sm_{major}{minor}" + "a" * (major >= 9))


def compile_theirs(folder, name):
    path = path_of(folder, name)
    if path.exists():
        return
    from pairs import PAIRS, theirs

    entry, code = numba_cubin(theirs(name), PAIRS[name].argtypes)
    about = {"entry": entry, "cooperative": False, "workspace": False}
    about["shims"] = bool(PAIRS[name].calls)
    made = path.with_suffix(f".{os.getpid()}")
    made.write_bytes(json.dumps(about).encode() + b"\n" + bytes(code))
    made.replace(path)


def numba_cubin(py_func, argtypes):
    """What `cuda.jit(lto=True)` compiles and links, by numba-cuda itself; the entry, and the code.

    Not the dispatcher's `compile`, which loads it, too, and for that needs NVSHMEM to be up.
    """
    from numba.cuda.dispatcher import _Kernel

    kernel = _Kernel(py_func, argtypes, lto=True)
    return kernel.entry_name, bytes(kernel._codelibrary.get_cubin().code)


def code_of(folder, name):
    """Machine code of nvshmem4py's side, and what `Loaded` wants to know of it."""
    about, _, code = path_of(folder, name).read_bytes().partition(b"\n")
    return code, json.loads(about)


def main():
    folder, processes, mine = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    from cuda.core import Device

    Device(0).set_current()
    for side, name in jobs()[mine::processes]:
        began = time.perf_counter()
        (compile_ours if side == "ours" else compile_theirs)(folder, name)
        print(json.dumps((side, name, time.perf_counter() - began)), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 3:
        main()
    else:
        print(json.dumps(prepare(*sys.argv[1:2], *map(int, sys.argv[2:])), indent=1))
