"""The operation table, read by every room and importing none of them."""

from gpushmem.ops import constants, declarations
from gpushmem.ops.constants import *  # noqa: F403
from gpushmem.ops.table import OPS, Op, host

__all__ = ["OPS", "Op", "constants", "declarations", "host", *constants.__all__]
