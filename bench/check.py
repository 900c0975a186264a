"""The checker's cost: examples with and without --check, in one run.

python bench/check.py [EXAMPLE ...]

Times of whole commands, after a run of each that compiles: start, job, and with --check the
analysis after it. By default all examples but the training, which takes minutes under --check.
"""

import subprocess
import sys
import time
from pathlib import Path

from harness import slowdowns

ROOT = Path(__file__).parent.parent
PES = 2
AIM = "median 8, worst 20"


def seconds(path, *options):
    """The time that an example takes; fails unless it succeeds, and nothing is found."""
    command = [sys.executable, "-m", "gpushmem", "run", "--backend", "cpu", "-n", str(PES)]
    began = time.perf_counter()
    subprocess.run([*command, *options, str(path)], check=True, capture_output=True, cwd=ROOT)
    return time.perf_counter() - began


def main(names):
    names = names or [p.stem for p in sorted((ROOT / "examples").glob("*.py"))]
    times = []
    for name in names:
        if name == "train_digits" and len(names) > 1:
            continue
        path = ROOT / "examples" / f"{name}.py"
        for options in ((), ("--check",)):
            seconds(path, *options)
        plain, checked = seconds(path), seconds(path, "--check")
        times.append((name, checked, plain))
    slowdowns("check", "without --check", AIM, times)


if __name__ == "__main__":
    main(sys.argv[1:])
