"""First runs, and runs after an edit: `python bench/first_runs.py BEFORE AFTER...`.

Each argument is the Python of an environment in which one version of gpushmem is installed, from a
clone or a wheel; the first is the one compared with. All take turns; the median of TURNS counts.
Stores are new, so what a row times is what a user waits for: whole commands.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from harness import report, row

EXAMPLES = Path(__file__).parent.parent / "examples"
TURNS = 3
EDIT = re.compile(r"^(\s+)(right = .*)$", re.MULTILINE)  # a line of ring.py's kernel


class Version:
    """An installed gpushmem, with a folder of its own for programs and its store."""

    def __init__(self, python, folder):
        self.python, self.folder = Path(python).absolute(), folder
        shutil.copytree(EXAMPLES, folder / "examples")
        self.edits = 0

    def run(self, *words):
        environ = os.environ | {"GPUSHMEM_CACHE_DIR": str(self.folder / "store")}
        environ.pop("GPUSHMEM_TIER", None)
        command = [self.python, "-m", "gpushmem", "run", "-n", "4", *words]
        began = time.perf_counter()
        subprocess.run(
            command, env=environ, cwd=self.folder / "examples", check=True, capture_output=True
        )
        return time.perf_counter() - began

    def forget(self):
        shutil.rmtree(self.folder / "store", ignore_errors=True)

    def edit_ring(self):
        self.edits += 1
        ring = self.folder / "examples/ring.py"
        ring.write_text(EDIT.sub(rf"\1\2 + 0 * {self.edits}", ring.read_text(), 1))

    def edit_all_reduce(self):
        """Change a device function of the all-reduce, in place; returns how to change it back."""
        code = "import gpushmem.kernels.all_reduce as m; print(m.__file__)"
        where = subprocess.check_output([self.python, "-c", code], text=True).strip()
        path, before = Path(where), Path(where).read_text()
        self.edits += 1
        line = "    for k in range(1, n):\n"
        path.write_text(before.replace(line, f"    n += 0 * {self.edits}\n{line}"))
        return lambda: path.write_text(before)


def ring_at_first(version):
    version.forget()
    return version.run("ring.py")


def digits_at_first(version):
    version.forget()
    return version.run("train_digits.py")


def edited_kernel(version):
    version.edit_ring()
    return version.run("ring.py")


def edited_all_reduce(version):
    change_back = version.edit_all_reduce()
    try:
        return version.run("train_digits.py")
    finally:
        change_back()


CASES = {
    "train_digits, 4 PEs, nothing compiled": (digits_at_first, "12 s"),
    "train_digits after an edit of kernels/all_reduce.py": (edited_all_reduce, "2.5 s"),
    "ring.py, 4 PEs, nothing compiled": (ring_at_first, "2 s"),
    "ring.py after an edit of its kernel": (edited_kernel, "0.7 s"),
    "ring.py again": (lambda version: version.run("ring.py"), ""),
}


def rows(pythons):
    with tempfile.TemporaryDirectory() as folder:
        versions = []
        for k, python in enumerate(pythons):
            (home := Path(folder) / str(k)).mkdir()
            versions.append(Version(python, home))
        for what, (case, aim) in CASES.items():
            took = [[] for _ in versions]
            for _ in range(TURNS):
                for version, times in zip(versions, took, strict=True):
                    times.append(case(version))
            before, *after = map(median, took)
            for k, seconds in enumerate(after):
                name = what if len(after) == 1 else f"{what} ({k + 1})"
                yield row(name, seconds, "before", before, aim, before / seconds)


if __name__ == "__main__":
    report("first-runs", rows(sys.argv[1:]))
