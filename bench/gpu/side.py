"""Both sides of a measurement in one PE: the same launch, the same arguments, in turns."""

import json
import os
import time
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from cuda.bindings import driver
from cuda.core import LaunchConfig, launch
from numba.cuda.typing.typeof import Purpose, typeof
from pairs import PAIRS, PART_THREADS, ours
from prepare import code_of

import gpushmem as shmem
from gpushmem import runtime
from gpushmem.artifacts.argument_packing import pack, words_of
from gpushmem.backends.nvshmem.gpu.arrays import at
from gpushmem.backends.nvshmem.gpu.driver_errors import check
from gpushmem.backends.nvshmem.hostcalls import as_gpu
from gpushmem.backends.nvshmem.kernels import Loaded

SIDES = ("ours", "theirs")
CHECKED = 1 << 20  # bytes that are looked at, at each end
POISON = 0xEE


def native(value):
    return as_gpu(value.native()) if hasattr(value, "native") else value


class Measuring:
    """One PE's arrays, kernels and stream."""

    def __init__(self, folder, largest, rounds, enough, rehearse):
        self.folder, self.rounds, self.least, self.rehearse = folder, rounds, enough, rehearse
        self.me, self.n = shmem.my_pe(), shmem.n_pes()
        self.other = min(1, self.n - 1)  # whom PE 0 writes to
        self.backend = runtime.current().backend
        self.stream = shmem.stream().cuda
        self.dst, self.src = (shmem.zeros(largest // 8, "int64") for _ in range(2))
        self.signal = shmem.zeros(1, "uint64")
        self.kernels = {}
        self.events = [check(driver.cuEventCreate(0), "event") for _ in range(2)]
        self.src.copy_from(1000003 * (self.me + 1) + np.arange(largest // 8))
        shmem.barrier_all()

    def end(self):
        """Let the other PEs, which wait on their hosts, end with PE 0."""
        flag = Path(self.folder) / f"over-{os.getppid()}"  # the launcher of all
        if self.me == 0:
            flag.touch()
        while not flag.exists():
            time.sleep(0.02)
        shmem.barrier_all()
        if self.me == 0:
            flag.unlink()

    def alive(self):
        """Whether the GPU can still be used: after some errors of kernels it cannot."""
        return driver.cuCtxSynchronize()[0] == driver.CUresult.CUDA_SUCCESS

    # --- kernels

    def kernel(self, side, name):
        """A kernel on the GPU, loaded as the backend loads its own."""
        if (side, name) not in self.kernels:
            loader = self.backend._loader
            if side == "ours":
                loaded = loader.load(ours(name), PAIRS[name].argtypes, {})
            else:
                loaded = Loaded(*code_of(self.folder, name), self.backend._device, loader.workspace)
            self.kernels[side, name] = loaded
        return self.kernels[side, name].kernel

    def start(self, side, name, args, grid=1):
        config = LaunchConfig(grid=grid, block=PAIRS[name].threads)
        launch(self.stream, config, self.kernel(side, name), *words(args))

    def args(self, nbytes):
        n = nbytes // 8
        return self.dst[:n], self.src[:n], self.other

    # --- time

    def seconds(self, work):
        """Of the GPU's time from before what `work` gives to the stream until after it."""
        began, ended = self.events
        handle = self.stream.handle
        check(driver.cuEventRecord(began, handle), "record")
        work()
        check(driver.cuEventRecord(ended, handle), "record")
        check(driver.cuEventSynchronize(ended), "synchronize")
        t = check(driver.cuEventElapsedTime(began, ended), "time") * 1e-3
        return max(t, 1e-9) if self.rehearse else t

    def enough(self, name, args):
        """Repetitions that take long enough for the clock."""
        if self.rehearse:
            return 2
        reps = 1
        while reps < 1 << 22:
            work = partial(self.start, "theirs", name, (*args, reps))
            took = min(self.seconds(work), self.seconds(work))
            if took >= self.least:
                break
            reps *= 2 if took > self.least / 16 else 8
        return reps

    def turns(self, works):
        """{side: seconds of each round}; who begins changes from round to round."""
        took = {side: [] for side in works}
        for work in works.values():
            self.seconds(work)  # warm
        for k in range(self.rounds):
            for side in list(works)[:: 1 - 2 * (k % 2)]:
                took[side].append(self.seconds(works[side]))
        return took

    def compare(self, name, nbytes):
        """Measure a pair, and say what one operation takes."""
        args = self.args(nbytes)
        reps = self.enough(name, args)
        works = {side: partial(self.start, side, name, (*args, reps)) for side in SIDES}
        self.say(name, nbytes, self.turns(works), reps)

    def compare_copies(self, verb, name, nbytes):
        """Measure a pair that copies so many bytes, after seeing that both do."""
        self.check(verb, name, nbytes)
        self.compare(name, nbytes)

    def say(self, what, nbytes, took, reps=1, **more):
        """Write a measurement: medians, and how the two sides compare in each round."""
        line = {"what": what, "n_pes": self.n, "bytes": nbytes, "reps": reps, **more}
        line |= {side: median(times) / reps for side, times in took.items()}
        if len(took) == 2:
            a, b = took.values()
            ratios = sorted(x / y for x, y in zip(a, b, strict=True))
            line["ratio"] = median(ratios)
            line["from"], line["to"] = ratios[len(ratios) // 8], ratios[-1 - len(ratios) // 8]
        if "theirs" in took:
            line["aim"] = "1.00"
        if self.me == 0:
            print(json.dumps(line), flush=True)

    # --- what is measured besides operations

    def check(self, verb, name, nbytes):
        """See, for each side, that the bytes arrive; else nothing might be measured."""
        for side in SIDES:
            target = native(self.dst)
            if verb == "put" and self.other != self.me:
                target = native(shmem.peer_array(self.dst, self.other))
            check(driver.cuMemsetD8(target.address, POISON, nbytes), "poison")
            check(driver.cuCtxSynchronize(), "poison")
            self.start(side, name, (*self.args(nbytes), 1))
            self.stream.sync()
            source = native(self.src)
            if verb == "get" and self.other != self.me:
                source = native(shmem.peer_array(self.src, self.other))
            n = nbytes // 8
            for part in (slice(0, min(n, CHECKED // 8)), slice(max(0, n - CHECKED // 8), n)):
                got, sent = (self.backend._device.read(a[part]) for a in (target, source))
                if (got != sent).any() and not self.rehearse:
                    raise AssertionError(f"{side}: {name} of {nbytes} bytes does not arrive")

    def ping_pong(self, reps):
        """There and back; half of that is a way."""
        base = [1]

        def work(side):
            args = (self.signal, self.me, 0 if self.me else self.other, base[0], reps)
            base[0] += reps
            self.start(side, "signal ping-pong", args)

        took = self.turns({side: partial(work, side) for side in SIDES})
        self.say("signal ping-pong, one way", 8, took, 2 * reps if self.n > 1 else reps)

    def copy(self, nbytes, grids, times):
        """Both sides' blocks in the grid that suits them, and the driver's copy."""
        dst, src, other = self.args(nbytes)
        target = native(dst)
        if other != self.me:
            target = native(shmem.peer_array(dst, other))
        handle, source = self.stream.handle, native(src).address
        name = "put_block in parts"

        def theirs_or_ours(side, grid):
            return self.graph(lambda: self.start(side, name, (dst, src, other), grid), times)

        def best(side):
            fitting = [g for g in grids if nbytes // 8 >= g * 16]
            tried = {g: theirs_or_ours(side, g) for g in fitting}
            return min(tried, key=lambda g: min(self.seconds(tried[g]) for _ in range(3)))

        works = {}
        grid = best("theirs")
        for side in SIDES:
            works[side] = theirs_or_ours(side, grid)
        works["memcpy"] = self.graph(
            lambda: check(
                driver.cuMemcpyDtoDAsync(target.address, source, nbytes, handle), "memcpy"
            ),
            times,
        )
        took = self.turns(works)
        more = {"grid": grid, "threads": PART_THREADS}
        self.say(f"{name}, beside nvshmem4py's", nbytes, {k: took[k] for k in SIDES}, times, **more)
        pair = {"ours": took["ours"], "memcpy": took["memcpy"]}
        self.say(f"{name}, beside memcpy", nbytes, pair, times, **more)

    def graph(self, work, times):
        """`times` times that work, as one graph: no gaps between launches."""
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        handle = self.stream.handle
        work()  # what is loaded at first use is loaded now
        self.stream.sync()
        check(driver.cuStreamBeginCapture(handle, mode), "capture")
        for _ in range(times):
            work()
        graph = check(driver.cuStreamEndCapture(handle), "capture")
        program = check(driver.cuGraphInstantiate(graph, 0), "graph")
        return lambda: check(driver.cuGraphLaunch(program, handle), "graph")

    def launch(self, times):
        """Seconds of the host for each of many launches, the GPU being faster."""
        from numba import cuda

        dst, src = (at(native(a).address, (64,), np.dtype("int64")) for a in (self.dst, self.src))
        kernel = shmem.jit(ours("nothing"))
        numba_kernel = cuda.jit(lto=True)(ours("nothing"))
        a, b = self.dst[:64], self.src[:64]
        x, y = map(cuda.as_cuda_array, (dst, src))
        stream = shmem.stream()
        cuda_stream = cuda.external_stream(int(stream.cuda.handle))
        core_kernel = self.kernel("ours", "nothing")
        config, prepared = LaunchConfig(grid=1, block=32), words((dst, src, 1))
        configured, numba_configured = kernel[1, 32, stream], numba_kernel[1, 32, cuda_stream]
        bound = configured.bind(a, b, 1)
        works = {
            "kernel[grid, block](...)": (
                lambda: kernel[1, 32, stream](a, b, 1),
                lambda: numba_kernel[1, 32, cuda_stream](x, y, 1),
            ),
            "the same, kernel[grid, block] kept": (
                lambda: configured(a, b, 1),
                lambda: numba_configured(x, y, 1),
            ),
            "kernel[grid, block](...), beside cuda.core.launch": (
                lambda: kernel[1, 32, stream](a, b, 1),
                lambda: launch(stream.cuda, config, core_kernel, *prepared),
            ),
            "bound, beside cuda.core.launch": (
                bound,
                lambda: launch(stream.cuda, config, core_kernel, *prepared),
            ),
        }  # fmt: skip
        for what, pair in works.items():
            sides = dict(zip(("ours", "peer"), pair, strict=True))
            took = {side: [] for side in sides}
            for k in range(self.rounds + 1):
                for side in list(sides)[:: 1 - 2 * (k % 2)]:
                    stream.cuda.sync()
                    began = time.perf_counter()
                    for _ in range(times):
                        sides[side]()
                    took[side].append(time.perf_counter() - began)
            self.say(f"launch: {what}", 0, {s: t[1:] for s, t in took.items()}, times)
        self.launched_and_done(kernel, numba_kernel, (a, b, 1), (x, y, 1), stream, cuda_stream)

    def launched_and_done(self, kernel, numba_kernel, args, numba_args, stream, cuda_stream):
        took = {"ours": [], "peer": []}
        for _ in range(20 if self.rehearse else 300):
            began = time.perf_counter()
            kernel[1, 32, stream](*args)
            stream.synchronize()
            middle = time.perf_counter()
            numba_kernel[1, 32, cuda_stream](*numba_args)
            cuda_stream.synchronize()
            took["ours"].append(middle - began)
            took["peer"].append(time.perf_counter() - middle)
        self.say("launch: and synchronize the stream", 0, took)


def words(args):
    """Arguments as the driver gets them, from arrays and numbers."""
    given = tuple(map(native, args))
    types = tuple(typeof(a, Purpose.argument) for a in given)
    return words_of(pack(types, given))
