"""From Python to machine code: numba-cuda's compiler, aimed at this machine."""
