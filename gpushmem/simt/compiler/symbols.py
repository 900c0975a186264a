"""Names in LLVM code that have a meaning where functions are linked."""

__all__ = ["FAILURE", "OBSERVED", "OWN", "SHARED", "TRIPS"]

SHARED, OBSERVED = "simt.shared.", "simt.observed."  # numbers that `entry` defines, one for each
FAILURE = "simt.failure."  # functions, the same in all modules
# Functions that say something of their values, which is asked for where threads are in lockstep.
OWN = "simt.own"  # p -> p: each thread does on its own what it does there
TRIPS = "simt.trips"  # start, stop, step -> how often a loop over that range runs
