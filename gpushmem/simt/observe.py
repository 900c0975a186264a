"""Who observes kernels: each access (`Observer`), or what programs queue (`witnessed_by`).

Imports no compiler: what has been observed is read elsewhere, too.
"""

from gpushmem.simt.compiler.observer import (
    ADD,
    AND,
    ATOMIC,
    CAS,
    LOAD,
    OR,
    OTHER,
    PLACE_BYTES,
    RELAXED,
    SET,
    STORE,
    VALUED,
    XOR,
    Observer,
    compiled_with,
    observe,
    observe_also,
    unseen,
)
from gpushmem.simt.run.queue_observer import Work, witnessed_by

__all__ = [
    "ADD", "AND", "ATOMIC", "CAS", "LOAD", "OR", "OTHER", "PLACE_BYTES", "RELAXED", "SET",
    "STORE", "VALUED", "XOR", "Observer", "Work", "compiled_with", "observe",
    "observe_also", "unseen", "witnessed_by",
]  # fmt: skip
