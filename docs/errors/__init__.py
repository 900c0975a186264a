"""A page for each error; `gpushmem help` prints them."""
