"""How much slower kernels are while they are recorded, or memory is weak: those of `kernels/`.

python bench/check_kernels.py [weak] [KERNEL ...]

Seconds of a call, best of ten in each of three jobs that take turns, two PEs. The analysis comes
after the job, and is not in them. Plans are as the cpu backend suggests them: blocks of one thread.
"""

import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

ROOT = Path(__file__).parent.parent
PES, CALLS, JOBS = 2, 10, 3
AIMS = {"check": "median 8, worst 20", "weak": "median 3"}
WEAK = ["--memory", "weak", "--seed", "1"]


def plans():
    """Name -> a function that makes a plan and its arguments, and returns the call."""
    import numpy as np
    from gpushmem.kernels import (
        AllGatherGemm,
        AllReduce,
        AllReduceRMSNorm,
        ExpertParallel,
        GemmAllReduce,
        GemmReduceScatter,
        Jacobi,
        route,
    )

    import gpushmem as shmem

    def array(*sides):
        rng = np.random.default_rng([shmem.my_pe(), *sides])
        return shmem.to_device(rng.normal(size=sides).astype("float32"))

    def all_reduce(algorithm):
        plan = AllReduce(size=1 << 15, dtype="float32", algorithm=algorithm)
        x = array(1 << 15)
        return lambda: plan(x)

    def norm():
        plan = AllReduceRMSNorm(tokens=32, hidden=1024, dtype="float32")
        given = array(32, 1024), array(32, 1024), array(1024)
        out = array(32, 1024)
        return lambda: plan(*given, out=out)

    def product(kind, rows_a, rows_out):
        plan = kind(m=128, n=128, k=128, dtype="float32")
        a, b, out = array(128 * rows_a, 128), array(128, 128), array(128 * rows_out, 128)
        return lambda: plan(a, b, out=out)

    def jacobi():
        plan = Jacobi(shape=(256, 256), dtype="float32")
        u = array(*(side + 2 for side in plan.local_shape))
        return lambda: plan(u, 4)

    def experts():
        plan = ExpertParallel(tokens=64, hidden=256, experts=8, top_k=2, dtype="float32")
        x, out, weights = array(64, 256), array(64, 256), array(64, 2)
        chosen = shmem.device_array((64, 2), "int32")
        route(array(64, 8), experts=chosen, weights=weights)

        def call():
            plan.combine(plan.dispatch(x, chosen).rows, weights, out=out)

        return call

    return {
        "one shot": lambda: all_reduce("one_shot"),
        "two shot": lambda: all_reduce("two_shot"),
        "ring": lambda: all_reduce("ring"),
        "norm": norm,
        "all-gather + GEMM": lambda: product(AllGatherGemm, 1, shmem.n_pes()),
        "GEMM + reduce-scatter": lambda: product(GemmReduceScatter, shmem.n_pes(), 1),
        "GEMM + all-reduce": lambda: product(GemmAllReduce, 1, 1),
        "Jacobi": jacobi,
        "dispatch and combine": experts,
    }


def in_a_pe(name):
    """Print the seconds of a call."""
    import gpushmem as shmem

    shmem.init()
    call = plans()[name]()
    times = []
    for _ in range(2 + CALLS):
        shmem.barrier_all()
        began = time.perf_counter()
        call()
        shmem.synchronize()
        times.append(time.perf_counter() - began)
    if shmem.my_pe() == 0:
        print(f"seconds: {min(times[2:])}", flush=True)
    shmem.finalize()


def seconds(name, kind=""):
    """The time of a call in a job; "check": recorded, and not analysed afterwards."""
    from gpushmem.check.command import recorded

    command = [sys.executable, "-m", "gpushmem", "run", "--backend", "cpu", "-n", str(PES)]
    command += WEAK if kind == "weak" else []
    with recorded() if kind == "check" else nullcontext():
        done = subprocess.run(
            [*command, __file__, "in-a-pe", name],
            check=True, capture_output=True, text=True, cwd=ROOT,
        )  # fmt: skip
    return float(done.stdout.partition("seconds: ")[2].split()[0])


def main(names):
    from harness import slowdowns

    from gpushmem.progress import progress

    kind = "weak" if names[:1] == ["weak"] else "check"
    names = names[kind == "weak" :] or plans()
    times = []
    with progress("kernels", len(names)) as bar:
        for name in bar.each(names):
            rounds = [(seconds(name, kind), seconds(name)) for _ in range(JOBS)]
            times.append((name, *map(min, zip(*rounds, strict=True))))
    against = "without --check" if kind == "check" else "native memory"
    slowdowns(f"{kind}-kernels", against, AIMS[kind], times)


if __name__ == "__main__":
    if sys.argv[1:2] == ["in-a-pe"]:
        in_a_pe(sys.argv[2])
    else:
        main(sys.argv[1:])
