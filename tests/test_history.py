"""bench/history.py finds what became slower."""

import csv
import subprocess
import sys

from tests.conftest import ROOT

NAMES = "put", "launch", "barrier", "all_reduce", "import", "first_kernel"


def compared(folder, last):
    """The status and the words of a comparison of `last` with three rows whose median is 2."""
    rows = [dict.fromkeys(NAMES, ratio) for ratio in (1, 2, 9)] + [dict.fromkeys(NAMES, 2) | last]
    with open(folder / "history.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ["commit", "load", *NAMES], restval="0")
        writer.writeheader()
        writer.writerows(rows)
    done = subprocess.run(
        [sys.executable, ROOT / "bench/history.py", "--compare", folder / "history.csv"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert not done.stderr
    return done.returncode, done.stdout


def test_what_became_slower_is_named(tmp_path):
    assert compared(tmp_path, {"put": 2.9, "launch": 0.1})[0] == 0
    status, said = compared(tmp_path, {"barrier": 3.1})
    assert status == 1
    assert [line.split(":")[0] for line in said.splitlines() if "SLOWER" in line] == ["barrier"]
