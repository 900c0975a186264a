"""Memory as weak as a GPU's: operations are performed late, and in any order that is allowed.

What does so is imported only where memory is weak.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gpushmem import settings
from gpushmem.backends.cpu.operations import hook

if TYPE_CHECKING:
    from gpushmem.backends.cpu.sync.world import World
    from gpushmem.backends.cpu.weak.memory import WeakMemory
    from gpushmem.ops import Op

__all__ = ["body_of", "by_any_thread", "weak_memory", "weaken_kernels"]


def weaken_kernels(inside: bool = False) -> None:
    """Let operations of kernels that are compiled from now on be late, if memory is weak.

    With `inside`, operations are as late as their own loads and stores. Raises `ShmemError` if it
    is too late for a change.
    """
    weak = settings.memory_is_weak()
    hook.refuse_change("weak", "weak memory", weak)
    if weak or "gpushmem.backends.cpu.weak.memory" in sys.modules:
        from gpushmem.backends.cpu.weak import memory  # noqa: PLC0415

        memory.weaken_kernels(inside, weak)


def weak_memory(world: World) -> WeakMemory | None:
    """The weak memory of this PE, if it is weak."""
    if not settings.memory_is_weak():
        return None
    from gpushmem.backends.cpu.weak.memory import WeakMemory  # noqa: PLC0415

    return WeakMemory(world, settings.get("GPUSHMEM_SEED"))


def body_of(op: Op) -> Any:
    """The meaning of a row in kernels while memory is weak, if it is another one then."""
    if not settings.memory_is_weak():
        return None
    from gpushmem.backends.cpu.weak import operations  # noqa: PLC0415

    return operations.body_of(op)


def by_any_thread(op: Op, body: Any) -> tuple[Any, Any] | None:
    """What threads do before they meet in a call of their warp or block, and the last one then."""
    if not settings.memory_is_weak():
        return None
    from gpushmem.backends.cpu.weak import operations  # noqa: PLC0415

    return operations.by_any_thread(op, body)
