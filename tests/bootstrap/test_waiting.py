"""PEs that do not come, come late, or come twice: everybody is told, nothing hangs or leaks."""

import os
import time

import pytest

from gpushmem.errors import BootstrapError, ShmemError
from gpushmem.start.bootstrap import join as join_job
from gpushmem.start.launch import local
from tests.bootstrap.processes import Process, free_port, joined, run_all, short, step, tcp
from tests.files import open_files


def test_pe_0_names_those_that_are_missing_and_tells_the_others():
    def body():
        with pytest.raises(BootstrapError) as failure:
            join_job()
        return str(failure.value)

    for env in (step(8, GPUSHMEM_BOOTSTRAP_TIMEOUT="1.5"), tcp(8, free_port())):
        processes = [
            Process(body, **env(pe) | {"GPUSHMEM_BOOTSTRAP_TIMEOUT": "1.5"}) for pe in (0, 1, 2, 4)
        ]
        began = time.monotonic()
        for process in processes:
            process.wait()
            assert "PEs 3, 5-7 of 8 have not arrived: PE 0 waited 1.5 s" in process.value
            assert "GPUSHMEM_BOOTSTRAP_TIMEOUT" in process.value
        assert time.monotonic() - began < 4


@pytest.mark.parametrize(
    ("env", "where", "trouble"),
    [
        (step(2), "through ", "there is no such file"),
        (tcp(2, 9), "at tcp://localhost:9", "Connection refused"),
    ],
)
def test_others_say_where_they_looked_for_pe_0(env, where, trouble):
    def body():
        with pytest.raises(BootstrapError) as failure:
            join_job()
        return str(failure.value)

    (text,) = run_all(1, body, lambda _: short(env)(1))
    assert f"PE 1 of 2 waited 1.5 s for PE 0 {where}" in text
    assert trouble in text


def test_a_pe_that_left_is_missing_and_one_that_comes_again_is_welcome():
    port = free_port()
    env = tcp(3, port)
    first = Process(joined(), **env(0))
    impatient = Process(joined(), **short(env)(1))
    assert "PE 0 is there, waiting for other PEs" in impatient.wait()
    others = [Process(joined(), **env(pe)) for pe in (1, 2)]
    for process in (first, *others):
        process.wait()
        assert process.value is not None


def test_no_descriptor_is_left_when_it_fails():
    def body():
        before = open_files()
        try:
            join_job()
        except BootstrapError:
            return len(open_files() - before)

    for env in (step(3, GPUSHMEM_BOOTSTRAP_TIMEOUT="1.5"), short(tcp(3, free_port()))):
        assert run_all(2, body, env) == [0, 0]


def test_what_is_open_afterwards_is_the_job():
    def body():
        before = open_files()
        job = join_job()
        left = {fd for fd, _ in open_files() - before}
        return left - set(job.fds), all(not os.get_inheritable(fd) for fd in job.fds)

    for env in (step(3), tcp(3, free_port())):
        for left, closed_in_children in run_all(3, body, env):
            assert len(left) == 0
            assert closed_in_children


def test_a_pe_that_ends_is_not_waited_for():
    local.preload("cpu")

    def body():
        import gpushmem as shmem

        shmem.init(heap_size="1M")
        if shmem.my_pe() == 1:
            raise RuntimeError("enough")
        with pytest.raises(ShmemError, match="waits for PE 1, which ended"):
            shmem.barrier_all()

    env = tcp(2, free_port())
    waiting, failing = (Process(body, **env(pe)) for pe in (0, 1))
    assert "RuntimeError: enough" in failing.wait(60)
    assert waiting.wait(60) == ""
