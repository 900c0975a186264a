"""Whether the programs find what is broken in NVSHMEM: with one fence after another taken out.

python bench/nvshmem_mutations.py [WAY ...]

For each way of tests/nvshmem_cpu/programs/messages.py, two PEs, with weak memory: first as it is,
with all SEEDS, odd ones on two nodes; then without one fence of a function that the way uses, until
a seed shows it. Hours: each fence is another kernel.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import report, row

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / "tests/nvshmem_cpu/programs/messages.py"
WAYS = (
    "put_signal", "put_signal_block", "fence", "quiet", "barrier", "barrier_block", "broadcast",
    "reduce", "alltoall",
)  # fmt: skip
SEEDS = 4
FENCES = "simt.leaf llvm.nvvm.membar", "simt.leaf fence"
LIMIT = 20  # seconds of a job that waits


def job(way, seed, mutant):
    """In a process of its own: run the program with NVSHMEM's functions as `mutant` says."""
    from dataclasses import replace

    from gpushmem.cli import main
    from gpushmem.simt.bitcode.library import Bitcode
    from gpushmem.simt.compiler.target import made_of

    name, _, number = mutant.partition(" ")
    function, seen = Bitcode.function, os.environ["SEEN"]
    if mutant:
        made_of.append(f"mutant {mutant}")

    def changed(self, wanted):
        found = function(self, wanted)
        lines = found.text.splitlines()
        calls = [(k, text) for k, text in enumerate(lines) if " call " in text]
        fences = [k for k, text in calls if any(map(text.__contains__, FENCES))]
        if not mutant:
            with open(seen, "a") as file:
                file.write(json.dumps([wanted, len(fences)]) + "\n")
        elif wanted == name:
            del lines[fences[int(number)]]
        return replace(found, text="\n".join(lines))

    Bitcode.function = changed
    nodes = str(1 + int(seed) % 2)  # fences of the proxy's path are executed with two
    options = ["--backend", "nvshmem-cpu", "--memory", "weak", "--seed", seed, "--nodes", nodes]
    sys.argv[1:] = ["run", *options, "--timeout", str(LIMIT), "-n", "2", str(PROGRAM), way]
    main()


def run(way, seed, mutant=""):
    """Exit code of a job, and the functions that it has compiled with their numbers of fences."""
    with tempfile.NamedTemporaryFile() as seen:
        return _run(way, seed, mutant, Path(seen.name))


def _run(way, seed, mutant, seen):
    env = os.environ | {"SEEN": str(seen)}
    if not mutant:
        env["GPUSHMEM_CACHE"] = "0" if seed == 1 else "1"
    command = [sys.executable, __file__, "job", way, str(seed), mutant]
    done = subprocess.run(command, capture_output=True, env=env, cwd=ROOT, check=False)
    return done.returncode, dict(map(json.loads, seen.read_text().splitlines()))


def main(ways):
    rows = []
    for way in ways:
        code, functions = run(way, 1)
        codes = {code, *(run(way, seed)[0] for seed in range(2, SEEDS + 1))}
        assert codes == {0}, (way, codes)
        mutants = []
        for name, n in functions.items():
            for number in range(n):
                seeds = range(1, SEEDS + 1)
                by = next((s for s in seeds if run(way, s, f"{name} {number}")[0]), None)
                print(f"{way}: {name} without fence {number}: {by or 'not found'}", flush=True)
                mutants.append(by)
        found = sum(by is not None for by in mutants)
        rows.append(row(way, found, "fences taken out", len(mutants), "", None, str))
    report("nvshmem-mutations", rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["job"]:
        job(sys.argv[2], sys.argv[3], sys.argv[4])
    else:
        main(sys.argv[1:] or WAYS)
