"""Which PEs operations can name."""

import numpy as np
import pytest

import gpushmem as shmem

ASKED = range(-3, 8)


@shmem.jit
def write_to_all(seen, answers, first):
    me = shmem.my_pe()
    for i in range(answers.size):
        answers[i] = shmem.pe_accessible(first + i)
        if shmem.pe_accessible(first + i):
            shmem.p(seen[me:], 1000 * me + first + i, first + i)


@pytest.mark.parametrize("n_pes", [1, 2, 3])
def test_every_pe_of_the_job_is_accessible_and_no_other(run_pes, n_pes):
    def body():
        shmem.init()
        seen, answers = shmem.full(n_pes, -7, dtype="int64"), np.zeros(len(ASKED), bool)
        write_to_all[1, 1](seen, answers, ASKED[0])
        shmem.barrier_all()
        on_the_host = [shmem.pe_accessible(pe) for pe in ASKED]
        arrived = seen.numpy().tolist()
        shmem.finalize()
        return answers.tolist(), on_the_host, arrived

    expected = [0 <= pe < n_pes for pe in ASKED]
    for me, (answers, on_the_host, arrived) in enumerate(run_pes(body, n_pes)):
        assert answers == on_the_host == expected
        assert {type(answer) for answer in on_the_host} == {bool}
        assert arrived == [1000 * pe + me for pe in range(n_pes)]


@pytest.mark.parametrize("value", [1.5, None, "0"])
def test_what_is_no_integer_is_refused(alone, value):
    with pytest.raises(shmem.ArgumentError, match="pe_accessible: pe must be an integer"):
        shmem.pe_accessible(value)
