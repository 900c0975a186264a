"""Whether the tests find what is broken: small mistakes in the code, one at a time.

python bench/faults.py [NAME ...]  runs the tests on each fault, or on those of some names
python bench/faults.py --list      checks that each fault can be made, and prints them

A fault is a mistake such as a developer makes: a wrong operand, a check that is gone, a peer that
is another one. Each changes what documentation or docstrings promise. There are two or more for
each room of docs/architecture.md. All files but those that git ignores are copied, the fault is
made in the copy, and there pytest runs the tests that are to find it, with the options of
pyproject.toml, until one fails. What takes longer than `LIMIT` counts as found, too: it hangs. A
fault that no test finds SURVIVED; the exit status is 1 then.

Compiled code is kept from run to run, in one folder. Its keys tell sources apart, as they do when
a developer edits them; a fault that they do not tell from the code before it survives, rightly.
"""

import argparse
import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
LIMIT = 600  # seconds of pytest
NOT_RUN = (4, 5)  # pytest's exit codes for options that are wrong, and for no test at all
_running = {}  # pytest's processes, and the folder of each
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)

# Name, file, and tests (of the folder tests); the lines that are taken out; those put in their
# place.
TABLE = r"""
ops-world-team-is-false  gpushmem/ops/team.py  conformance/test_teams.py
- return self >= 0
+ return self > 0
ops-team-destroyed-after-error  gpushmem/ops/team.py  conformance/test_teams.py
- if self and kind is None:  # after an error the other PEs may be anywhere
+ if self:
memory-holes-not-joined  gpushmem/memory/heap.py  memory/test_heap.py
- if hole_offset + hole_size == offset or hole_offset == offset + freed:
+ if hole_offset + hole_size == offset:
memory-neighbours-overlap  gpushmem/memory/registration.py  memory/test_registration.py
- if start < high and low < end:
+ if start <= high and low <= end:
backends-nan-lost  gpushmem/backends/reductions.py  conformance/test_collectives.py
- return a if a > b or a != a else b  # noqa: PLR0124
+ return a if a > b else b
backends-no-timeout-of-0  gpushmem/backends/host/call_arguments.py  conformance/test_timeouts.py
- if number < 0:
+ if number <= 0:
cpu-swap-operands  gpushmem/backends/cpu/operations/atomics.py  conformance/test_atomics.py
- result = builder.cmpxchg(pointer, args[1], args[2], ORDER, ORDER)
+ result = builder.cmpxchg(pointer, args[2], args[1], ORDER, ORDER)
cpu-wrong-peer-of-team  gpushmem/backends/cpu/sync/barrier.py  conformance/test_teams.py
- return (pe_of(team, rank) - record.world_pe) * record.span
+ return (rank - record.my_pe) * record.span
weak-fence-off-by-one  gpushmem/backends/cpu/weak/pending.py  weak/test_pending.py
- if that.pe == it.pe and 0 != that.fenced <= it.before and is_on(that.qps, it.qp):
+ if that.pe == it.pe and 0 != that.fenced < it.before and is_on(that.qps, it.qp):
weak-quiet-without-last-call  gpushmem/backends/cpu/weak/pending.py  weak/test_programs.py
- if as_pending(at).call <= calls and is_of(at, pe, qps) and covered(at, fiber):
+ if as_pending(at).call < calls and is_of(at, pe, qps) and covered(at, fiber):
fence-of-one-thread  gpushmem/backends/nvshmem/operations/ordering.py  nvshmem_cpu/test_findings.py
- if orders in ("fence", "quiet") or (meets and orders != "barrier"):
+ if orders == "quiet" or (meets and orders != "barrier"):
nvshmem-lost-events-not-counted  gpushmem/backends/nvshmem/trace/drain.py  nvshmem/test_trace.py
- self._lose(first - self._next)
nvshmem-cpu-wrong-partner  gpushmem/backends/nvshmem_cpu/teams.py  nvshmem_cpu/test_state.py
- return rank + 1, [], [INVALID] * phases
+ return rank - 1, [], [INVALID] * phases
nvshmem-cpu-fence-of-no-queue  gpushmem/backends/nvshmem_cpu/channel.py  nvshmem_cpu/test_proxy.py
- fence(proxy, pe, qps if n > 0 else DEFAULT_QPS)
+ fence(proxy, pe, qps)
null-signal-set-adds  gpushmem/backends/null/operations.py  runtime/test_null.py
- target[:] = number if op == SIGNAL_SET else target + number
+ target[:] = number if op == SIGNAL_ADD else target + number
null-status-turned-round  gpushmem/backends/null/operations.py  runtime/test_null.py
- self.counts = np.ones(n, bool) if status is None else status.reshape(-1)[:n] == 0
+ self.counts = np.ones(n, bool) if status is None else status.reshape(-1)[:n] != 0
artifacts-cluster-divides  gpushmem/artifacts/launch_shape.py  runtime/test_launch.py
- if blocks % size:
+ if size % blocks:
artifacts-options-not-in-key  gpushmem/artifacts/fingerprint.py  simt/test_fingerprint.py
- describe(argtypes, reading),
-             describe_options(options, reading),
+ describe(argtypes, reading),
artifacts-reserved-forgotten  gpushmem/artifacts/gpu_model.py  simt/test_meeting.py
- by_shared = limits.shared // (shared + limits.reserved) if shared else limits.blocks
+ by_shared = limits.shared // shared if shared else limits.blocks
parking-handler-taken-for-rest  gpushmem/waiting_threads.py  launch/test_movers.py
- return frame is not None and frame is self._frame
+ return frame is not None
compiler-left-miscounted  gpushmem/simt/compiler/groups.py  conformance/test_scoped_misuse.py
- fail_if(group.alive != group.size, LEFT, what, group.size - group.alive, group.size, 0)
+ fail_if(group.alive != group.size, LEFT, what, group.alive, group.size, 0)
compiler-search-taken-for-polling  gpushmem/simt/compiler/polling.py  simt/test_meeting.py
- return isinstance(typ, types.Array | types.CPointer) and all(
+ return isinstance(typ, types.Array | types.CPointer) and any(
intrinsics-nan-replaces  gpushmem/simt/intrinsics/atomics.py  simt/test_machine.py
- return bits, builder.fcmp_ordered(replaces, builder.bitcast(old, value.type), value)
+ return bits, builder.fcmp_unordered(replaces, builder.bitcast(old, value.type), value)
intrinsics-lane-0-left-out  gpushmem/simt/intrinsics/synchronization.py  simt/test_meeting.py
- return source if 0 <= source < LANES else lane
+ return source if 0 < source < LANES else lane
bitcode-bfind-of-nothing  gpushmem/simt/bitcode/intrinsics.py  simt/test_bitcode.py
- return builder.select(none, i32(-1), zeros)
+ return builder.select(none, i32(32), zeros)
bitcode-libraries-mixed-up  gpushmem/simt/bitcode/library.py  simt/test_bitcode.py
- return f" of {self.digest[:16]}"
+ return " of a library"
blocks-atomics-done-once  gpushmem/simt/blocks/uniformity.py  simt/test_lockstep.py
- if inst.op in ("atomicrmw", "cmpxchg"):
+ if inst.op == "cmpxchg":
blocks-local-stores  gpushmem/simt/blocks/uniformity.py  simt/test_own_memory.py
- if label in self.local or pointer in self.varying or value in self.varying:
+ if pointer in self.varying or value in self.varying:
grid-dynamic-memory-overlaps  gpushmem/simt/grid/entry.py  simt/test_kernels.py
- dynamic_start = -(-shared_bytes // AREA_ALIGN) * AREA_ALIGN
+ dynamic_start = shared_bytes // AREA_ALIGN * AREA_ALIGN
grid-last-turn-of-a-loop  gpushmem/simt/grid/entry.py  simt/test_lockstep.py
- builder.ret(builder.add(builder.sdiv(diff, step), more))
+ builder.ret(builder.sdiv(diff, step))
run-stream-broken-for-good  gpushmem/simt/run/stream.py  simt/test_kernels.py simt/test_queue.py
- queue.skips(False)
run-default-stream-overtaken  gpushmem/simt/run/stream.py  simt/test_kernels.py simt/test_queue.py
- if other.forget() or other is self or device.default not in (self, other):
+ if other.forget() or other is self or device.default is not self:
interpret-inc-wraps-late  gpushmem/simt/interpret/cuda_builtins.py  simt/test_interpret.py
- return 0 if old >= value else old + 1
+ return 0 if old > value else old + 1
interpret-sign-lost  gpushmem/simt/interpret/numbers.py  simt/test_interpret.py
- return dtype.type(whole - (1 << bits) if dtype.kind == "i" and whole >> (bits - 1) else whole)
+ return dtype.type(whole - (1 << bits) if dtype.kind == "i" and whole >> bits else whole)
numba-cuda-unaligned-memory  gpushmem/simt/numba_cuda/driver.py  simt/test_patch.py
- address = -(-address_of(memory) // 256) * 256
+ address = -(-address_of(memory) // 16) * 16
numba-cuda-freed-at-once  gpushmem/simt/numba_cuda/driver.py  simt/test_small_launches.py
- partial(self._spend, memory) if spent else Copy(0, 0, 0, keep=memory)
+ partial(self._spend, memory) if spent else Copy(0, 0, 0)
check-fence-of-all-queues  gpushmem/check/vector_clock.py  check/test_order.py
- self.know_of_calls(pe, fenced_on(qp), on)
+ self.know_of_calls(pe, fenced_on(qp))
check-neighbours-race  gpushmem/check/races.py  check/test_races.py
- low = np.searchsorted(b, a - second.size, "right")
+ low = np.searchsorted(b, a - second.size, "left")
trace-gets-sent-backwards  gpushmem/trace/analysis.py  trace/test_trace.py
- np.add.at(matrix, (events["pe"][gets], events["of"][gets]), events["nbytes"][gets])
+ np.add.at(matrix, (events["of"][gets], events["pe"][gets]), events["nbytes"][gets])
trace-waiting-taken-for-computing  gpushmem/trace/analysis.py  trace/test_trace.py
- np.where(active <= 0, WAITING, np.where(count["moves"] > 0, MOVING, COMPUTING)),
+ np.where(active < 0, WAITING, np.where(count["moves"] > 0, MOVING, COMPUTING)),
diagnosis-wrong-writers-named  gpushmem/diagnosis/report.py  launch/test_deadlocks.py
- here = [(site, writer) for writer, target, site in found if target == pe]
+ here = [(site, writer) for writer, target, site in found if writer == pe]
diagnosis-notice-repeated  gpushmem/diagnosis/deadlock_detection.py  launch/test_failures.py
- if self._noticed or not quiet_since.all():
+ if not quiet_since.all():
job-long-account-cut-off  gpushmem/job/board.py  job/test_board.py
- text = json.dumps(account | {"journal": nothing}, default=int)
+ text = json.dumps({"journal": nothing} | account, default=int)
job-wrong-node  gpushmem/job/job.py  runtime/test_nodes.py
- first = self.my_pe // size * size
+ first = self.my_pe // self.n_nodes * size
explain-registers-rounded-down  gpushmem/explain/occupancy.py  explain
- of_a_warp = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
+ of_a_warp = registers * WARP // REGISTER_UNIT * REGISTER_UNIT
explain-gpus-of-another-kernel  gpushmem/explain/report.py  cli/test_explain.py
- replace(report, cpu=cpu, gpu=tuple(on_gpus[n * k : n * (k + 1)]))
+ replace(report, cpu=cpu, gpu=tuple(on_gpus[k : k + n]))
doctor-last-core-not-counted  gpushmem/doctor/machine.py  doctor/test_machine.py
- found += range(int(first), int(last or first) + 1)
+ found += range(int(first), int(last or first))
doctor-used-memory-forgotten  gpushmem/doctor/machine.py  doctor/test_machine.py
- return min(self.available, max(0, self.limit - (self.used or 0)))
+ return min(self.available, max(0, self.limit))
launch-exit-code-of-signals  gpushmem/start/launch/local.py  launch/test_local.py
- self.outcome.codes[pe] = code = code if code >= 0 else 128 - code
+ self.outcome.codes[pe] = code = code if code >= 0 else 128 + code
launch-unended-line-lost  gpushmem/start/launch/output.py  launch/test_spawn.py cli/test_run.py
- if not data and rest:
+ if not data and not rest:
bootstrap-frames-repeated  gpushmem/start/bootstrap/handshake.py  bootstrap/test_strangers.py
- return _hmac(self._key, sender, struct.pack("!QI", count, len(payload)), payload)
+ return _hmac(self._key, sender, struct.pack("!QI", 0, len(payload)), payload)
bootstrap-machines-as-they-came  gpushmem/start/bootstrap/machines.py  bootstrap/test_ranks.py
- return [order[said[pe]] for pe in sorted(said)]
+ return [order[what] for what in said.values()]
torch-broadcast-from-oneself  gpushmem/torch/group.py  torch/test_group.py
- takes = self._only(root, at, nbytes)
+ takes = self._only(self._me, at, nbytes)
torch-gradient-without-weight  gpushmem/torch/experts.py  torch/test_operators.py
- to_inner = act.backward(weight * to_active, inner)
+ to_inner = act.backward(to_active, inner)
compat-loss-the-wrong-way  gpushmem/compat/nvshmem/core/rma.py  compat/test_programs.py
- have, want = (dst.size, src.size) if target == "put" else (src.size, dst.size)
+ have, want = (dst.size, src.size) if target == "get" else (src.size, dst.size)
compat-offset-ignored  gpushmem/compat/nvshmem/core/amo.py  compat/test_programs.py
- return words[at:]
+ return words
cli-puts-for-gets  gpushmem/cli/stats.py  trace/test_stats.py
- sent = sum(stats.put) + sum(s.got[stats.pe] for s in every)
+ sent = sum(stats.put) + sum(s.put[stats.pe] for s in every)
cli-more-called-less  gpushmem/cli/trace.py  trace/test_trace.py
- sign = "-" if more < 0 else "+"
+ sign = "+" if more < 0 else "-"
kernels-halos-swapped  kernels/halo.py  kernels/test_halo.py
- found = [self.my_pe - 1, self.my_pe + 1]
+ found = [self.my_pe + 1, self.my_pe - 1]
kernels-ring-chunk-of-the-step-before  kernels/all_reduce.py  kernels/test_all_reduce.py
- first, last = part_of(mine.size, n, (me - step - 1) % n)
+ first, last = part_of(mine.size, n, (me - step) % n)
store-those-who-wait-not-told  gpushmem/code_store.py  test_code_store.py
- if not self.done:
+ if self.done:
disk-group-may-write-code  gpushmem/cache_files.py  test_disk.py
- if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
+ if status.st_mode & stat.S_IWOTH:
runtime-free-without-meeting  gpushmem/runtime.py  runtime/test_runtime.py memory
- self.backend.meet(f"free at {made.offset:#x}", made.nbytes)
kernel-read-only-array-written  gpushmem/kernel.py  runtime/test_runtime.py
- written = {k: a for k, a in host.items() if a.flags.writeable}  # such a launch waits
+ written = {**host}
"""

# Folder -> all tests of the room, for --all-tests; the longest that a file is in counts.
ROOMS = {
    "gpushmem": "runtime memory test_code_store.py test_disk.py simt/test_sim.py "
    "launch/test_movers.py",
    "gpushmem/native": "simt launch",
    "gpushmem/ops": "ops conformance runtime/test_arguments.py",
    "gpushmem/memory": "memory torch/test_symmetric.py",
    "gpushmem/backends": "ops conformance runtime memory",
    "gpushmem/backends/cpu": "ops conformance runtime",
    "gpushmem/backends/cpu/weak": "weak",
    "gpushmem/backends/nvshmem": "nvshmem runtime/test_transport.py nvshmem_cpu",
    "gpushmem/backends/nvshmem_cpu": "nvshmem_cpu",
    "gpushmem/backends/null": "runtime/test_null.py",
    "gpushmem/artifacts": "runtime/test_launch.py simt",
    "gpushmem/simt": "simt conformance",
    "gpushmem/simt/base": "simt launch",
    "gpushmem/simt/bitcode": "simt/test_bitcode.py nvshmem_cpu",
    "gpushmem/check": "check",
    "gpushmem/trace": "trace",
    "gpushmem/diagnosis": "launch",
    "gpushmem/job": "job launch runtime/test_nodes.py",
    "gpushmem/explain": "explain cli/test_explain.py",
    "gpushmem/doctor": "doctor cli/test_doctor.py cli/test_info.py",
    "gpushmem/start/launch": "launch cli/test_run.py",
    "gpushmem/start/bootstrap": "bootstrap",
    "gpushmem/torch": "torch",
    "gpushmem/compat": "compat",
    "gpushmem/cli": "cli trace",
    "kernels": "kernels",
}


class Fault(NamedTuple):
    """A mistake in a file; `tests` are to find it."""

    name: str
    path: str
    old: str
    new: str
    tests: list[str]

    def made_in(self, root):
        """The file's text with the mistake; raises `ValueError` unless it has one place there."""
        text = (root / self.path).read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.path} has it {text.count(self.old)} times")
        return text.replace(self.old, self.new)


def faults(every_test=False):
    """The table; with all tests of each fault's room."""
    found = []
    for line in TABLE.strip().splitlines():
        if line.startswith(("- ", "+ ")):
            found[-1][1 + (line[0] == "+")].append(line[2:])
        else:
            found.append((line.split(), [], []))
    return [
        Fault(name, path, "\n".join(old), "\n".join(new), _tests(path, tests, every_test))
        for (name, path, *tests), old, new in found
    ]


def _tests(path, tests, every_test):
    if every_test:
        room = max((room for room in ROOMS if path.startswith(f"{room}/")), key=len)
        tests = ROOMS[room].split()
    return [f"tests/{test}" for test in tests]


def check(chosen):
    """Print the faults; raises `ValueError` if one cannot be made, or has no such tests."""
    for fault in chosen:
        ast.parse(fault.made_in(ROOT))
        missing = [test for test in fault.tests if not (ROOT / test).exists()]
        if missing:
            raise ValueError(f"{fault.name}: there is no {', '.join(missing)}")
        print(f"{fault.name}: {fault.path}, {' '.join(fault.tests)}")
        print("".join(f"  {line}\n" for line in _lines("-", fault.old) + _lines("+", fault.new)))
    print(f"{len(chosen)} faults")


def _lines(sign, text):
    return [f"{sign} {line.strip()}" for line in text.splitlines()]


def copied(to):
    """Copy all files that git does not ignore, as they are now.

    An editable install may know the ready kernels of another checkout: a link shows the copy's.
    """
    command = ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    for name in filter(None, done.stdout.split("\0")):
        if (ROOT / name).exists():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name, follow_symlinks=False)
    (to / "gpushmem/kernels").symlink_to("../kernels")


def result_of(fault, folder, kept, limit):
    """Run the tests on a fault, in a folder of its own which is then removed."""
    copy = folder / "c"
    try:
        copied(copy)
        if fault.old:
            (copy / fault.path).write_text(fault.made_in(copy))
        began = time.monotonic()
        code, by = _run(fault.tests, folder, kept, limit)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "name": fault.name, "path": fault.path, "tests": fault.tests,
        "found": code != 0 and code not in NOT_RUN, "by": by,
        "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip


def _run(tests, folder, kept, limit):
    """Run pytest in the copy: its exit code, and the first test that failed."""
    copy, own = folder / "c", folder / "t"
    own.mkdir()
    environ = os.environ | {
        "PYTHONPATH": str(copy), "GPUSHMEM_CACHE_DIR": str(kept), "TMPDIR": str(own),
    }  # fmt: skip
    options = ["-x", "-q", "-rfE", "-p", "no:cacheprovider", f"--basetemp={folder / 'b'}"]
    with open(folder / "said", "w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *tests], cwd=copy, env=environ,
            stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        _running[process] = folder
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            return -1, "hang"
        finally:
            _end(process, folder)
            del _running[process]
        said.seek(0)
        text = said.read()
    failed = FAILED.search(text)
    if failed is not None:
        return code, failed[1]
    return code, "" if code == 0 else f"exit code {code}: {_last_line(text)}"


def _last_line(text):
    return next(reversed([line for line in text.splitlines() if line.strip()]), "")


def _end(process, folder):
    """Kill what is left of a run; PEs are in process groups of their own."""
    for _ in range(2):  # a process may fork meanwhile
        for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
            if _is_of(pid, process, folder):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    process.wait()


def _is_of(pid, process, folder):
    """Whether a process is in the run's session, or names the run's folder in its environment."""
    with suppress(OSError):  # it has ended, or is another user's
        if os.getsid(pid) == process.pid:
            return True
        return f"={folder}/".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    return False


def say(result):
    how = f"found by {result['by']}" if result["found"] else f"SURVIVED {result['by']}".rstrip()
    print(f"{result['name']}: {how}, {result['seconds']:.0f} s", flush=True)
    return result


def run(chosen, jobs, baseline, limit):
    """The results for all faults; before them, if asked, that of their tests without any."""
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as name:
        root = Path(name)
        kept = root / "kept"
        kept.mkdir(mode=0o700)
        if baseline:
            tests = list(dict.fromkeys(test for fault in chosen for test in fault.tests))
            done = result_of(Fault("no fault", "", "", "", tests), root / "n", kept, 10 * limit)
            if done["by"]:
                sys.exit(f"without a fault: {done['by']}")
            print(f"without a fault: passed, {done['seconds']:.0f} s", flush=True)
        with ThreadPoolExecutor(jobs) as pool:
            runs = [
                pool.submit(result_of, fault, root / str(k), kept, limit)
                for k, fault in enumerate(chosen)
            ]
            try:
                return [say(each.result()) for each in runs]
            finally:  # also where it is interrupted
                pool.shutdown(wait=False, cancel_futures=True)
                for process, folder in [*_running.items()]:
                    _end(process, folder)


def main():
    parser = argparse.ArgumentParser(description="Whether the tests find what is broken.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of faults; default: all")
    parser.add_argument("--list", action="store_true", help="check the table, and print it")
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time")
    parser.add_argument("--all-tests", action="store_true", help="all tests of each fault's room")
    parser.add_argument("--baseline", action="store_true", help="first run without a fault")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for a fault's tests")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results, a list")
    given = parser.parse_args()
    every = faults(given.all_tests)
    unknown = {*given.names} - {fault.name for fault in every}
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}: see --list")
    chosen = [fault for fault in every if not given.names or fault.name in given.names]
    if given.list:
        check(chosen)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # and nothing is left behind
    results = run(chosen, given.jobs, given.baseline, given.limit)
    found = sum(each["found"] for each in results)
    print(f"{found} of {len(results)} found")
    if given.json is not None:
        given.json.write_text(json.dumps(results, indent=2) + "\n")
    sys.exit(found < len(results))


if __name__ == "__main__":
    main()
