"""Checks of system limits: system calls, memory, cores, descriptors, mappings."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

import gpushmem
from gpushmem import settings
from gpushmem.doctor import nvshmem
from gpushmem.doctor.check import ENV, NO_GPU, Finding, check, na, ok, problem, warning
from gpushmem.doctor.gpu_inventory import gpus
from gpushmem.doctor.machine import cgroup_value, cores, kernel, left_behind, limit, memory
from gpushmem.doctor.system import PROBES, System
from gpushmem.errors import ArgumentError
from gpushmem.size import format_size

PAGE = "docs/architecture.md"
MAPPINGS = 2 * 16384 + 8192  # fiber stacks with their guard pages, plus libraries
SHM = "/dev/shm"  # noqa: S108
PLATFORM = ("Linux", "x86_64")
OMPI_FAQ = "https://docs.open-mpi.org/en/main/tuning-apps/networking/shared-memory.html"
SHM_NEEDED = 32 << 20  # bytes: below that NCCL's and MPI's own files do not fit
# Files of NCCL, NVSHMEM, UCX, Open MPI, MPICH, PSM and PyTorch.
LEFT = re.compile(
    r"nccl-|nvshmem|ucx_shm|vader_segment|sm_segment|osc_sm|mpich_shar|Intel_MPI|psm[23]_shm|torch_"
)


def _heap(system: System) -> int:
    """Return the heap size of a PE from GPUSHMEM_HEAP_SIZE; the default if it is invalid."""
    try:
        return int(settings.get("GPUSHMEM_HEAP_SIZE", system.environ))
    except ArgumentError:  # reported by the check `settings`
        return int(settings.get("GPUSHMEM_HEAP_SIZE", {}))


@check("cpu_backend", "System for the cpu backend", "cpu", PAGE)
def platform(system: System, n_pes: int) -> Finding:
    """The cpu backend runs on Linux x86-64 and needs the system calls memfd_create (Linux 3.17) and
    pidfd_open (5.3), which some sandboxes block.
    """
    if system.platform != PLATFORM:
        return problem(
            f"{' '.join(system.platform)}; the cpu backend is for Linux x86-64",
            "Use a Linux x86-64 machine or virtual machine.",
        )
    for call in PROBES:
        reason = system.probe(call)
        if reason:
            return problem(
                f"{call} does not work: {reason}",
                "Use Linux 5.3 or newer; in a sandbox, allow the call in its seccomp profile.",
            )
    return ok(f"Linux {'.'.join(map(str, kernel(system)))} x86-64; {' and '.join(PROBES)} work")


@check("memory", "Memory for the heaps", "cpu", PAGE)
def heaps(system: System, n_pes: int) -> Finding:
    """N times GPUSHMEM_HEAP_SIZE, compared with the available memory and the cgroup's limit. Heap
    memory is committed only when it is written, so the heaps may be larger; but when memory runs
    out, the system kills a PE. If the limit on file size or address space (ulimit -f, -v) is too
    small for the heaps, `init` fails.
    """
    heap, have = _heap(system), memory(system)
    need = heap * n_pes
    told = f"{n_pes} x {format_size(heap)}, {format_size(have.usable)} available"
    sizes = {"Max file size": heap, "Max address space": need}
    for name, wanted in sizes.items():
        soft = limit(system, name)
        if soft is not None and soft < wanted:
            return problem(
                f"{told}; {name.lower()} is {format_size(int(soft))}",
                f"ulimit -{'f' if 'file' in name else 'v'} unlimited, or a smaller heap.",
            )
    if need > have.usable:
        return warning(
            told,
            f"Set GPUSHMEM_HEAP_SIZE to {max(1, have.usable // n_pes >> 20)}M or less, "
            "unless only a part of the heaps is used.",
        )
    return ok(told)


@check("shm", "Shared memory of other libraries", "both", OMPI_FAQ)
def left_files(system: System, n_pes: int) -> Finding:
    """NCCL, MPI libraries, UCX and PyTorch share memory through files in /dev/shm, which stay when
    a job is killed, and take memory of the node. Reported are the files of this user that no
    process seen from here has mapped. /dev/shm also has to have room for new ones: containers often
    limit it to 64 MiB.
    """
    room = system.room(system.path(SHM))
    files = [name for name in system.names(SHM) if LEFT.match(name)]
    free = f"{format_size(room[1])} of {format_size(room[0])} free" if room else "unknown"
    left = left_behind(system, SHM, files)
    if left:
        names, nbytes = sorted(left), format_size(sum(left.values()))
        told = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        return warning(
            f"{len(left)} files of {nbytes} that no process uses: {told}; {free}",
            "Remove them from /dev/shm, unless a job is just starting, or runs in a container.",
        )
    if room and room[1] < SHM_NEEDED:
        return warning(
            free, "Enlarge it (docker run --shm-size=1g), or remove files that nobody needs."
        )
    return ok(f"{free}; {len(files)} files of such libraries")


@check("gpu_memory", "GPU memory for the heaps", "nvshmem", ENV)
def gpu_heaps(system: System, n_pes: int) -> Finding:
    """NVSHMEM_SYMMETRIC_SIZE of all PEs on a GPU, compared with the GPU's memory."""
    sizes = [gpu.memory for gpu in gpus(system) if gpu.memory]
    if not sizes:
        return na(NO_GPU if not gpus(system) else "unknown")
    try:
        heap = nvshmem.symmetric_size(system)
    except ArgumentError:
        return na("NVSHMEM_SYMMETRIC_SIZE is invalid: see settings")
    pes = -(-n_pes // len(sizes))
    told = f"{pes} x {format_size(heap)} on a GPU of {format_size(min(sizes))}"
    if pes * heap > min(sizes):
        return problem(told, "Set a smaller NVSHMEM_SYMMETRIC_SIZE, or use more GPUs.")
    return ok(told)


@check("cores", "Cores for the PEs", "cpu", PAGE)
def enough_cores(system: System, n_pes: int) -> Finding:
    """PEs of the cpu backend share the cores this process may use, further limited by a cgroup's
    quota. More PEs than cores work, but take turns: with many more, waits are slow.
    """
    have = cores(system)
    told = f"{n_pes} PEs on {have.available} of {have.present} cores"
    if have.quota is not None and have.quota < have.available:
        told += f", limited by the cgroup to {have.quota:.3g}"
    if n_pes > 16 * have.usable:
        return warning(told, "Expect it to be slow; use fewer PEs, or more cores.")
    return ok(told)


AGAIN = "The first job compiles it, and keeps it; a wheel of these versions would have it compiled."


@check("engine", "Engine, compiled", "cpu", "docs/launching.md")
def engine(system: System, n_pes: int) -> Finding:
    """A wheel of gpushmem has the engine's own functions compiled, for one version each of Python,
    Numba, numba-cuda and llvmlite. With others, or without a wheel, the first job compiles them.
    """
    about = system.read(str(Path(gpushmem.__file__).parent / "compiled" / "about.json"))
    if about is None:
        return ok("not installed from a wheel: the first job compiles it, and keeps it")
    try:
        made = dict(json.loads(about))
    except ValueError:
        return warning("what was installed with the package is damaged", AGAIN)
    here = {name: system.packages.get(name.replace("_", "-")) for name in made}
    here[sys.implementation.name] = "{}.{}".format(*sys.version_info)
    other = [f"{name} {made[name]}, here {here[name]}" for name in made if made[name] != here[name]]
    if other:
        return warning(f"compiled with {'; '.join(other)}", AGAIN)
    return ok("installed with the package")


@check("descriptors", "Open files", "both", PAGE)
def descriptors(system: System, n_pes: int) -> Finding:
    """File descriptors (ulimit -n): each PE of the cpu backend has one for every PE's heap, the
    launcher a few per PE; NVSHMEM has one per shared memory and connection.
    """
    return _enough(system, "Max open files", 4 * n_pes + 32, "ulimit -n")


@check("processes", "Processes and threads", "both", PAGE)
def processes(system: System, n_pes: int) -> Finding:
    """Limits on processes and threads: ulimit -u, and the pids limit of a container."""
    need = n_pes * (int(cores(system).usable) + 8)
    allowed = cgroup_value(system, "", "pids.max") or cgroup_value(system, "pids", "pids.max") or ""
    if allowed.isdecimal() and int(allowed) < need:
        return problem(
            f"the cgroup allows {allowed} processes and threads; {n_pes} PEs need about {need}",
            "Start the container with a larger --pids-limit, or set GPUSHMEM_THREADS=1.",
        )
    return _enough(system, "Max processes", need, "ulimit -u")


def _enough(system: System, name: str, need: int, command: str) -> Finding:
    soft = limit(system, name)
    if soft is None:
        return ok("unknown")
    told = "unlimited" if math.isinf(soft) else f"{soft:.0f}"
    if soft < need:
        return problem(f"{told}; {need} may be needed", f"{command} {need}")
    return ok(f"{told}; {need} may be needed")


@check("mappings", "Memory mappings", "cpu", PAGE)
def mappings(system: System, n_pes: int) -> Finding:
    """Threads that wait for each other run on stacks with guard pages, two mappings each, for up to
    16,384 stacks; vm.max_map_count limits the mappings of a process.
    """
    have = system.number("/proc/sys/vm/max_map_count")
    if have is None:
        return ok("unknown")
    need = MAPPINGS + n_pes
    if have < need:
        return warning(
            f"vm.max_map_count is {have}; kernels with many threads that wait may need {need}",
            "sudo sysctl vm.max_map_count=65530",
        )
    return ok(f"{have}; {need} may be needed")
