"""What a call takes: used by ours.py and mpi.py alike."""

import json
import time

ROUND, ROUNDS = 0.03, 5  # seconds of a round at least, rounds of a measurement


class Clock:
    """One process's side: `barrier()` meets the others, `share(x)` gives PE 0's value to all."""

    def __init__(self, me, barrier, share):
        self.me, self.barrier, self.share = me, barrier, share

    def seconds(self, *calls):
        """Seconds of each of `calls`, best mean of the rounds, in which all take turns."""
        repeats = [self._repeats(call) for call in calls]
        best = [float("inf")] * len(calls)
        for _ in range(ROUNDS):
            for k, call in enumerate(calls):
                best[k] = min(best[k], self._round(call, repeats[k]) / repeats[k])
        return best

    def _repeats(self, call):
        n = 1
        self._round(call, n)  # the first one compiles
        while self._round(call, n) < ROUND:
            n *= 2
        return n

    def _round(self, call, n):
        """From one barrier to the next; the calls between need none."""
        self.barrier()
        began = time.perf_counter()
        for _ in range(n):
            call()
        self.barrier()
        return self.share(time.perf_counter() - began)

    def say(self, **line):
        if self.me == 0:
            print(json.dumps(line), flush=True)
