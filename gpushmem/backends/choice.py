"""Which backend is taken, and why: found out without importing one."""

from __future__ import annotations

from gpushmem import settings
from gpushmem.backends.registry import BACKENDS, about, unasked
from gpushmem.errors import BackendUnavailable

__all__ = ["choose", "unusable"]

VARIABLE = "GPUSHMEM_BACKEND"


def choose(given: str | None = None) -> tuple[str, str]:
    """The backend to use, and why: `given`, else GPUSHMEM_BACKEND, else what can be used here.

    Where it is not asked for by name, that is nvshmem if it can be used, else cpu. Raises
    `BackendUnavailable` for a name that is not in the registry.
    """
    if given:
        return _known(given, ""), "it was asked for"
    asked = settings.get(VARIABLE)
    if asked:
        return _known(asked, f"environment variable {VARIABLE}: "), f"{VARIABLE} is set"
    refused: list[str] = []
    for name in unasked():
        reasons = about(name).reasons()
        if not reasons:
            return name, "; ".join(refused) or about(name).found
        refused.append(f"{name} cannot be used: {', '.join(reasons)}")
    raise BackendUnavailable("; ".join(refused))


def unusable(name: str) -> str | None:
    """Why the backend cannot be used here, in a line that says what to do; None if it can be."""
    return about(name).missing()


def _known(name: str, whose: str) -> str:
    if name not in BACKENDS:
        raise BackendUnavailable(
            f"{whose}there is no backend {name!r} in this version; available: {', '.join(BACKENDS)}"
        )
    return name
