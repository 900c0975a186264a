"""What compiling costs, beside nvshmem4py's way from the same kernel to a cubin. No GPU is needed.

python bench/gpu compile; each measurement in a process of its own, in turns.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

NAME, CC = "put_block", (9, 0)
CASES = {
    "ours, nothing on disk": ("ours", "empty"),
    "ours, NVSHMEM's functions on disk": ("ours", "shims"),
    "ours, the kernel on disk": ("ours", "full"),
    "theirs": ("theirs", "empty"),
}
IMPORTS = {
    "import gpushmem": "import gpushmem",
    "import of the backend": "import gpushmem.backends.nvshmem.backend",
    "import of nvshmem4py, for kernels": "import numba.cuda, nvshmem.core.device.numba",
}


def ours():
    from pairs import PAIRS
    from pairs import ours as function

    from gpushmem.backends.nvshmem.compile import aot

    began = time.perf_counter()
    kept = aot.artifact(function(NAME), PAIRS[NAME].argtypes, {}, "sm_90")
    return time.perf_counter() - began, kept.code


def theirs():
    from numba.cuda import codegen, dispatcher
    from pairs import PAIRS
    from pairs import theirs as function
    from prepare import numba_cubin

    class Device:
        compute_capability = CC

    # What asks the driver otherwise.
    dispatcher.get_current_device = Device
    codegen.CUDACodeLibrary._ensure_cc = lambda library, cc: cc or CC
    py_func = function(NAME)
    began = time.perf_counter()
    _, code = numba_cubin(py_func, PAIRS[NAME].argtypes)
    return time.perf_counter() - began, code


def child(side):
    began = time.perf_counter()
    seconds, code = {"ours": ours, "theirs": theirs}[side]()
    whole = time.perf_counter() - began
    print(json.dumps({"compile": seconds, "with imports": whole, "bytes": len(code)}))


def run(side, cache):
    env = os.environ | {"GPUSHMEM_CACHE_DIR": str(cache)}
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, __file__, side], check=True, stdout=subprocess.PIPE, text=True, env=env
    )
    said = json.loads(done.stdout.splitlines()[-1])
    return said | {"process": time.perf_counter() - began}


def keep_shims_only(folder):
    """Delete the kernel, which is smaller than the object it was linked with."""
    files = sorted(Path(folder).iterdir(), key=lambda f: f.stat().st_size)
    for file in files[:-1]:
        file.unlink()


def case(name, full):
    side, state = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        if state == "shims":
            subprocess.run(["cp", "-r", f"{full}/.", folder], check=True)
            keep_shims_only(folder)
        return run(side, full if state == "full" else folder)


def importing(statement):
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - began


def row(what, ours, theirs, **more):
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    return {
        "what": what, "ours": median(ours), "theirs": median(theirs), "ratio": median(ratios),
        "from": ratios[0], "to": ratios[-1], **more,
    }  # fmt: skip


def measure(turns):
    """A line for each of our cases beside theirs, and for importing."""
    from gpushmem.progress import progress

    with tempfile.TemporaryDirectory() as full:
        run("ours", full)
        taken = {name: [] for name in CASES}
        imports = {name: [] for name in IMPORTS}
        with progress("turns", turns) as bar:
            for k in bar.each(range(turns)):
                for name in list(CASES)[:: 1 - 2 * (k % 2)]:
                    taken[name].append(case(name, full))
                for name, statement in IMPORTS.items():
                    imports[name].append(importing(statement))
    lines = []
    for name in list(CASES)[:-1]:
        for part in ("compile", "process"):
            pair = [[run[part] for run in taken[side]] for side in (name, "theirs")]
            what = {"compile": "a kernel to a cubin", "process": "a process that does so"}[part]
            lines.append(row(f"{what}: {name}", *pair, code=taken[name][0]["bytes"]))
    *mine, theirs_ = imports
    lines += [row(name, imports[name], imports[theirs_]) for name in mine]
    return lines


if __name__ == "__main__":
    child(sys.argv[1])
