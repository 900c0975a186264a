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
import traceback
from pathlib import Path
from typing import NamedTuple

SIDES = ("ours", "theirs")
# What `Loaded` wants to know of a kernel, for one that has nothing of ours in it.
PLAIN = {
    "compiler": "numba-cuda", "cooperative": False, "workspace": False, "sums": False,
    "groups": False, "trace": 0,
}  # fmt: skip


class Prepared(NamedTuple):
    """How long each kernel took, {side: {name: seconds}}; and what cannot be compiled."""

    took: dict
    missing: list


def prepare(folder, processes=None):
    """Compile all that is not there; what fails is told, and the rest goes on."""
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
    found = Prepared({side: {} for side in SIDES}, [])
    outputs = [child.communicate()[0] for child in children]
    for line in "".join(outputs).splitlines():
        side, name, seconds = json.loads(line)
        if seconds is None:
            found.missing.append(f"{side}: {name}")
        else:
            found.took[side][name] = seconds
    if any(child.returncode for child in children):
        raise RuntimeError("a process that compiles kernels ended: see above")
    return found


def path_of(folder, name):
    return Path(folder) / "theirs" / name.replace(" ", "-")


def jobs():
    """What is compiled: neighbours, which take as long, by different processes."""
    from pairs import PAIRS

    return [(side, name) for side in SIDES for name in PAIRS]


def compile_ours(folder, name):
    from cuda.core import Device
    from pairs import PAIRS, ours

    from gpushmem.backends.nvshmem.compile.aot import artifact

    major, minor = Device(0).compute_capability
    artifact(ours(name), PAIRS[name].argtypes, {}, f"sm_{major}{minor}" + "a" * (major >= 9))


def compile_theirs(folder, name):
    path = path_of(folder, name)
    if path.exists():
        return
    from pairs import PAIRS, theirs

    entry, code = numba_cubin(theirs(name), PAIRS[name].argtypes)
    about = {"entry": entry, "shims": bool(PAIRS[name].calls)}
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
    return code, PLAIN | json.loads(about)


def main():
    folder, processes, mine = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    from cuda.core import Device

    Device(0).set_current()
    for side, name in jobs()[mine::processes]:
        began = time.perf_counter()
        try:
            (compile_ours if side == "ours" else compile_theirs)(folder, name)
            took = time.perf_counter() - began
        except Exception:
            traceback.print_exc()
            took = None
        print(json.dumps((side, name, took)), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 3:
        main()
    else:
        found = prepare(*sys.argv[1:2], *map(int, sys.argv[2:]))
        print(json.dumps(found._asdict(), indent=1))
        sys.exit(bool(found.missing))
