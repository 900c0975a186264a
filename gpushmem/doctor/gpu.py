"""Checks of the GPUs: their driver, and whether there are enough for the PEs."""

from __future__ import annotations

import re

from gpushmem.doctor.check import FAQ, NO_GPU, Finding, check, na, ok, problem, warning
from gpushmem.doctor.gpu_inventory import driver_version, gpus, pci_gpus, visible
from gpushmem.doctor.software import DRIVER_FOR_CUDA, cuda_packages
from gpushmem.doctor.system import System


@check(
    "driver", "NVIDIA driver", "nvshmem",
    "https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html",
)  # fmt: skip
def driver(system: System, n_pes: int) -> Finding:
    """The driver is loaded, its devices and libcuda are visible here (also in a container), and it
    is new enough for the installed CUDA packages: 450 for CUDA 11, 525 for 12, 580 for 13.
    """
    version = driver_version(system)
    if version is None:
        count = pci_gpus(system)
        if count == 0:
            return na(NO_GPU)
        return problem(
            f"{count} NVIDIA GPUs on the PCI bus, but no driver loaded",
            "Install the NVIDIA driver, or load it: sudo modprobe nvidia; `dmesg` shows errors.",
        )
    return _unreachable(system, version) or _too_old(system, version)


def _unreachable(system: System, version: str) -> Finding | None:
    if not system.exists("/dev/nvidiactl"):
        return problem(
            f"driver {version} is loaded, but there is no /dev/nvidiactl",
            "In a container: start it with the NVIDIA container toolkit (docker run --gpus all); "
            "otherwise: sudo nvidia-modprobe -u -c=0.",
        )
    if system.find("nvidia-smi") and system.run(("nvidia-smi", "-L")) is None:
        return problem(
            f"driver {version} is loaded, but nvidia-smi fails",
            "Run it. If it reports a driver/library version mismatch, the driver was updated after "
            "it was loaded: reboot, or reload its modules.",
        )
    known = system.run(("ldconfig", "-p"))
    if known is not None and "libcuda.so.1" not in known:
        return problem(
            f"driver {version}, but the loader does not find libcuda.so.1",
            "In a container, set NVIDIA_DRIVER_CAPABILITIES=compute,utility; otherwise install the "
            "driver's user-space libraries of the same version.",
        )
    return None


def _too_old(system: System, version: str) -> Finding:
    have = tuple(map(int, re.findall(r"\d+", version)))
    packages = cuda_packages(system)
    for name, cuda in packages.items():
        need = DRIVER_FOR_CUDA.get(cuda, (0,))
        if have < need:
            return problem(
                f"driver {version}; {name} is built for CUDA {cuda} and needs {need[0]}",
                f"Install driver {need[0]} or newer, or packages for an older CUDA (-cu12).",
            )
    newest = max(packages.values(), default=0)
    return ok(f"driver {version}" + (f", enough for CUDA {newest}" if newest else ""))


@check("gpus", "GPUs for the PEs", "nvshmem", FAQ)
def count(system: System, n_pes: int) -> Finding:
    """Each PE uses one GPU, of those in CUDA_VISIBLE_DEVICES; CUDA silently stops at the first
    entry it cannot use. With more PEs than GPUs, several share one (NVSHMEM's MPG): all operations
    work if CUDA's MPS runs and its thread percentages add up to 100 at most; otherwise only some
    do, and waits between PEs on the same GPU may never end.
    """
    every = gpus(system)
    found, ignored = visible(system, every)
    if not every:
        return na(NO_GPU)
    if any(entry.startswith("MIG-") for entry in ignored):
        return ok("MIG instances: they have no peer access")
    if ignored or not found:
        why = f": {ignored[0]!r} is not a GPU here, or is named twice" if ignored else ""
        return problem(
            f"CUDA_VISIBLE_DEVICES shows {len(found)} of {len(every)} GPUs{why}",
            "Unset it, or name GPUs as `nvidia-smi -L` does: 0,1 or GPU-...",
        )
    names = ", ".join(sorted({gpu.name for gpu in found}))
    if n_pes <= len(found):
        mapping = f"PE i on GPU i of {len(found)}" if n_pes > 1 else f"1 of {len(found)} used"
        return ok(f"{len(found)} ({names}); {mapping}")
    share = f"{n_pes} PEs on {len(found)} GPUs ({names}): PE i on GPU i mod {len(found)}"
    if _mps(system):
        return ok(share + ", with MPS")
    return warning(
        share + ", without MPS: limited support",
        "Start MPS (nvidia-cuda-mps-control -d) and set CUDA_MPS_ACTIVE_THREAD_PERCENTAGE to "
        f"{100 // -(-n_pes // len(found))}, or run fewer PEs on this node.",
    )


def _mps(system: System) -> bool:
    folder = system.variable("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"  # noqa: S108 (CUDA's)
    return system.exists(f"{folder}/control")
