"""Checks of how a job starts: NVSHMEM's installation, bootstrap, interfaces, launchers, values."""

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
    """nvshmem4py and the NVSHMEM library are installed, one of each, and versions of numba-cuda and
    cuda-core that fit.
    """
    if driver_version(system) is None:
        return na(NO_GPU)
    bindings, found = nvshmem4py(system), library(system)
    if not bindings:
        return warning(
            "nvshmem4py is not installed: the cpu backend only",
            "pip install 'gpushmem[nvshmem]' brings it, the library, and a Numba that fits.",
        )
    if len(bindings) > 1:
        return problem(
            " and ".join(sorted(bindings)) + " are both installed",
            "Uninstall the one whose CUDA version is not that of your other packages.",
        )
    if found is None:
        return problem("no NVSHMEM library", "pip install nvidia-nvshmem-cu13, or set NVSHMEM_HOME")
    wrong = versions.lacking(system.packages.get)
    if wrong:
        return problem(", ".join(wrong), versions.INSTALL)
    (name, version), *_ = bindings.items()
    return ok(f"{name} {version}, library {found.version or 'in ' + found.folder}")


PLUGINS = {"pmi": "pmi", "pmi-2": "pmi2", "pmi2": "pmi2", "pmix": "pmix"}


@check("bootstrap", "NVSHMEM's bootstrap", "nvshmem", ENV)
def bootstrap(system: System, n_pes: int) -> Finding:
    """NVSHMEM_BOOTSTRAP counts for programs that do not choose themselves; each way is a plugin,
    nvshmem_bootstrap_*.so, which must lie beside the library. UID cannot be chosen by the variable,
    only by the program (as nvshmem4py does).
    """
    if driver_version(system) is None:
        return na(NO_GPU)
    for name in ("NVSHMEM_BOOTSTRAP", "NVSHMEM_BOOTSTRAP_PMI"):
        choices = nvshmem.VARIABLES[name].choices
        if nvshmem.value(system, name).lower() not in choices:
            return problem(
                f"{name}={nvshmem.value(system, name)} is none", f"Take one of {', '.join(choices)}"
            )
    how = nvshmem.value(system, "NVSHMEM_BOOTSTRAP").lower()
    if how == "plugin":
        return _own_plugin(system)
    found = library(system)
    if found is None:
        return na("no NVSHMEM library: see nvshmem")
    plugin = PLUGINS[nvshmem.value(system, "NVSHMEM_BOOTSTRAP_PMI").lower()]
    wanted = ["uid", *([] if how == "uid" else [plugin if how == "pmi" else how])]
    missing = [name for name in wanted if not found.plugin("bootstrap", name)]
    if missing:
        return problem(
            f"nvshmem_bootstrap_{missing[0]}.so is not in {found.folder}",
            "Install the NVSHMEM package anew, or choose another NVSHMEM_BOOTSTRAP.",
        )
    return ok(f"plugins of {' and '.join(wanted)} are there")


def _own_plugin(system: System) -> Finding:
    path = nvshmem.value(system, "NVSHMEM_BOOTSTRAP_PLUGIN")
    if not path:
        return problem(
            "NVSHMEM_BOOTSTRAP=plugin without NVSHMEM_BOOTSTRAP_PLUGIN",
            "Set NVSHMEM_BOOTSTRAP_PLUGIN to the plugin's file.",
        )
    if path.startswith("/") and not system.exists(path):
        return problem(f"there is no {path}", "Correct NVSHMEM_BOOTSTRAP_PLUGIN.")
    return ok(path)


@check("interface", "Interface of the bootstrap", "nvshmem", ENV)
def interface(system: System, n_pes: int) -> Finding:
    """NVSHMEM's UID bootstrap takes the first interface whose name begins with ib, else the first
    that is neither docker nor lo: a bridge (virbr0, br-...) may come first, and other nodes cannot
    reach it. NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME says which.
    """
    if driver_version(system) is None:
        return na(NO_GPU)
    chosen, others = bootstrap_interface(system)
    asked = system.variable("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME")
    up = [found.name for found in interfaces(system) if found.up and found.name != "lo"]
    real = [found.name for found in interfaces(system) if found.name in up and not found.virtual]
    if chosen is None:
        what = f"none that is up fits {asked!r}" if asked else "no interface is up"
        return problem(what, f"Set NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME to one of: {', '.join(up)}")
    if asked:
        return ok(f"{chosen}, of {asked!r}")
    if chosen not in real and real:
        return warning(
            f"{chosen}, a bridge or tunnel inside this machine, though there is {', '.join(real)}",
            f"Set NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME={real[0]} for jobs of several nodes.",
        )
    several = f"; several are up: {', '.join([chosen, *others])}" if others else ""
    return ok(chosen + several)


@check("launcher", "Launcher's variables", "both", FAQ)
def launcher(system: System, n_pes: int) -> Finding:
    """Each launcher tells a process its rank in variables of its own. With those of two that
    disagree (mpirun inside an salloc shell, say) it is open which PE a process is.
    """
    told = ranks(system)
    if not told:
        return ok("none are set: not started by a launcher of jobs")
    text = ", ".join(f"{name}: {rank} of {size or '?'}" for name, (rank, size) in told.items())
    if len(set(told.values())) > 1:
        return warning(
            f"they disagree: {text}",
            "Choose one with GPUSHMEM_BOOTSTRAP, or unset the other's variables.",
        )
    return ok(text)


@check("settings", "Environment variables", "both", SETTINGS_PAGE)
def values(system: System, n_pes: int) -> Finding:
    """Values of GPUSHMEM_ and NVSHMEM_ variables can be read. A GPUSHMEM_ name that gpushmem does
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
            f"there is no setting {', '.join(sorted(unknown))}",
            "`gpushmem info --env` lists the names.",
        )
    used = [name for name in system.environ if name.startswith(("GPUSHMEM_", "NVSHMEM_"))]
    return ok(f"{len(used)} set" if used else "none is set")


def _misspelt(name: str) -> bool:
    return name.startswith("GPUSHMEM_") and name not in settings.SETTINGS
