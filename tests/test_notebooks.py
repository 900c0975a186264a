"""`%%gpushmem` in notebooks: those of examples/, and what the magic does and refuses."""

import re

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from tests.test_project import ROOT

FAILS = {"tags": ["raises-exception"]}


def executed(notebook):
    """What its cells put out, when they are run in a new process."""
    client = NotebookClient(notebook, timeout=150, kernel_name="python3")
    client.execute()
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


@pytest.fixture(autouse=True)
def python_here(tmp_path, monkeypatch):
    """The kernel `python3` is the Python of the tests, with this repository's package."""
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(ROOT)


def told(output):
    """An output without what is another in each run: times, who was first."""
    if output.output_type == "display_data":
        return sorted(output.data)
    text = output.text if output.output_type == "stream" else "\n".join(output.traceback)
    if "Critical path" in text:
        return re.findall(r" 0  (barrier_all, In\[\d\]:5 in meet) +1  barrier_all", text)
    return sorted(
        re.sub(
            r"[\d.]+ s\b", "? s", re.sub(r"\bPE \d on|PE \d, |on PE \d", "PE", text)
        ).splitlines()
    )


@pytest.mark.parametrize("name", ["hello", "races"])
def test_a_notebook_puts_out_what_is_kept_in_it(name):
    notebook = nbformat.read(ROOT / f"examples/{name}.ipynb", as_version=4)
    kept = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    new = executed(notebook)
    assert [list(map(told, cell)) for cell in new] == [list(map(told, cell)) for cell in kept]


def outputs_of(*cells):
    """What the cells put out, one after the other, as text."""
    made = [new_code_cell(cell, metadata=FAILS) for cell in ("%load_ext gpushmem", *cells)]
    return [
        "".join(o.get("text") or "\n".join(o.get("traceback", ())) for o in cell)
        for cell in executed(new_notebook(cells=made))[1:]
    ]


def test_what_cells_define_and_put_out():
    cells = [
        "import os, sys\nbefore = [5]",
        "%%gpushmem -n 2\nimport gpushmem as shmem\nshmem.init(heap_size='1M')\nbefore[0] += 1\n"
        "print('out', before)\nprint('err', file=sys.stderr)\nshmem.my_pe()",
        "print(before, 'shmem' in globals())",
        "%%gpushmem -n 2\nimport gpushmem as shmem\nshmem.init(heap_size='1M')\n"
        "if shmem.my_pe():\n    raise KeyError('lost')\nshmem.barrier_all()",
        "%%gpushmem\nos._exit(3)",
        "%%gpushmem -n 2\nthis is no Python",
        "%%gpushmem --memory weak --seed 7\n"
        "print(*map(os.environ.get, ('GPUSHMEM_MEMORY', 'GPUSHMEM_SEED')))",
        "%%gpushmem --memory weak --seed 7\n1 / 0",
        "%%gpushmem --timeout 0.3\nimport gpushmem as shmem\n"
        "os.environ['GPUSHMEM_DEADLOCK'] = '0'\nshmem.init(heap_size='1M')\n"
        "x = shmem.zeros(1, 'int32')\nshmem.wait_until(x, shmem.CMP_EQ, 1)",
    ]  # fmt: skip
    _, first, after, failed, ended, wrong, weak, divided, late = outputs_of(*cells)
    assert sorted(first.splitlines()) == sorted(
        f"PE {pe}: {line}" for pe in (0, 1) for line in ("out [6]", "err", str(pe))
    )
    assert after == "[5] False\n"
    lines = failed.splitlines()
    assert [line for line in lines if line.startswith("PE 1: ")] == [
        "PE 1: gpushmem: PE 1 failed:",
        "PE 1: Traceback (most recent call last):",
        'PE 1:   File "In[5]", line 5, in <module>',
        "PE 1:     raise KeyError('lost')",
        "PE 1: KeyError: 'lost'",
    ]
    assert lines[-1] == "gpushmem: PE 1 of 2 ended with exit code 1; the other PE was ended"
    assert ended == "gpushmem: PE 0 of 1 ended with exit code 3"
    assert re.match(r' *File "In\[7\]", line 2\n +this is no Python\n[^/]*SyntaxError', wrong)
    assert weak == "PE 0: weak 7\n"
    assert divided.endswith("gpushmem: to repeat this order of operations: --memory weak --seed 7")
    assert re.search(r"PE 0: host, in wait_until at In\[10\]:6, for", late)


def test_what_makes_no_sense_is_refused():
    refused = {
        "-n 0": "%%gpushmem: n_pes must be a whole number from 1 to 65536, not 0",
        "-n two": "argument -n: invalid int value: 'two'",
        "--seed -1": "%%gpushmem: seed must be a whole number from 0 to 65536, or None, not -1",
        "--check --memory weak": "%%gpushmem: --check sees every order: leave --memory weak out",
    }
    said = outputs_of(*(f"%%gpushmem {options}\nprint('ran')" for options in refused))
    assert said == [f"UsageError: {why}\n" for why in refused.values()]
