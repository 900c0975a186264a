"""`gpushmem doctor` as a user types it."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from gpushmem.cli import doctor
from gpushmem.doctor.checks import CHECKS
from tests.doctor.machines import Machines, port


@pytest.fixture
def on(monkeypatch, tmp_path):
    """`on(make, *args)`: run the command on the machine that `make(machines)` gives."""

    def run(make, *args):
        machine = make(Machines(tmp_path))
        monkeypatch.setattr(doctor, "System", lambda: machine)
        return CliRunner().invoke(doctor.command, list(args))

    return run


def test_on_this_machine(run_cli):
    done = run_cli("doctor", "-n", "2")
    assert done.returncode in {0, 1}
    assert done.stderr == ""
    assert all(len(line) <= 100 for line in done.stdout.splitlines())
    assert "cpu backend: this machine can" in done.stdout


def test_a_bad_setting_is_a_problem_and_exit_code_1(run_cli):
    done = run_cli("doctor", env={"GPUSHMEM_HEAP_SIZE": "lots"}, code=1)
    assert "PROBLEM  Environment variables" in done.stdout
    assert "cannot run 1 PE until this is fixed: settings" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_good_node_of_gpus(on):
    done = on(lambda machines: machines.node(n=8), "-n", "8")
    assert done.exit_code == 0
    assert "PE i on GPU i of 8" in done.output
    assert "NVSHMEM on GPUs: no problem" in done.output
    assert "Fix:" not in done.output


def test_a_node_with_a_problem(on):
    broken = port("mlx5_0", state="1: DOWN") | port("mlx5_1", "1: DOWN", "Ethernet")
    done = on(lambda machines: machines.node(n=2, files=broken), "-n", "2")
    assert done.exit_code == 1
    assert "PROBLEM  RDMA devices" in done.output
    assert "Fix: Bring a port up" in done.output
    assert "NVSHMEM on GPUs: problems: rdma" in done.output
    assert all(len(line) <= 100 for line in done.output.splitlines())


def test_a_warning_is_no_problem(on):
    done = on(lambda machines: machines.node(n=1), "-n", "2")
    assert "WARNING  GPUs for the PEs" in done.output
    assert done.exit_code == 0


def test_checks_that_do_not_apply_are_named_or_shown(on):
    done = on(lambda machines: machines.bare())
    assert "- " in done.output
    assert "Not applicable: gpu_memory, nvshmem" in done.output
    assert "No GPU found: 10 GPU checks do not apply." in done.output
    everything = on(lambda machines: machines.bare(), "--all").output
    assert "Not applicable:" not in everything
    assert "RDMA devices" in everything


def test_json(on):
    done = on(lambda machines: machines.bare(), "--json", "-n", "3")
    told = json.loads(done.output)
    assert list(told) == ["n_pes", "checks", "summary"]
    assert told["n_pes"] == 3
    assert [row["name"] for row in told["checks"]] == [check.name for check in CHECKS]
    assert set(told["checks"][0]) == {
        "name", "title", "concerns", "verdict", "found", "fix", "source",
    }  # fmt: skip


@pytest.mark.parametrize("n", ["0", "-1", "x", "1.5"])
def test_bad_numbers_of_pes(run_cli, n):
    done = run_cli("doctor", "-n", n, code=2)
    assert "Invalid value for '-n'" in done.stderr


def test_info_and_doctor_import_nothing_heavy():
    heavy = ("numba", "llvmlite", "cuda", "torch", "mpi4py", "rich")
    code = f"""
import sys
import gpushmem.cli.info, gpushmem.cli.doctor
from gpushmem.cli.commands import group
group(["info"], standalone_mode=False)
sys.exit([m for m in {heavy} if m in sys.modules] and 1 or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0
