"""Machines made of files and programs' output: what a `System` can look at.

The layouts are those of Linux's /sys/class/infiniband and /sys/class/net, the NVIDIA driver's
/proc/driver/nvidia, and the tables of nvidia-smi, as their documentation and users show them.
"""

from pathlib import Path

from gpushmem.doctor.system import System

LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max file size             {fsize}            unlimited            bytes
Max processes             {nproc}              96365                processes
Max open files            {nofile}                524288               files
Max locked memory         {memlock}            unlimited            bytes
Max address space         {space}            unlimited            bytes
"""
USUAL = {
    "fsize": "unlimited", "nproc": "96365", "nofile": "1024", "memlock": "unlimited",
    "space": "unlimited",
}  # fmt: skip
BARE = {
    "/proc/meminfo": "MemTotal:       16384000 kB\nMemFree: 1 kB\nMemAvailable:   15360000 kB",
    "/proc/self/cgroup": "0::/user.slice",
    "/proc/self/status": "Name:\tpython\nCpus_allowed_list:\t0-3",
    "/proc/self/limits": LIMITS.format(**USUAL),
    "/proc/sys/kernel/osrelease": "6.1.0-18-amd64",
    "/proc/sys/vm/max_map_count": "65530",
    "/sys/devices/system/cpu/present": "0-7",
    "/sys/class/net/lo/operstate": "unknown",
    "/sys/class/net/lo/flags": "0x9",
    "/sys/class/net/lo/ifindex": "1",
    "/sys/class/net/eth0/operstate": "up",
    "/sys/class/net/eth0/flags": "0x1003",
    "/sys/class/net/eth0/ifindex": "2",
    "/sys/class/net/eth0/speed": "25000",
}
OPEN_DRIVER = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (build)\n"
    "GCC version:  gcc version 13.3.0"
)
CLOSED_DRIVER = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
    "GCC version:  gcc version 11.4.0"
)
ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"
NVSHMEM_LIB = "/opt/nvshmem/lib"
VERSION_H = "/opt/nvshmem/include/non_abi/nvshmem_version.h"


def port(device, state="4: ACTIVE", layer="InfiniBand", number=1):
    """Files of an RDMA port, with the GID of an IPv4 address at index 3 if it is Ethernet."""
    folder = f"/sys/class/infiniband/{device}/ports/{number}"
    files = {
        f"{folder}/state": state,
        f"{folder}/link_layer": layer,
        f"{folder}/rate": "400 Gb/sec (4X NDR)",
        f"{folder}/gids/0": "fe80:0000:0000:0000:ba3f:d2ff:fe12:3456",
        f"{folder}/gids/4": ZERO,
    }
    if layer == "Ethernet":
        files[f"{folder}/gid_attrs/ndevs/3"] = "eth1"
        files["/sys/class/net/eth1/mtu"] = "9000"
        files[f"{folder}/gids/3"] = "0000:0000:0000:0000:0000:ffff:0a00:0001"
    return files


def version_h(*version):
    """NVSHMEM's header that says its version."""
    names = zip(("MAJOR", "MINOR", "PATCH", "PACKAGE"), (*version, 0), strict=True)
    return "\n".join(f"#define NVSHMEM_VENDOR_{name}_VERSION {n}" for name, n in names)


def nvidia_smi(n, compute="9.0"):
    """What nvidia-smi prints for n GPUs."""
    name = "NVIDIA H100 80GB HBM3"
    rows = [f"{k}, {name}, 81559, GPU-{k:08x}-aaaa, {compute}, Disabled\n" for k in range(n)]
    query = "index,name,memory.total,uuid,compute_cap,mig.mode.current"
    return {
        "nvidia-smi -L": "".join(f"GPU {k}: {name}\n" for k in range(n)),
        f"nvidia-smi --query-gpu={query} --format=csv,noheader,nounits": "".join(rows),
        "ldconfig -p": "\tlibcuda.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libcuda.so.1",
    }


class Machines:
    """Makes `System`s in a folder. `files` with None as text are left out."""

    def __init__(self, folder):
        self.root = Path(folder)

    def bare(self, files=None, programs=None, packages=None, environ=None, **given):
        """A machine of 8 cores, 4 of them ours, without a GPU."""
        for path, text in (BARE | (files or {})).items():
            if text is not None:
                file = self.root / path.lstrip("/")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text + "\n")
        outputs = programs or {}
        usual = {
            "run": lambda words: outputs.get(" ".join(words)),
            "find": lambda name: None,
            "locate": lambda package, folder: None,
            "room": lambda path: (8 << 30, 8 << 30),
            "probe": lambda call: None,
            "platform": ("Linux", "x86_64"),
        }
        return System(
            root=self.root, environ=environ or {}, packages=packages or {}, **(usual | given)
        )

    def node(self, n=2, files=None, programs=None, packages=None, environ=None, **given):
        """A node of n H100s, a port of InfiniBand and one of RoCE, all well."""
        usual = {
            "/proc/driver/nvidia/version": OPEN_DRIVER,
            "/dev/nvidiactl": "",
            **port("mlx5_0"),
            **port("mlx5_1", layer="Ethernet"),
        }
        lib = ("libnvshmem_host.so.3", *(
            f"nvshmem_{kind}_{name}.so.3"
            for kind, names in {
                "bootstrap": ("uid",),
                "transport": ("ibrc", "ibgda", "ucx", "libfabric", "ibdevx"),
            }.items()
            for name in names
        ))  # fmt: skip
        usual |= {f"{NVSHMEM_LIB}/{file}": "" for file in lib}
        usual |= {f"{NVSHMEM_LIB}/libnvshmem_device_sm_{arch}.bc": "" for arch in (80, 89, 90)}
        usual[VERSION_H] = version_h(3, 7, 2)
        installed = {
            "nvshmem4py-cu13": "0.4.1", "nvidia-nvshmem-cu13": "3.7.2", "cffi": "2.0",
            "nvidia-cuda-runtime": "13.0.96", "numba-cuda": "0.30.4", "cuda-core": "1.2.2",
        }  # fmt: skip
        given.setdefault("locate", lambda package, folder: NVSHMEM_LIB)
        return self.bare(
            usual | (files or {}), nvidia_smi(n) | (programs or {}),
            installed if packages is None else packages, environ, **given,
        )  # fmt: skip


def limits(**soft):
    """/proc/self/limits with other soft limits."""
    return {"/proc/self/limits": LIMITS.format(**(USUAL | soft))}


def dangling(path):
    """Make `path` a link to nowhere, as /sys has for devices that went away."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(path.parent / "gone")
