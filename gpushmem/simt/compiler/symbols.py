"""Names in LLVM code that have a meaning where functions are linked."""

__all__ = ["FAILURE", "OBSERVED", "SHARED"]

SHARED, OBSERVED = "simt.shared.", "simt.observed."  # numbers that `entry` defines, one for each
FAILURE = "simt.failure."  # functions, the same in all modules
