"""Choose the backend without importing any, and say why."""

from __future__ import annotations

from gpushmem import settings
from gpushmem.backends.registry import BACKENDS, about, unasked
from gpushmem.errors import BackendUnavailable

__all__ = ["choose", "unusable"]

VARIABLE = "GPUSHMEM_BACKEND"


def choose(given: str | None = None) -> tuple[str, str]:
    """Return the backend to use, and why: `given`, else GPUSHMEM_BACKEND, else a usable one.

    That is nvshmem if it can be used, else cpu. Raises
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
    """Return why the backend cannot be used here, and what to do, in a line; None if it can be."""
    return about(name).missing()


def _known(name: str, whose: str) -> str:
    if name not in BACKENDS:
        raise BackendUnavailable(
            f"{whose}there is no backend {name!r} in this version; available: {', '.join(BACKENDS)}"
        )
    return name
