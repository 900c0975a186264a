"""Checks of a job's startup: NVSHMEM's installation, interfaces, launchers, settings."""

from __future__ import annotations

from gpushmem import settings
from gpushmem.backends.nvshmem import transport, versions
from gpushmem.doctor import nvshmem
from gpushmem.doctor.check import ENV, FAQ, NO_GPU, Finding, check, na, ok, problem, warning
from gpushmem.doctor.gpus import driver_version
from gpushmem.doctor.network import bootstrap_interface, interfaces
from gpushmem.doctor.software import library, nvshmem4py, ranks
from gpushmem.doctor.system import System
from gpushmem.errors import ArgumentError

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
