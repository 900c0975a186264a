"""Checks of a job's startup: NVSHMEM's installation, interfaces, launchers, settings."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpushmem import settings
from gpushmem.backends.nvshmem import transport, versions
from gpushmem.doctor import nvshmem
from gpushmem.doctor.check import (
    ENV,
    FAQ,
    INSTALL,
    NO_GPU,
    Finding,
    check,
    na,
    ok,
    problem,
    warning,
)
from gpushmem.doctor.gpu_inventory import driver_version, gpus
from gpushmem.doctor.network import bootstrap_interface, interfaces
from gpushmem.doctor.software import (
    header_version,
    library,
    nvshmem4py,
    nvshmem_packages,
    ranks,
)
from gpushmem.doctor.system import System
from gpushmem.errors import ArgumentError

DEVICE = "libnvshmem_device"
CAPABILITY = re.compile(r"\d{1,3}\.\d", re.ASCII).fullmatch
SETTINGS_PAGE = "docs/settings.md"


@check("nvshmem", "NVSHMEM", "nvshmem", "https://pypi.org/project/nvshmem4py-cu13/")
def installed(system: System, n_pes: int) -> Finding:
    """One nvshmem4py and one NVSHMEM library are installed, and compatible versions of numba-cuda
    and cuda-core.
    """
    if driver_version(system) is None:
        return na(NO_GPU)
    bindings, found = nvshmem4py(system), library(system)
    if not bindings:
        return warning(
            "nvshmem4py is not installed: only the cpu backend is available",
            "pip install 'gpushmem[nvshmem]' installs it, the library, and a compatible Numba.",
        )
    if len(bindings) > 1:
        return problem(
            " and ".join(sorted(bindings)) + " are both installed",
            "Uninstall the one whose CUDA version differs from your other packages'.",
        )
    if found is None:
        return problem("no NVSHMEM library", "pip install nvidia-nvshmem-cu13, or set NVSHMEM_HOME")
    wrong = versions.lacking(system.packages.get)
    if wrong:
        return problem(", ".join(wrong), versions.INSTALL)
    (name, version), *_ = bindings.items()
    return ok(f"{name} {version}, library {found.version or 'in ' + found.folder}")


@check("nvshmem_files", "NVSHMEM's library and headers", "nvshmem", INSTALL)
def files(system: System, n_pes: int) -> Finding:
    """Host library and headers are of one version: NVSHMEM refuses kernels that were compiled with
    another. The packages nvidia-nvshmem-cu12 and -cu13 install into the same folder, where the
    later one replaces the files of the other; PyTorch may have brought one of them.
    """
    found = library(system)
    if driver_version(system) is None or found is None:
        return na(NO_GPU if driver_version(system) is None else "no NVSHMEM library: see nvshmem")
    packages = nvshmem_packages(system)
    both = " and ".join(f"{name} {version}" for name, version in sorted(packages.items()))
    if len(packages) > 1:
        return problem(
            f"{both} are both installed, in one folder",
            "Uninstall both, then install the one for the CUDA version of your other packages.",
        )
    headers = header_version(system, found)
    if headers is None:
        return ok(f"library {found.version or 'in ' + found.folder}; headers' version unknown")
    if found.version and found.version.split(".")[:3] != headers.split("."):
        return problem(
            f"the headers in {found.folder.rpartition('/')[0]}/include are of {headers}, "
            f"the library of {found.version}",
            f"pip install --force-reinstall {both.replace(' ', '==')}",
        )
    return ok(f"both {headers}")


@check("bitcode", "NVSHMEM's bitcode for the GPUs", "nvshmem", INSTALL)
def bitcode(system: System, n_pes: int) -> Finding:
    """NVSHMEM's library has its device functions as LLVM bitcode for the GPUs' architecture: that
    file, or that of a lower minor version. Triton and other compilers link it; kernels of `jit` do
    without.
    """
    found, every = library(system), gpus(system)
    wanted = sorted({gpu.compute for gpu in every if gpu.compute and CAPABILITY(gpu.compute)})
    if not wanted or found is None:
        return na(NO_GPU if not every else "unknown")
    there = found.bitcode()
    lacking = [text for text in wanted if not _fitting(text, there)]
    if lacking and f"{DEVICE}.bc" not in found.files:
        return warning(
            f"none for compute capability {', '.join(lacking)} in {found.folder}; there is "
            + (", ".join(f"sm_{arch}" for arch in sorted(there)) or "none"),
            "Install a newer NVSHMEM (pip install -U nvidia-nvshmem-cu13) to use Triton with it.",
        )
    return ok(", ".join(f"{there.get(_fitting(text, there), DEVICE + '.bc')}" for text in wanted))


def _fitting(capability: str, there: Iterable[int]) -> int:
    """The newest architecture not above a compute capability, of the same major version; or 0."""
    major, minor = map(int, capability.split("."))
    return max((arch for arch in there if 10 * major <= arch <= 10 * major + minor), default=0)


@check("interface", "Interface of the bootstrap", "nvshmem", ENV)
def interface(system: System, n_pes: int) -> Finding:
    """NVSHMEM's UID bootstrap uses the first interface whose name begins with ib, else the first
    other than docker and lo: a bridge (virbr0, br-...) may come first, which other nodes cannot
    reach. NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME selects one.
    """
    if driver_version(system) is None:
        return na(NO_GPU)
    chosen, others = bootstrap_interface(system)
    asked = system.variable("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME")
    up = [found.name for found in interfaces(system) if found.up and found.name != "lo"]
    real = [found.name for found in interfaces(system) if found.name in up and not found.virtual]
    if chosen is None:
        what = f"no interface that is up matches {asked!r}" if asked else "no interface is up"
        return problem(what, f"Set NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME to one of: {', '.join(up)}")
    if asked:
        return ok(f"{chosen}, selected by {asked!r}")
    if chosen not in real and real:
        return warning(
            f"{chosen}, a bridge or tunnel inside this machine; available: {', '.join(real)}",
            f"Set NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME={real[0]} for jobs on several nodes.",
        )
    several = f"; several are up: {', '.join([chosen, *others])}" if others else ""
    return ok(chosen + several)


@check("launcher", "Launcher's variables", "both", FAQ)
def launcher(system: System, n_pes: int) -> Finding:
    """Each launcher sets a process's rank in its own variables. If those of two launchers disagree
    (mpirun inside an salloc shell, say), the PE number of a process is ambiguous.
    """
    told = ranks(system)
    if not told:
        return ok("none are set: not started by a job launcher")
    text = ", ".join(f"{name}: {rank} of {size or '?'}" for name, (rank, size) in told.items())
    if len(set(told.values())) > 1:
        return warning(
            f"they disagree: {text}",
            "Choose one with GPUSHMEM_BOOTSTRAP, or unset the other's variables.",
        )
    return ok(text)


@check("settings", "Environment variables", "both", SETTINGS_PAGE)
def values(system: System, n_pes: int) -> Finding:
    """Values of GPUSHMEM_ and NVSHMEM_ variables are valid. A GPUSHMEM_ variable that gpushmem does
    not know is most likely misspelt.
    """
    for setting in settings.SETTINGS.values():
        reason = settings.reason(setting.name, system.environ)
        if reason:
            return problem(reason, "Correct or unset it; `gpushmem info --env` lists all.")
    try:
        nvshmem.symmetric_size(system)
        transport.variables(system.environ)
    except ArgumentError as error:
        return problem(str(error), "Correct or unset it.")
    unknown = [name for name in system.environ if _misspelt(name)]
    if unknown:
        return warning(
            f"unknown setting {', '.join(sorted(unknown))}",
            "`gpushmem info --env` lists the names.",
        )
    used = [name for name in system.environ if name.startswith(("GPUSHMEM_", "NVSHMEM_"))]
    return ok(f"{len(used)} set" if used else "none is set")


def _misspelt(name: str) -> bool:
    return name.startswith("GPUSHMEM_") and name not in settings.SETTINGS
