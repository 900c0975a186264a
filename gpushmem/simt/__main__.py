"""`python -m gpushmem.simt program.py` is `gpushmem sim program.py`."""

from gpushmem.cli import main

main("sim")
