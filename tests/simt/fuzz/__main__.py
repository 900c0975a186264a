"""Check random kernels for as long as wanted.

    python -m tests.simt.fuzz --minutes 60
    python -m tests.simt.fuzz --seed 1234 --count 1

Each kernel is checked in a process of its own, so that it may crash, or hang. Exits with 1 if any
differed.
"""

import argparse
import itertools
import multiprocessing
import sys
import time
from collections import Counter
from multiprocessing.connection import wait

from gpushmem.progress import progress
from tests.simt.fuzz import check
from tests.simt.fuzz.generate import generate

LIMIT = 300  # seconds for a kernel; making it smaller included
forked = multiprocessing.get_context("fork")


def examine(seed):
    """What became of one kernel, in a word, and a text to print."""
    program = generate(seed)
    try:
        fault = check.check(program)
        if fault is None:
            return "right", ""
        return "WRONG", check.report(*check.smallest(program, fault))
    except check.Rejected as why:
        return "rejected", f"seed {seed}: {why}"


class Child:
    """A process that examines one kernel."""

    def __init__(self, seed):
        self.seed, self.began = seed, time.monotonic()
        self.receive, send = forked.Pipe(duplex=False)
        self.process = forked.Process(target=self._run, args=(send,))
        self.process.start()
        send.close()

    def _run(self, send):
        send.send((*examine(self.seed), check.kinds))

    def late(self):
        return time.monotonic() - self.began > LIMIT

    def result(self):
        """What it sent; or how it ended, if it sent nothing."""
        try:
            sent = self.receive.recv() if self.receive.poll() else None
        except EOFError:
            sent = None
        self.process.kill()
        self.process.join()
        if sent:
            return sent
        how = "took too long" if self.late() else f"ended with {self.process.exitcode}"
        return "WRONG", f"seed {self.seed}: {how}\n{generate(self.seed).source()}", {}


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.simt.fuzz")
    parser.add_argument("--seed", type=int, default=0, help="the first kernel's")
    parser.add_argument("--count", type=int, help="of kernels")
    parser.add_argument("--minutes", type=float, help="how long to go on")
    parser.add_argument("--jobs", type=int, default=1, help="kernels at a time")
    parser.add_argument("--rejected", action="store_true", help="say why kernels were no tests")
    options = parser.parse_args()
    count = options.count or (None if options.minutes else 100)
    seeds = itertools.islice(itertools.count(options.seed), count)
    began = time.monotonic()
    ends = began + 60 * options.minutes if options.minutes else float("inf")
    for seed in (1, 2, 3):  # what the engine compiles once, all children have from here
        examine(seed)
    counts, kinds, children = Counter(), Counter(), []
    with progress("kernels", count) as bar:
        while True:
            while len(children) < options.jobs and time.monotonic() < ends:
                seed = next(seeds, None)
                if seed is None:
                    break
                children.append(Child(seed))
            if not children:
                break
            wait([child.receive for child in children], timeout=1)
            for child in [c for c in children if c.receive.poll() or c.late()]:
                children.remove(child)
                what, text, ran = child.result()
                counts[what] += 1
                kinds.update(ran)
                if what == "WRONG" or (options.rejected and text):
                    bar.print(text)
                bar.advance(1, ", ".join(f"{n} {what}" for what, n in counts.items()))
    spent = (time.monotonic() - began) / 60
    total = sum(counts.values())
    print(f"{dict(counts)} in {spent:.1f} minutes, {total / spent:.0f} a minute")
    print(f"launches: {dict(kinds)}; the next seed is {options.seed + total}")
    sys.exit(1 if counts["WRONG"] else 0)


if __name__ == "__main__":
    main()
