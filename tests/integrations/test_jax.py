"""JAX: programs that jit collectives, on 1 to 4 PEs."""

import socket
import subprocess
from pathlib import Path

import pytest

from tests.conftest import PATHS, PLAIN, ROOT
from tests.integrations.environments import environment

ENVIRON = {**PLAIN, "PYTHONPATH": PATHS, "JAX_PLATFORMS": "cpu"}
PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="module")
def python():
    return environment("JAX")


def run(*command):
    made = subprocess.run(
        command, env=ENVIRON, cwd=ROOT, capture_output=True, text=True,
        timeout=280, check=False,
    )  # fmt: skip
    return made.returncode, made.stdout, made.stdout + made.stderr


def on_pes(python, n, program, *args):
    code, out, told = run(
        python, "-m", "gpushmem", "run", "-n", str(n), PROGRAMS / f"jax_{program}.py", *args
    )
    return code, out, told


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_collectives(python):
    code, out, told = on_pes(python, 3, "collectives")
    assert code == 0, told
    assert out.count("ok") == 3
    assert "Warning" not in told


@pytest.mark.sweep
@pytest.mark.timeout(300)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_collectives_on(python, n):
    code, out, told = on_pes(python, n, "collectives")
    assert code == 0, told
    assert out.count("ok") == n


@pytest.mark.sweep
@pytest.mark.timeout(300)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_independent_calls_have_the_same_order_on_all_pes(python, n):
    code, out, told = on_pes(python, n, "order")
    assert code == 0, told
    assert out.count("ok") == n


@pytest.mark.sweep
@pytest.mark.timeout(300)
@pytest.mark.parametrize("n", [1, 3])
def test_plans_and_arrays_on_the_same_memory(python, n):
    code, out, told = on_pes(python, n, "arrays")
    assert code == 0, told
    assert out.count("ok") == n


# Who survives says so: the launcher ends the others.
@pytest.mark.sweep
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("what", "ok", "code"),
    [("mismatch", 2, 0), ("late", 1, 124), ("ended", 1, 3), ("session", 2, 0)],
)
def test_errors(python, what, ok, code):
    found, out, told = on_pes(python, 2, "errors", what)
    assert out.count("ok") == ok, told
    assert found == code, told


@pytest.mark.sweep
@pytest.mark.timeout(300)
@pytest.mark.parametrize("n", [2, 3])
def test_processes_of_jax_distributed_become_pes(python, n):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [
        subprocess.Popen(
            [python, PROGRAMS / "jax_distributed.py", str(rank), str(n), str(port)],
            env=ENVIRON, cwd=ROOT, text=True, stdout=subprocess.PIPE,
        )
        for rank in range(n)
    ]  # fmt: skip
    try:
        outputs = [each.communicate(timeout=200)[0] for each in started]
    finally:
        for each in started:
            each.kill()
    assert [f"PE {k}: ok" in out for k, out in enumerate(outputs)] == [True] * n, outputs
