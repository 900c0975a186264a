"""Random kernels, run in each way the engine has, and compared with Python's own answer.

`generate` writes a kernel, `reference` has CPython run it, a generator per thread, `check` has the
engine run it and shrinks what differs. A kernel is known by its seed.
"""
