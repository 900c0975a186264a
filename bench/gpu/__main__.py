"""The nvshmem backend on GPUs, beside nvshmem4py's own device functions, in one run.

python bench/gpu [WHAT...] [-n N] [--short] [--rehearse] [--out FOLDER]

WHAT: ops, ping-pong, copy, launch (each under `gpushmem run --backend nvshmem -n N`, both sides in
one process, in turns), first (fresh processes), compile (needs no GPU, and is done only when asked
for). ping-pong needs one PE, or MPS where PEs share a GPU. Results: FOLDER/gpu.json, to which runs
with other N add; FOLDER/gpu-compile.json; default: bench/results. Each number is written as it
comes, and what fails is told while the rest goes on. --rehearse: tiny, for a machine without a GPU
(tests/nvshmem/emulation), whose numbers mean nothing.

With --host, launch and first on that emulation, whose launches do nothing: what the host spends
before it calls the driver, and importing; FOLDER/gpu-host.json.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1]))

import compiling
import first
import harness
from harness import RESULTS, seconds
from prepare import prepare

HERE = Path(__file__).parent
IN_PES = ("ops", "copy", "launch", "ping-pong")
PACKAGES = (
    "numba", "numba-cuda", "cuda-core", "cuda-bindings", "nvshmem4py-cu13", "nvidia-nvshmem-cu13",
    "nvidia-cuda-nvrtc", "nvidia-nvjitlink", "numpy",
)  # fmt: skip
QUERY = "name,driver_version,memory.total,mig.mode.current,clocks.max.sm"


def machine():
    """What the numbers were taken on."""
    found = harness.machine()
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    try:
        said = subprocess.run(
            ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        found["gpus"] = said.strip().splitlines()
    except (OSError, subprocess.CalledProcessError):
        found["gpus"] = []
    found["mps"] = "CUDA_MPS_PIPE_DIRECTORY" in os.environ
    return found


def in_pes(what, n, folder, options, take):
    """Run pe.py, and `take` each line as it comes; returns what failed: the rest went on.

    The ping-pong is a job of its own: its kernels wait, and might not end.
    """
    asked = [w for w in what if w in IN_PES]
    failed = []
    for together in (False, True):
        names = [w for w in asked if (w == "ping-pong") is together]
        if not names:
            continue
        command = [sys.executable, "-m", "gpushmem", "run", "--backend", "nvshmem", "-n", str(n)]
        command += [str(HERE / "pe.py"), folder, *names, *options]
        env = os.environ | {"GPUSHMEM_CACHE_DIR": str(Path(folder) / "ours")}
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=env
        ) as job:
            for line in job.stdout:
                if line.startswith("{"):
                    take(json.loads(line))
        if job.returncode:
            failed.append(f"{' '.join(names)} with {n} PEs: exit status {job.returncode}")
    return failed


def table(lines):
    """Lines as text: what one takes, ours by theirs, the latter in most rounds; m: with MPS."""
    for line in lines:
        names = [k for k in ("theirs", "peer", "memcpy") if k in line]
        size = f"{line['bytes']} B" if line.get("bytes") else ""
        pes = f"{line['n_pes']} PE{'m' * line.get('mps', False)}" if "n_pes" in line else ""
        other = f"{seconds(line[names[0]])} ({names[0]})" if names else ""
        spread = f"[{line['from']:.3f}, {line['to']:.3f}]" if "from" in line else ""
        ratio = f"{line['ratio']:.3f}" if "ratio" in line else ""
        rate = f"{line['bytes'] / line['ours'] / 1e9:.4g} GB/s" if size and line["ours"] else ""
        yield (
            f"{line['what']:58} {pes:5} {size:>11} {seconds(line['ours']):>8} {other:>19} "
            f"{ratio:>7} {spread:16} {line.get('aim', ''):6} {rate}"
        )


def keep(path, lines, more):
    """Write results; of an earlier run's those stay that were not measured again."""

    def which(line):
        return line["what"], line.get("n_pes"), line.get("bytes"), line.get("mps")

    old = json.loads(path.read_text())["rows"] if path.exists() else []
    new = {which(line) for line in lines}
    rows = [line for line in old if which(line) not in new] + lines
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_suffix(".part")
    whole.write_text(json.dumps({"machine": more, "rows": rows}, indent=1) + "\n")
    whole.replace(path)


def main():
    parser = argparse.ArgumentParser(prog="bench/gpu", description=__doc__.split("\n")[0])
    every = (*IN_PES, "first")
    parser.add_argument(
        "what", nargs="*", help=f"{', '.join(every)}, compile; default: all but that"
    )
    parser.add_argument("-n", type=int, default=1)
    parser.add_argument("--turns", type=int, default=5, help="of first and compile")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--host", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--kernels", help="folder of compiled kernels, kept for the next run")
    asked = parser.parse_args()
    if unknown := set(asked.what) - {*every, "compile"}:
        parser.error(f"there is no {', '.join(unknown)}")
    what = asked.what or (("launch", "first") if asked.host else every)
    about, failed = machine(), []
    if asked.host:
        sys.path.append(str(HERE.parents[1]))
        from tests.nvshmem import emulation

        os.environ.update(emulation.environment(EMULATION_DEVICES=1, EMULATION_LAUNCHES=0))
    result = asked.out / ("gpu-host.json" if asked.host else "gpu.json")

    def take(line):
        line |= {"mps": True} if about["mps"] else {}
        print(*table([line]), flush=True)
        keep(result, [line], about)

    if "compile" in what:
        lines = compiling.measure(asked.turns)
        print(*table(lines), sep="\n")
        keep(asked.out / "gpu-compile.json", lines, about)
    if set(what) & set(IN_PES):
        with tempfile.TemporaryDirectory() as temporary:
            folder = asked.kernels or temporary
            if not asked.host:  # where each is compiled when it is launched
                missing = prepare(folder).missing
                failed += [f"{name} does not compile: see above" for name in missing]
            options = [f"--{o}" for o in ("short", "rehearse", "host") if getattr(asked, o)]
            failed += in_pes(what, asked.n, folder, options, take)
    if "first" in what:
        first.measure(asked.turns, asked.rehearse or asked.host, take)
    sys.exit("".join(f"bench/gpu: {line}\n" for line in failed) or None)


main()
