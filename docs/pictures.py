"""The pictures of the docs, made from runs: `python docs/pictures.py`, with names for some of them.

Each is what `gpushmem trace open` shows of a program in docs/pictures, which is run and traced here
and now; of the part that other programs disturbed least. The page itself draws, in Chromium, with a
pen that writes SVG (svg_pen.js). It needs Chromium and playwright.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from gpushmem.trace import load, page

HERE = Path(__file__).parent / "pictures"
VIEWPORT = {"width": 720, "height": 420}
# name of the program: what begins anew in each part of it, and how many of these are shown
PICTURES = {
    "jacobi": ("put_signal_block", 8),
    "halo": ("block", 2),
    "kv_transfer": ("block", 8),
    "flash_decode": ("block", 2),
    "all_reduce_norm": ("block", 1),
    "all_gather_gemm": ("block", 1),
    "gemm_reduce_scatter": ("block", 1),
    "moe": ("block", 1),
    "dispatch": ("block", 3),
    "ring_attention": ("block", 1),
    "zero": ("block", 1),
    "sort": ("sample", 2),
    "pipeline": ("block", 1),
    "fft": ("block", 2),
    "spmv": ("block", 2),
    "bfs": ("block", 1),
    "bags": ("block", 2),
    "llm": ("send_one", 4),
}
# Those of other programs than docs/pictures/NAME.py with 2 PEs: how many, and what is run.
OTHERS = {
    "llm": (8, ["../../examples/llm.py", "--steps", "12", "--write", "1"]),
    **{name: (2, ["irregular.py", name]) for name in ("fft", "spmv", "bfs", "bags")},
}


def quietest(trace, operation, times):
    """When `times` events of an operation, in a row, began and ended that took all PEs least."""
    numbers, texts = trace.labels
    found = trace.events[numbers == texts.index(operation)]
    began = [found["began"][found["of"] == pe].tolist() for pe in range(trace.n_pes)]
    spans = zip(map(min, *began), list(map(max, *began))[times:], strict=False)
    return min(spans, key=lambda span: span[1] - span[0])


def picture(name, operation, times):
    """Run and trace a program, and draw the best part of it for both themes."""
    n_pes, (path, *given) = OTHERS.get(name, (2, [f"{name}.py"]))
    with tempfile.TemporaryDirectory() as folder:
        run = [sys.executable, "-m", "gpushmem", "run", "--backend", "cpu", "--trace", folder]
        subprocess.run([*run, "-n", str(n_pes), HERE / path, *given], check=True)
        trace, shown = load(folder), Path(folder, "trace.html")
        page.write(trace, shown)
        began, ended = quietest(trace, operation, times)
        print(f"{name}: {(ended - began) / 1e6:.3f} ms")  # long: other programs ran, make it anew
        margin = (ended - began) // 20
        with sync_playwright() as started:
            browser = started.chromium.launch(executable_path=shutil.which("chromium"))
            for theme in ("light", "dark"):
                tab = browser.new_page(viewport=VIEWPORT, color_scheme=theme)
                tab.goto(shown.as_uri())
                tab.wait_for_selector("body[data-ready]")
                few = n_pes == 2  # with more, arrows would hide all else
                tab.evaluate("few => { trace.timeline.showArrows = few }", few)
                tab.add_script_tag(path=HERE / "svg_pen.js")
                shows = [began - margin, ended + margin, few]
                svg = tab.evaluate("shows => draw(...shows)", shows)
                (HERE / f"{name}-{theme}.svg").write_text(svg)


def main():
    """Make the pictures that are named, or all."""
    for name in sys.argv[1:] or PICTURES:
        picture(name, *PICTURES[name])


if __name__ == "__main__":
    main()
