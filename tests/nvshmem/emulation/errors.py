"""What the stand-in for NVSHMEM raises."""


class EmulationError(RuntimeError):
    """A call that NVSHMEM does not allow: it might hang, abort, or go on with wrong memory."""
