"""gpushmem inside the stacks of others: a module or folder for each, which that stack imports."""
