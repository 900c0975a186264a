"""Whether a process ends because it has failed: what it then does must not wait for others."""

import subprocess
import sys

import pytest

SAYS = """
import atexit
from gpushmem.job import exit_notice
atexit.register(lambda: print(exit_notice.failed()))
"""
ENDS = [("pass", "False"), ("raise ValueError", "True"), ("raise KeyboardInterrupt", "True")]


@pytest.mark.parametrize(("how", "said"), ENDS)
def test_a_process_of_somebody_elses(how, said):
    code = f"{SAYS}exit_notice.note_exceptions()\nexit_notice.note_exceptions()\n{how}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == f"{said}\n"
    assert done.stderr.count("Traceback") == (said == "True")


@pytest.mark.parametrize(("how", "said"), [*ENDS[:2], ("raise SystemExit(3)", "True")])
def test_a_pe_of_ours(tmp_path, run_cli, how, said):
    script = tmp_path / "job.py"
    script.write_text(SAYS + how)
    done = run_cli("run", "--backend", "nvshmem", script)
    assert done.stdout == f"{said}\n"
