"""The cost of the checker, or of weak memory: examples with and without it, in one run.

python bench/check.py [weak] [EXAMPLE ...]

Times of whole commands, after a run of each that compiles: start, job, and with --check the
analysis after it. By default all examples but the training, which takes minutes under --check.
"""

import subprocess
import sys
import time
from pathlib import Path

from harness import slowdowns

from gpushmem.progress import progress

ROOT = Path(__file__).parent.parent
PES = 2
# Name of the results -> options, aim.
KINDS = {
    "check": (["--check"], "median 8, worst 20"),
    "weak": (["--memory", "weak", "--seed", "1"], "median 3"),
}


def seconds(path, *options):
    """The time that an example takes; fails unless it succeeds, and nothing is found."""
    command = [sys.executable, "-m", "gpushmem", "run", "--backend", "cpu", "-n", str(PES)]
    began = time.perf_counter()
    subprocess.run([*command, *options, str(path)], check=True, capture_output=True, cwd=ROOT)
    return time.perf_counter() - began


def main(names):
    kind = "weak" if names[:1] == ["weak"] else "check"
    options, aim = KINDS[kind]
    names = names[kind == "weak" :]
    names = names or [p.stem for p in sorted((ROOT / "examples").glob("*.py"))]
    names = [name for name in names if name != "train_digits" or len(names) == 1]
    times = []
    with progress("examples", len(names)) as bar:
        for name in bar.each(names):
            path = ROOT / "examples" / f"{name}.py"
            seconds(path), seconds(path, *options)
            plain, slow = seconds(path), seconds(path, *options)
            times.append((name, slow, plain))
    against = "without --check" if kind == "check" else "native memory"
    slowdowns(kind, against, aim, times)


if __name__ == "__main__":
    main(sys.argv[1:])
