"""Programs in the manner of the Rodinia suite, as Numba CUDA kernels on the engine and in C with
OpenMP: `python bench/rodinia [NAME ...] [--short]`.

The algorithms are those that Che et al. describe (Rodinia: a benchmark suite for heterogeneous
computing, IISWC 2009); kernels and C are our own. Both use all cores, the same data and the same
dtypes, and their results are compared. In each round both run twice, in turns, and the second run
counts: from the first launch to the end of the last, what the host does between launches included,
but not the copies before and after. With names or --short nothing is kept.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from statistics import geometric_mean

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import measured, report, row
from program import NAMES, Case, has_compiler

from gpushmem.simt.numba_cuda import patch_numba_cuda
from gpushmem.simt.run import cores

ROUNDS, SHORT = 3, 2


def ratios(case, rounds):
    """Seconds of the engine and of C, a pair for each round."""
    times = []
    for _ in range(rounds):
        turn = []
        for run in (case.run_engine, case.run_c):
            run()
            turn.append(run())
        times.append(tuple(turn))
    case.check(case.of_engine(), case.of_c())
    return times


def rows(names, size, rounds):
    for name in names:
        case = Case(name, size)
        times = ratios(case, rounds)
        ours, peer = map(min, zip(*times, strict=True))
        each = sorted(c / engine for engine, c in times)
        kept = row(case.program.WHAT.format(**case.size), ours, "C, OpenMP", peer, "", peer / ours)
        yield kept | {"name": name, "speed": peer / ours, "least": each[0], "most": each[-1]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("names", nargs="*", choices=[[], *NAMES], metavar="NAME")
    parser.add_argument("--short", action="store_true", help="small problems, two rounds")
    options = parser.parse_args()
    if not has_compiler():
        sys.exit("bench/rodinia: gcc is missing: install it to compile the C side")
    size, rounds = ("short", SHORT) if options.short else ("full", ROUNDS)
    with patch_numba_cuda():
        found = measured("rodinia", rows(options.names or NAMES, size, rounds))
    mean = geometric_mean(row["speed"] for row in found)
    found.append(row("geometric mean", None, "C, OpenMP", None, "speed >= 1", mean))
    version = subprocess.run(
        ["gcc", "-dumpfullversion"], capture_output=True, text=True, check=True
    )
    peers = {"gcc": version.stdout.strip(), "threads": cores.usable_cores()}
    report("rodinia", found, keep=not (options.names or options.short), **peers)


if __name__ == "__main__":
    main()
