"""Whether the programs find what is broken in NVSHMEM: fences taken out, stores moved up.

python bench/nvshmem_mutations.py [WAY ...]

The ways are those of tests/nvshmem_cpu/programs/messages.py: two PEs with weak memory, on one node
and on two. First as they are, which tells what sites (see `mutants`) each executes; then with one
executed site after another changed, until a job shows it. Half an hour.
"""

import json
import mmap
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

import mutants
from harness import report, row

from gpushmem.progress import progress

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / "tests/nvshmem_cpu/programs/messages.py"
WAYS = (
    "put_signal", "put_signal_block", "fence", "quiet", "p", "atomic_add", "atomic_swap", "get",
    "get_barrier", "barrier", "barrier_block", "broadcast", "reduce", "alltoall",
)  # fmt: skip
TRIES = 4
NODES = 1, 2
MARKS = 1 << 16  # bytes for a job's sites
LIMIT = 20  # seconds of a job that waits
OLD = "old data seen"
CHANGES = {"fence": "fences taken out", "store": "stores moved"}


def job(way, seed, nodes, change, seen):
    """In a process of its own: run the program with one of NVSHMEM's functions changed.

    If none is, the file `seen` gets a line for each function: name, its first mark, its sites; its
    first bytes are the marks, which all PEs share.
    """
    import ctypes
    from dataclasses import replace

    from gpushmem.cli import main
    from gpushmem.simt.bitcode.library import Bitcode
    from gpushmem.simt.compiler.target import made_of

    name, *which = json.loads(change)
    function, places = Bitcode.function, {}
    if name:
        made_of.append(f"mutant {change}")
    elif seen:
        with open(seen, "r+b") as file:
            marks = (ctypes.c_char * MARKS).from_buffer(mmap.mmap(file.fileno(), MARKS))
        made_of.append(f"marks at {ctypes.addressof(marks)}")

    def changed(self, wanted):
        found = function(self, wanted)
        if wanted == name:
            return replace(found, text=mutants.mutant(found.text, *which))
        if name or not seen:
            return found
        sites = mutants.sites(found.text)
        at, _ = places.setdefault(wanted, (sum(n for _, n in places.values()), len(sites)))
        with open(seen, "a") as lines:
            lines.write(json.dumps([wanted, at, [site[1:] for site in sites]]) + "\n")
        return replace(found, text=mutants.marked(found.text, ctypes.addressof(marks) + at))

    Bitcode.function = changed
    options = ["--backend", "nvshmem-cpu", "--memory", "weak", "--seed", seed, "--nodes", nodes]
    sys.argv[1:] = ["run", *options, "--timeout", str(LIMIT), "-n", "2", str(PROGRAM), way]
    main()


def run(way, seed, nodes, change=("",), seen=""):
    """How a job ends, "" if all is well; `change`: a function, and which mutant of it."""
    words = way, str(seed), str(nodes), json.dumps(change), seen
    command = [sys.executable, __file__, "job", *words]
    done = subprocess.run(command, capture_output=True, cwd=ROOT, check=False, text=True)
    if done.returncode == 0:
        return ""
    return OLD if OLD in done.stderr else "hangs" if done.returncode == 124 else done.stderr


def executed(way, nodes):
    """The sites that a way executes, of those that there are: [(function, kind, number), ...]."""
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(MARKS)
        said = run(way, 1, nodes, seen=file.name)
        assert not said, (way, nodes, said)
        marks, lines = file.read(MARKS), {*file.read().decode().splitlines()}
    functions = [*map(json.loads, lines)]
    assert len(functions) == len({name for name, *_ in functions})  # PEs agree on the marks' places
    all_sites = {(name, *s): at + k for name, at, sites in functions for k, s in enumerate(sites)}
    return [site for site, at in all_sites.items() if marks[at]], [*all_sites]


def baseline(ways):
    """The runs, (way, nodes), in which each site is executed: none for a site that is not."""
    runs = {}
    with progress("as they are", len(ways) * len(NODES)) as bar:
        for way, nodes in bar.each(product(ways, NODES)):
            done, there = executed(way, nodes)
            for site in there:
                runs.setdefault(site, []).extend([(way, nodes)] * (site in done))
            bar.print(f"{way} on {nodes} nodes: {len(done)} sites")
    return runs


def shown_by(site, runs):
    """How the first job ends that shows a mutant, with its way, nodes and seed; or None.

    There are TRIES, and one of each run. Unchanged, the job ends well.
    """
    for k in range(max(TRIES, len(runs))):
        seed, (way, nodes) = 1 + k // len(runs), runs[k % len(runs)]
        said = run(way, seed, nodes, site)
        if said:
            assert not run(way, seed, nodes), (way, seed, nodes)
            return said, way, nodes, seed
    return None


def translated(name):
    """The text of a function, as weak memory has it."""
    from gpushmem.backends.cpu.weak.loads import OBSERVER
    from gpushmem.backends.nvshmem_cpu.functions import library
    from gpushmem.simt.compiler.observer import observe

    observe(OBSERVER)
    return library().function(name).text


def main(ways):
    runs = baseline(ways)
    rows, kinds = [], sorted({site[:2] for site in runs})
    with progress("functions, each with fences or stores changed", len(kinds)) as bar:
        for name, kind in bar.each(kinds, " ".join):
            there = [site for site in runs if site[:2] == (name, kind)]
            tried = [s for s in there if runs[s] and mutants.mutant(translated(name), *s[1:])]
            found = 0
            for site in tried:
                by = shown_by(site, runs[site])
                found += by is not None
                bar.print(*site, by or f"not found: {runs[site]}")
            done = sum(map(bool, (runs[site] for site in there)))
            what = f"{name}: {CHANGES[kind]}, {done} of {len(there)} executed"
            rows.append(row(what, found, "tried", len(tried), "", None, str))
    report("nvshmem-mutations", [r for r in rows if r["peer"] != "0"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["job"]:
        job(*sys.argv[2:])
    else:
        main(sys.argv[1:] or WAYS)
