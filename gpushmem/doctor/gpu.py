"""Checks of the GPUs: driver, number, visibility, and the links between them."""

from __future__ import annotations

import re

from gpushmem.doctor import nvshmem
from gpushmem.doctor.check import FAQ, INSTALL, NO_GPU, Finding, check, na, ok, problem, warning
from gpushmem.doctor.gpus import driver_version, gpus, matrix, pci_gpus, visible
from gpushmem.doctor.software import DRIVER_FOR_CUDA, cuda_packages
from gpushmem.doctor.system import System

SMI = "https://docs.nvidia.com/deploy/nvidia-smi/"


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


@check("cuda_packages", "CUDA packages", "nvshmem", INSTALL)
def cuda_packages_(system: System, n_pes: int) -> Finding:
    """NVSHMEM, nvshmem4py and PyTorch's CUDA packages are built for the same major version of CUDA:
    mixing two versions in one process is a common cause of missing symbols.
    """
    if driver_version(system) is None:
        return na(NO_GPU)
    packages = cuda_packages(system)
    majors = sorted(set(packages.values()))
    if len(majors) < 2:
        return ok(f"all for CUDA {majors[0]}" if majors else "none installed")
    examples = [next(n for n, cuda in packages.items() if cuda == major) for major in majors]
    return warning(
        "packages for several CUDA versions: " + ", ".join(examples),
        f"Install all for one version, for example -cu{majors[-1]}, and uninstall the others.",
    )


@check("gpus", "GPUs for the PEs", "nvshmem", FAQ)
def count(system: System, n_pes: int) -> Finding:
    """Each PE uses one GPU. With more PEs than GPUs, several share one (NVSHMEM's MPG): all
    operations work if CUDA's MPS runs and its thread percentages add up to 100 at most; otherwise
    only some do, and waits between PEs on the same GPU may never end.
    """
    found, _ = visible(system, gpus(system))
    if not found:
        return na(NO_GPU) if not gpus(system) else na("no GPU is visible: see visible_gpus")
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


@check(
    "visible_gpus", "CUDA_VISIBLE_DEVICES", "nvshmem",
    "https://docs.nvidia.com/cuda/cuda-c-programming-guide/",
)  # fmt: skip
def visible_(system: System, n_pes: int) -> Finding:
    """CUDA shows a process the GPUs listed in CUDA_VISIBLE_DEVICES, and silently stops at the first
    entry it cannot use. If one GPU is visible, every PE of a node uses that one, unless the
    launcher sets a different one for each PE.
    """
    found = gpus(system)
    if not found:
        return na(NO_GPU)
    text = system.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return ok("not set: all are visible")
    if any(entry.strip().startswith("MIG-") for entry in text.split(",")):
        return ok(f"{text}: MIG instances, see mig")
    seen, ignored = visible(system, found)
    if not seen or ignored:
        what = f"{text!r} shows {len(seen)} of {len(found)} GPUs"
        why = f"{ignored[0]!r} is not a GPU here, or is named twice" if ignored else "empty"
        return problem(
            f"{what}: {why}",
            "Unset it, or name GPUs as `nvidia-smi -L` does: 0,1 or GPU-...",
        )
    if len(seen) < min(n_pes, len(found)):
        return warning(
            f"{text!r} shows {len(seen)} of {len(found)} GPUs to {n_pes} PEs",
            "Unset it, unless the launcher sets a different one for each PE.",
        )
    return ok(f"{text}: {len(seen)} of {len(found)} visible")


@check("mig", "MIG mode", "nvshmem", "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/")
def mig(system: System, n_pes: int) -> Finding:
    """A GPU divided into MIG instances has no peer access, by NVLink or PCIe: PEs on its instances
    cannot access each other's memory directly.
    """
    found = gpus(system)
    if not found:
        return na(NO_GPU)
    known = [gpu for gpu in found if gpu.mig is not None]
    enabled = [str(gpu.index) for gpu in known if gpu.mig]
    if not enabled:
        return ok("off" if known else "not supported by these GPUs, or unknown")
    fix = f"Turn it off: sudo nvidia-smi -i {','.join(enabled)} -mig 0, with nothing running."
    return (problem if n_pes > 1 else warning)(f"on, GPUs {', '.join(enabled)}", fix)


@check("peer_access", "Peer access, NVLink", "nvshmem", SMI)
def peers(system: System, n_pes: int) -> Finding:
    """GPUs of a node access each other's memory by NVLink or PCIe (`nvidia-smi topo -p2p r`, `-m`).
    Otherwise NVSHMEM uses a network adapter even inside a node, or does not start; atomics need
    NVLink or an adapter.
    """
    found, _ = visible(system, gpus(system))
    if not found:
        return na(NO_GPU)
    if len(found) < 2 or n_pes < 2:
        return na("a single PE or GPU has no peers")
    used = [gpu.index for gpu in found[:n_pes]]
    status = _among(matrix(system.run(("nvidia-smi", "topo", "-p2p", "r")) or ""), used)
    links = _among(matrix(system.run(("nvidia-smi", "topo", "-m")) or ""), used)
    if not status:
        return warning("nvidia-smi does not report it", "Check `nvidia-smi topo -p2p r`.")
    refused = {pair: cell for pair, cell in status.items() if cell != "OK"}
    if refused:
        (a, b), why = next(iter(refused.items()))
        return problem(
            f"{len(refused)} of {len(status)} pairs have none; GPU {a} to {b}: {why}",
            "Turn off the IOMMU and PCIe ACS, or PCIe bridges' isolation in the virtual machine; "
            "GNS: this kind of GPU has no peer access. Without it, NVSHMEM needs an RDMA adapter.",
        )
    return _linked(links)


def _among(cells: dict[tuple[int, int], str], used: list[int]) -> dict[tuple[int, int], str]:
    return {pair: cell for pair, cell in cells.items() if set(pair) <= set(used)}


def _linked(links: dict[tuple[int, int], str]) -> Finding:
    kinds = sorted(set(links.values()))
    if links and all(kind.startswith("NV") for kind in kinds):
        return ok(f"all pairs, by NVLink ({', '.join(kinds)})")
    return ok(f"all pairs, some by PCIe ({', '.join(kinds)}): slower, and no atomics over PCIe")


@check(
    "nvswitch", "NVSwitch fabric", "nvshmem",
    "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/",
)  # fmt: skip
def nvswitch(system: System, n_pes: int) -> Finding:
    """On machines with NVSwitch (HGX, DGX) the fabric manager connects the GPUs: until `nvidia-smi
    -q` shows the fabric state Completed, CUDA does not start ("system not yet initialized").
    """
    text = system.run(("nvidia-smi", "-q")) if gpus(system) else None
    states = set(re.findall(r"Fabric\s*\n\s*State\s*:\s*(.*\S)", text or "")) - {"N/A"}
    if not states:
        return na("no NVSwitch" if gpus(system) else NO_GPU)
    told = ", ".join(sorted(states))
    if states == {"Completed"}:
        return ok(told)
    return problem(
        told,
        "sudo systemctl start nvidia-fabricmanager, of exactly the driver's version; "
        "`journalctl -u nvidia-fabricmanager` shows why it fails.",
    )


@check(
    "imex", "IMEX channels", "nvshmem",
    "https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/imexchannels.html",
)  # fmt: skip
def imex(system: System, n_pes: int) -> Finding:
    """NVLink between nodes (GB200 NVL72 and the like) exports memory through IMEX: a device
    /dev/nvidia-caps-imex-channels/channelN must exist; it is not created automatically, and does
    not survive a reboot.
    """
    found = gpus(system)
    if not any(name in gpu.name for gpu in found for name in ("GB200", "GB300")):
        return na(NO_GPU if not found else "no multi-node NVLink")
    channels = system.names("/dev/nvidia-caps-imex-channels")
    if channels:
        return ok(", ".join(channels[:4]))
    if nvshmem.is_on(system, "NVSHMEM_DISABLE_MNNVL"):
        return ok("no channel, but NVSHMEM_DISABLE_MNNVL is set: only inside a node")
    return warning(
        "no channel: NVLink works inside this node only",
        "Load the driver with NVreg_CreateImexChannel0=1, and start nvidia-imex on all nodes; "
        "in a container, pass the device. Or set NVSHMEM_DISABLE_MNNVL=1.",
    )
