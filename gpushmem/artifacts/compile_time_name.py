"""The type of names that are resolved by the compiler and have no value."""

from __future__ import annotations

from numba.cuda import types
from numba.cuda.datamodel.models import OpaqueModel
from numba.cuda.models import register_model

__all__ = ["KernelName"]


class KernelName(types.Dummy):
    """Type of a name without a value, which the compiler resolves.

    If it can be called, its `label` is what errors call that; and it `polls` if what a call returns
    may have been written by other threads, which have to run if a loop waits for it.
    """

    label, polls = "", False


register_model(KernelName)(OpaqueModel)
