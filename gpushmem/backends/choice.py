"""Which backend is taken, and why: found out without importing one."""

from __future__ import annotations

from gpushmem import settings
from gpushmem.backends.nvshmem import versions
from gpushmem.errors import BackendUnavailable

__all__ = ["NAMES", "choose", "unusable"]

NAMES = ("cpu", "nvshmem")
VARIABLE = "GPUSHMEM_BACKEND"


def choose(given: str | None = None) -> tuple[str, str]:
    """The backend to use, and why: `given`, else GPUSHMEM_BACKEND, else what can be used here.

    Where it is not asked for by name, that is nvshmem if it can be used, else cpu. Raises
    `BackendUnavailable` for a name there is not.
    """
    if given:
        return _known(given, ""), "it was asked for"
    asked = settings.get(VARIABLE)
    if asked:
        return _known(asked, f"environment variable {VARIABLE}: "), f"{VARIABLE} is set"
    reasons = versions.reasons()
    if reasons:
        return "cpu", f"nvshmem cannot be used: {', '.join(reasons)}"
    return "nvshmem", "there are an NVIDIA GPU and nvshmem4py"


def unusable(name: str) -> str | None:
    """Why the backend cannot be used here, in a line that says what to do; None if it can be."""
    return versions.missing() if name == "nvshmem" else None


def _known(name: str, whose: str) -> str:
    if name not in NAMES:
        raise BackendUnavailable(
            f"{whose}there is no backend {name!r} in this version; available: {', '.join(NAMES)}"
        )
    return name
