"""`gpushmem info` as a user types it, and variables that make no sense."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

import gpushmem
from gpushmem.cli.info import command
from gpushmem.doctor.facts import KEYS
from gpushmem.settings import SETTINGS
from tests.conftest import PLAIN
from tests.doctor.machines import Machines

ODD = {"GPUSHMEM_JOB_KEY": "s3cret", "NVSHMEM_DEBUG": "a\x1b[2J"}


def test_info_is_plain_text_of_100_columns(run_cli):
    done = run_cli("info", env=ODD, code=0)
    assert done.stderr == ""
    assert all(len(line) <= 100 and line.isprintable() for line in done.stdout.splitlines())
    assert "cpu: usable" in done.stdout
    assert "GPUSHMEM_JOB_KEY=(hidden)" in done.stdout
    assert "s3cret" not in done.stdout
    for title in ("Versions:", "Backends:", "GPUs:", "Cores:", "Memory:", "Launchers:"):
        assert f"\n{title}" in "\n" + done.stdout


def test_info_on_a_node_of_gpus(monkeypatch, tmp_path):
    machine = Machines(tmp_path).node(n=2)
    monkeypatch.setattr("gpushmem.doctor.system.System", lambda: machine)
    text = CliRunner().invoke(command).output
    assert "  0: NVIDIA H100 80GB HBM3, 79.65 GiB, compute capability 9.0\n" in text
    assert "  mlx5_1:1  ACTIVE, Ethernet, 400 Gb/sec (4X NDR), 2 GIDs\n" in text
    assert "  eth0  up, 25 Gbit/s\n" in text
    assert "NVIDIA driver:\n  580.65.06\n" in text


def test_info_as_json(run_cli):
    told = json.loads(run_cli("info", "--json", env=ODD, code=0).stdout)
    assert list(told) == list(KEYS)
    assert told["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert told["versions"]["gpushmem"] == gpushmem.__version__
    assert told["backends"]["cpu"] == {"usable": True, "reasons": []}
    assert set(told["backend"]) == {"name", "why"}
    assert set(told["nvshmem"]) == {
        "transport", "heap", "hca", "nic_map", "variables", "problem"
    }  # fmt: skip
    assert told["environment"]["GPUSHMEM_JOB_KEY"] == "(hidden)"
    assert told["cores"]["available"] >= 1
    assert told["memory"]["total"] >= told["memory"]["available"] > 0


def test_the_backend_and_what_nvshmem_is_told(run_cli):
    env = {"GPUSHMEM_BACKEND": "nvshmem", "GPUSHMEM_TRANSPORT": "ibgda", "GPUSHMEM_HEAP_SIZE": "2G"}
    text = run_cli("info", env=env, code=0).stdout
    assert "Backend that init takes:\n  nvshmem: GPUSHMEM_BACKEND is set\n" in text
    assert "  transport    ibgda\n  heap         2 GiB\n" in text
    assert "  NVSHMEM_IB_ENABLE_IBGDA=1\n" in text
    env |= {"GPUSHMEM_BACKEND": "abacus", "NVSHMEM_IB_ENABLE_IBGDA": "0"}
    told = json.loads(run_cli("info", "--json", env=env, code=0).stdout)
    assert told["backend"]["name"] is None
    assert "there is no backend 'abacus'" in told["backend"]["why"]
    assert "GPUSHMEM_TRANSPORT=ibgda asks for" in told["nvshmem"]["problem"]


def test_env_lists_all_settings_and_marks_bad_ones(run_cli):
    env = {"GPUSHMEM_HEAP_SIZE": "lots", "GPUSHMEM_THREADS": "2", **ODD}
    done = run_cli("info", "--env", env=env, code=0)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == list(SETTINGS)
    assert all(len(line) <= 100 for line in lines)
    assert "PROBLEM: environment variable GPUSHMEM_HEAP_SIZE: 'lots' is not a size" in done.stdout
    assert "s3cret" not in done.stdout
    rows = json.loads(run_cli("info", "--env", "--json", env=env, code=0).stdout)
    assert [row["name"] for row in rows if row["problem"]] == ["GPUSHMEM_HEAP_SIZE"]
    threads = next(row for row in rows if row["name"] == "GPUSHMEM_THREADS")
    assert (threads["value"], threads["default"]) == ("2", None)


def test_a_terminal_that_knows_ascii_only_is_enough(run_cli):
    odd = dict.fromkeys(("NVSHMEM_DEBUG", "GPUSHMEM_BACKEND"), "\u00e9")
    env = {"PYTHONIOENCODING": "ascii:strict", **odd}
    for args in (["info"], ["info", "--env"], ["doctor"], ["info", "--json"]):
        done = run_cli(*args, env=env)
        assert done.returncode in {0, 1}
        assert done.stderr == ""


# Each variable that counts for a PE, with a value that makes no sense.
COUNT = {
    "GPUSHMEM_BACKEND": "abacus",
    "GPUSHMEM_HEAP_SIZE": "lots",
    "GPUSHMEM_MAX_TEAMS": "none",
}


@pytest.mark.parametrize("name", COUNT)
def test_init_refuses_by_name(name):
    code = "import gpushmem; gpushmem.init()"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**PLAIN, name: COUNT[name]}, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    *_, error, _page = done.stderr.splitlines()
    assert f"environment variable {name}: " in error
    assert repr(COUNT[name]) in error


@pytest.mark.parametrize("name", [*COUNT, "GPUSHMEM_THREADS", "GPUSHMEM_DEADLOCK"])
def test_run_refuses_by_name_and_without_a_traceback(run_cli, tmp_path, name):
    script = tmp_path / "script.py"
    script.write_text("print('ran')")
    done = run_cli("run", "-n", "1", script, env={name: COUNT.get(name, "-5")}, code=1)
    assert f"Error: environment variable {name}: " in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
