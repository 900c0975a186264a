"""How much memory the checker takes, against the symmetric memory in use: the examples.

python bench/check_memory.py [EXAMPLE ...]

Recorded: bytes of the logs of all PEs. Analysed: how much larger the process that analyses them
becomes, at most. Against them: bytes in symmetric arrays of all PEs, at most at a time. By default
all examples but the training.
"""

import os
import resource
import subprocess
import sys
from pathlib import Path

from harness import row, size, slowdowns

from gpushmem.progress import progress

ROOT = Path(__file__).parent.parent
PES, AIM = 2, "6"


def recorded(path):
    """Run an example; bytes of its logs, by which the analysis grows, and of its arrays."""
    from gpushmem.check import command, log

    with command.recorded() as folder:
        subprocess.run(
            [sys.executable, "-m", "gpushmem", "run", "--backend", "cpu", "-n", str(PES), path],
            check=True, capture_output=True, cwd=ROOT,
        )  # fmt: skip
        traces = list(log.read(folder))
        written = sum(len(trace.records) * log.RECORD.itemsize for trace in traces)
        in_use = sum(
            max(sum(nbytes for _, nbytes in f["live"]) for f in trace.facts if "live" in f)
            for trace in traces
        )
        return written, analysed(folder), in_use


def analysed(folder):
    """By how many bytes a process grows that analyses the logs in a folder."""
    pid = os.fork()
    if pid == 0:
        from gpushmem.check import command

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        command.Findings(command.Known(None)).add(folder)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        (folder / "grown").write_text(str(grown << 10))
        os._exit(0)
    os.waitpid(pid, 0)
    return int((folder / "grown").read_text())


def main(names):
    examples = {p.stem for p in (ROOT / "examples").glob("*.py")} - {"train_digits"}
    names = names or sorted(examples)
    with progress("examples", len(names)) as bar:
        found = {name: recorded(ROOT / "examples" / f"{name}.py") for name in bar.each(names)}
    logs = [(f"{name}, log", written, in_use) for name, (written, _, in_use) in found.items()]
    against = "symmetric memory in use"
    analyses = [
        row(f"{name}, analysis", grown, against, in_use, "", grown / in_use, size)
        for name, (_, grown, in_use) in found.items()
    ]
    slowdowns("check-memory", against, "median 6", logs, size, analyses)


if __name__ == "__main__":
    main(sys.argv[1:])
