"""Jobs that are to end in a deadlock."""

import pytest

import gpushmem as shmem


@pytest.fixture
def deadlock(run_pes):
    """`deadlock(n, body)`: run a job that must end as a deadlock; return the report."""

    def run(n, body, **options):
        with pytest.raises(shmem.Deadlock, match=r"^deadlock: no PE can go on\n\n") as failure:
            run_pes(body, n, **{"timeout": 30, **options})
        return str(failure.value)

    return run
