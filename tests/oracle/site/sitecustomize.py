"""Python imports this first: the processes that numba-cuda's tests start are on the engine too."""

import os

if os.environ.get("GPUSHMEM_ORACLE") == "engine":
    import oracle_site

    oracle_site.enter()
