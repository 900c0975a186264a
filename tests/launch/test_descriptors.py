"""Standard descriptors that are closed, by who starts a job or by its script: they are not ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpushmem as shmem
from gpushmem.start import bootstrap
from gpushmem.start.launch import local
from gpushmem.start.launch.spawn import collect
from tests.bootstrap.processes import Process, free_port, run_all
from tests.bootstrap.processes import tcp as tcp_env
from tests.conftest import PLAIN, ROOT

CLOSED = [(0,), (1,), (2,), (0, 1, 2)]


def close(fds):
    for fd in fds:
        os.close(fd)


def standard():
    """What the standard descriptors are; "" if they are closed."""

    def link(fd):
        try:
            return str(Path(f"/proc/self/fd/{fd}").readlink())
        except FileNotFoundError:
            return ""

    return [link(fd) for fd in (0, 1, 2)]


def meet_and_look():
    """A PE of either kind: meet the others; the standard descriptors."""
    if os.environ["GPUSHMEM_BACKEND"] == "cpu":
        shmem.init(heap_size="1M")
        shmem.barrier_all()
    else:
        peers = bootstrap.find_peers()
        peers.broadcast(b"x" if peers.my_pe == 0 else None)
    print("said", flush=True)
    return standard()


def test_spawn_where_standard_descriptors_are_closed():
    def started_with(closed, backend):
        def body():
            close(closed)
            return shmem.spawn(meet_and_look, 2, backend=backend)

        return body

    local.preload("cpu")
    wanted = [*((closed, "cpu") for closed in CLOSED), (CLOSED[-1], "nvshmem")]
    processes = [Process(started_with(*how)) for how in wanted]
    for (closed, backend), process in zip(wanted, processes, strict=True):
        said = process.wait()
        assert process.value is not None, (closed, backend, said)
        for links in process.value:
            assert not any("memfd:gpushmem" in link or "[" in link for link in links), links
            assert all(links[fd] == os.devnull for fd in closed), (closed, backend, links)


def test_run_where_standard_descriptors_are_closed(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        "import sys\nimport gpushmem as shmem\nshmem.init(heap_size='1M')\nshmem.barrier_all()\n"
        "print('said', flush=True)\nopen(sys.argv[1] + str(shmem.my_pe()), 'w').close()\n"
    )
    run = f"{sys.executable} -m gpushmem run -n 2 {script} {tmp_path}/pe <&- >&- 2>&-"
    done = subprocess.run(["sh", "-c", run], env=PLAIN | {"PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 0
    assert (tmp_path / "pe0").exists()
    assert (tmp_path / "pe1").exists()


def raises():
    raise ValueError("no good")


# How PE 0 ends after it has closed its standard descriptors, and the job's exit code.
ENDS = {
    "exception": (raises, 1), "text": (lambda: sys.exit("sorry"), 1),
    "code": (lambda: sys.exit(7), 7), "well": (lambda: None, 0), "none": (sys.exit, 0),
    "huge": (lambda: sys.exit(10**30), 255), "very negative": (lambda: sys.exit(-(10**30)), 255),
    "closed stream": (lambda: sys.stdout.close(), 0),
}  # fmt: skip


@pytest.mark.parametrize("closed", [(), (2,), (0, 1, 2)])
def test_a_script_that_closes_its_descriptors_ends_with_the_code_it_has_earned(closed):
    def job(ending, begins):
        def body():
            from gpushmem.job.job import current

            close(closed)
            if begins:
                shmem.init(heap_size="1M")
                assert not any("gpushmem" in link or "[" in link for link in standard())
            if current().my_pe == 0:
                ending()

        return body

    for name, (ending, code) in ENDS.items():
        for begins in (False, True) if name == "exception" else (False,):
            outcome, _ = collect(2, job(ending, begins))
            assert outcome.code == code, (name, begins, outcome)
            if name == "exception":
                assert outcome.reason.startswith("PE 0 failed: ValueError: no good ("), begins


def test_descriptors_that_are_received_are_above_the_standard_ones():
    def body():
        close((0, 1, 2))
        job = bootstrap.join()
        links = standard()
        job.board["asked"] = 1  # the mapping has a descriptor of its own
        return min(job.fds), links

    port = free_port()
    for least, links in run_all(2, body, tcp_env(2, port)):
        assert least > 2
        assert links == [os.devnull] * 3


def test_exit_codes_are_those_of_python():
    """What `sys.exit` is given beyond 8 bits ends a PE as it ends Python."""
    for value in (256 + 3, -1, 2**32 + 5, 10**30, True):
        done = subprocess.run([sys.executable, "-c", f"raise SystemExit({value})"], check=False)
        outcome, _ = collect(1, lambda value=value: sys.exit(value))
        assert outcome.code == done.returncode, value
