"""Native code of this package's own: C functions made by Numba, and memory as they see it."""
