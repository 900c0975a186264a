"""What a job's PEs did, and when: recorded by `gpushmem run --trace DIR`, read by `load`."""

from gpushmem.trace.page import show
from gpushmem.trace.reading import Trace, load

__all__ = ["Trace", "load", "show"]
