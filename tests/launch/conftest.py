"""Jobs that are to end in a deadlock."""

import pytest


@pytest.fixture
def deadlock(run_pes):
    """`deadlock(n, body)`: run a job that must end as a deadlock; return what a person reads."""

    def run(n, body, **options):
        with pytest.raises(pytest.fail.Exception) as failure:
            run_pes(n, body, **{"timeout": 30, **options})
        text = str(failure.value)
        assert text.startswith("deadlock: no PE can go on; all PEs were ended\n"), text
        return text

    return run
