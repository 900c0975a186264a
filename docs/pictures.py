"""The pictures of the docs, made from runs: `python docs/pictures.py`.

Each is of a trace that is recorded here and now, of the part that other programs disturbed least.
It needs Chromium and playwright.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from gpushmem.trace import load, page

HERE = Path(__file__).parent
VIEWPORT = {"width": 1000, "height": 420}
SHOW = """([from, to]) => {
    trace.timeline.expand(true);
    trace.timeline.view.style.height = `${trace.timeline.height + 2}px`;
    trace.timeline.show(from, to);
}"""

JACOBI = """
import numpy as np
import gpushmem as shmem
from gpushmem.kernels import Jacobi

shmem.init(heap_size="64M")
plan = Jacobi(shape=(1024, 1024), dtype="float32")
u = plan.scatter(np.zeros((1026, 1026), "float32"))
for _ in range(3):
    plan(u, 50)
    shmem.synchronize()
shmem.finalize()
"""


def picture(name, program, n_pes, operation, times):
    """Draw `times` calls of an operation in a row, all PEs open: the fastest ones of the run."""
    with tempfile.TemporaryDirectory() as folder:
        script, out = Path(folder, f"{name}.py"), Path(folder, name)
        script.write_text(program)
        run = [sys.executable, "-m", "gpushmem", "run", "--backend", "cpu", "--trace", out]
        subprocess.run([*run, "-n", str(n_pes), script], check=True)
        trace = load(out)
        page.write(trace, out / "trace.html")
        calls = [
            int(event["began"])
            for event in trace.events
            if event["of"] == 0 and trace.label(event) == operation
        ]
        spans = zip(calls, calls[times:], strict=False)
        began, ended = min(spans, key=lambda span: span[1] - span[0])
        with sync_playwright() as started:
            browser = started.chromium.launch(executable_path=shutil.which("chromium"))
            tab = browser.new_page(viewport=VIEWPORT, device_scale_factor=2)
            tab.goto((out / "trace.html").as_uri())
            tab.wait_for_selector("body[data-ready]")
            margin = (ended - began) // 20
            tab.evaluate(SHOW, [began - margin, ended + margin])
            tab.wait_for_timeout(500)
            tab.locator("#view").screenshot(path=HERE / "pictures" / f"{name}.png")


def main():
    """Make all pictures."""
    (HERE / "pictures").mkdir(exist_ok=True)
    picture("overlap", JACOBI, 2, "put_signal_block", 8)


if __name__ == "__main__":
    main()
