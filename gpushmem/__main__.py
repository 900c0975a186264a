"""`python -m gpushmem` is the `gpushmem` command."""

from gpushmem.cli import main

main()
