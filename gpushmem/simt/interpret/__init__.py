"""Kernels of numba.cuda as plain Python, thread by thread: for debuggers and coverage.

A thread of a block is a greenlet (`threads`), which gives way where the compiled engine's threads
wait. A kernel's function runs with its own code, but with globals in which the names of numba.cuda
have a meaning in Python (`names`, `machine`); `arrays` and `numbers` make elements compute as
Numba types them.
"""
