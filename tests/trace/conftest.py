"""What tests of traces share."""

import pytest

from gpushmem.trace import load


@pytest.fixture
def traced(run_cli, tmp_path):
    """`traced(n, program)`: run a program in n PEs and return its trace."""

    def run(n, program, code=0, timeout=100):
        (tmp_path / "program.py").write_text(program)
        folder = tmp_path / "out"
        run.done = run_cli(
            "run", "--backend", "cpu", "--trace", folder, "-n", n, tmp_path / "program.py",
            code=code, timeout=timeout,
        )  # fmt: skip
        run.folder = folder
        return load(folder)

    return run
