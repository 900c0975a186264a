"""The page of a trace: the numbers in it, and what a browser makes of them."""

import base64
import gzip
import html
import json
import re
import subprocess
import sys

import numpy as np
import pytest

from gpushmem.errors import ArgumentError
from gpushmem.trace import load, show
from gpushmem.trace.analysis import STATES, Analysis
from gpushmem.trace.page import TYPES, page, place
from gpushmem.trace.reading import OPEN
from gpushmem.trace.ring import KERNEL
from gpushmem.trace.summary import summary
from tests.conftest import PLAIN, ROOT

pytestmark = pytest.mark.cpu_backend

PROGRAM = """
import time
import gpushmem as shmem
from numba import cuda

@shmem.jit
def shift(dst, src, signal, round):
    right = (shmem.my_pe() + 1) % shmem.n_pes()
    shmem.put_signal_block(dst, src, signal, round, shmem.SIGNAL_SET, right)
    shmem.signal_wait_until(signal, shmem.CMP_GE, round)
    cuda.syncthreads()

shmem.init(heap_size="16M")
src, dst = shmem.full(1000, shmem.my_pe(), dtype="float32"), shmem.empty(1000, dtype="float32")
signal = shmem.zeros(1, dtype="uint64")
shift[1, 4](dst, src, signal, 1)
shmem.barrier_all()
for k in range(2, 12):
    if shmem.my_pe() == 1:
        time.sleep(0.02)
    shift[1, 4](dst, src, signal, k)
    shmem.synchronize()
shmem.free(dst)
shmem.finalize()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, run_cli):
    """The trace of PROGRAM on three PEs."""
    path = tmp_path_factory.mktemp("page")
    (path / "program.py").write_text(PROGRAM)
    run_cli(
        "run", "--backend", "cpu", "--trace", path / "out", "-n", 3, path / "program.py",
        code=0, timeout=100,
    )  # fmt: skip
    return path / "out"


@pytest.fixture(scope="module")
def data(folder):
    """What is in the page, as the page reads it: the meta data, with columns as arrays."""
    text = page(load(folder), "a <title>")
    meta = json.loads(re.search(r'<script id="meta"[^>]*>(.*?)</script>', text, re.DOTALL)[1])
    packed = re.search(r'<script id="columns"[^>]*>(.*?)</script>', text, re.DOTALL)[1]
    columns = gzip.decompress(base64.b64decode(packed))
    return meta | {
        name: np.frombuffer(columns, TYPES[kind], n, offset)
        for name, (kind, offset, n) in meta["columns"].items()
    }


def test_the_page_needs_nothing_else(folder):
    text = page(load(folder), "trace")
    assert not re.search(r'(src|href)="|@import|https?://(?!www\.w3\.org)', text)


def test_all_events_are_there_each_in_a_lane_of_its_own_pe(folder, data):
    trace = load(folder)
    analysis, events = Analysis(trace), trace.events
    assert data["title"] == "a <title>"
    assert len(data["began"]) == len(events)
    lane, tracks = place(trace)
    assert data["tracks"] == tracks
    order = np.lexsort((events["began"], lane))
    np.testing.assert_array_equal(data["began"], events["began"][order])
    np.testing.assert_array_equal(data["ns"], (analysis.ended - events["began"])[order])
    np.testing.assert_array_equal(data["open"], events["ended"][order] == OPEN)
    assert -1 <= data["thread"].min() < data["thread"].max() < 4
    labels = [data["labels"][k] for k in data["label"]]
    assert labels == [trace.label(events[k]) for k in order]
    lines = [data["sites"][k] for k in data["site"]]
    assert lines == [trace.site(events["of"][k], events["site"][k]) for k in order]
    pes = [tracks[data["track"][k]]["pe"] for k in data["lane"]]
    assert pes == events["of"][order].tolist()
    for low, high in zip(data["lane_starts"], data["lane_starts"][1:], strict=False):
        assert high > low
        ends = (data["began"] + data["ns"])[low:high]
        assert np.all(data["began"][low + 1 : high] >= ends[:-1]), "events of a lane overlap"


def test_arrows_lead_from_the_put_to_the_wait(data):
    name = [data["labels"][k] for k in data["label"]]
    pe = [data["tracks"][data["track"][k]]["pe"] for k in data["lane"]]
    seen = 0
    for event, by in zip(data["wait_event"], data["wait_by"], strict=True):
        if name[event] == "signal_wait_until":
            assert name[by] == "put_signal_block"
            assert pe[event] == (pe[by] + 1) % 3
            assert data["by"][event] == by
            seen += 1
    assert seen >= 15


def test_time_bytes_and_heap_are_those_of_the_summary(folder, data):
    numbers = summary(load(folder))
    assert data["summary"] == json.loads(json.dumps(numbers))
    starts = data["state_starts"]
    for pe, row in enumerate(numbers["pes"]):
        part = slice(starts[pe], starts[pe + 1])
        spent = [data["state_ns"][part][data["state"][part] == state].sum() for state in STATES]
        assert spent == [
            row[name] for name in ("computing", "moving", "waiting", "compiling", "idle")
        ]
        assert sum(spent) == numbers["ns"]
        assert np.all(np.diff(data["state"][part].astype(int)) != 0)
    assert data["moved"][-1] == pytest.approx(sum(row["sent"] for row in numbers["pes"]))
    assert data["heap"].max() == 2 * 4000 + 8
    assert data["heap"][-1] == 4000 + 8  # `dst` is freed


def test_the_command_writes_the_page(folder, run_cli, tmp_path):
    done = run_cli("trace", "open", "--no-browser", folder, code=0)
    assert str(folder / "trace.html") in done.stdout
    assert (folder / "trace.html").read_text("utf-8") == page(load(folder), "out")
    run_cli("trace", "open", "--perfetto", "-o", tmp_path / "x.pftrace", folder, code=0)
    assert (tmp_path / "x.pftrace").stat().st_size > 1000
    failed = run_cli("trace", "open", "--no-browser", "-o", tmp_path / "no" / "x", folder, code=1)
    assert "No such file" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_what_a_notebook_shows(folder):
    shown = show(folder, height=333)._repr_html_()
    frame = re.fullmatch(r'<iframe srcdoc="([^"]*)" style="[^"]*height: 333px[^"]*" .*>', shown)
    assert html.unescape(frame[1]) == page(load(folder), "out")
    with pytest.raises(ArgumentError, match="has no trace"):
        show(folder / "none")


# As a user's process: the tests' own has launched kernels that are not traced.
SPAWN = """
import sys
import gpushmem as shmem

def ring():
    exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), {})

def waits_for_ever():
    @shmem.jit
    def wait(signal):
        shmem.signal_wait_until(signal, shmem.CMP_GE, 1)

    shmem.init(heap_size="16M")
    wait[1, 1](shmem.zeros(1, dtype="uint64"))
    shmem.synchronize()

shmem.spawn(ring, 3, trace="ring")
for job in ((waits_for_ever, 2, "hangs"), (ring, 1, "none", "null"), (ring, 1, "file/x")):
    function, n_pes, trace, *backend = job
    try:
        shmem.spawn(function, n_pes, trace=trace, backend=backend[0] if backend else "cpu")
    except shmem.ShmemError as error:
        print(f"{type(error).__name__}: {error}")
"""


def test_spawn_traces_what_its_pes_do(tmp_path):
    (tmp_path / "ring").mkdir()
    (tmp_path / "ring" / "pe7.ring").write_bytes(b"of a job before")
    (tmp_path / "file").touch()
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "spawn.py").write_text(SPAWN)
    done = subprocess.run(
        [sys.executable, "spawn.py", "program.py"], cwd=tmp_path, capture_output=True, text=True,
        env={**PLAIN, "PYTHONPATH": str(ROOT)}, timeout=100, check=True,
    )  # fmt: skip
    trace = load(tmp_path / "ring")
    assert trace.n_pes == 3
    kernels = trace.events[trace.events["kind"] == KERNEL]
    assert sum(trace.label(event) == "shift" for event in kernels) == 3 * 11
    assert "Deadlock: " in done.stdout
    assert "See what the PEs did: gpushmem trace open hangs" in done.stdout
    assert "signal_wait_until" in load(tmp_path / "hangs").labels[1]
    assert "ArgumentError: spawn: the null backend records nothing" in done.stdout
    assert not (tmp_path / "none").exists()
    assert "ArgumentError: no trace can be written to file/x: Not a directory" in done.stdout


# --- in a browser


@pytest.fixture
def opened(browser, folder, tmp_path):
    """The page, open; an error in it fails the test."""
    path = tmp_path / "trace.html"
    path.write_text(page(load(folder), "trace"), "utf-8")
    errors = []
    tab = browser.new_page(viewport={"width": 1200, "height": 900})
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on("request", lambda request: errors.append(request.url))
    tab.goto(path.as_uri())
    tab.wait_for_selector("body[data-ready]", timeout=20_000)
    yield tab
    asked = [each for each in errors if not each.startswith((path.as_uri(), "data:", "blob:"))]
    assert not asked


def test_a_browser_reads_what_was_put_into_the_page(opened, data):
    for name in ("began", "ns", "label", "lane", "wait_event", "state_ns"):
        there = opened.evaluate("(name) => Array.from(trace.data[name])", name)
        np.testing.assert_array_equal(there, data[name], name)
    opened.keyboard.press("0")
    opened.wait_for_function("!document.querySelector('#panel0 .span')")
    rows = opened.locator("#panel0 tbody tr")
    assert rows.count() == 3
    pe = data["summary"]["pes"][0]
    assert f"{pe['waiting'] / 1e6:.3g} ms" in rows.nth(0).inner_text()
    share = pe["waiting"] / (data["summary"]["ns"] - pe["compiling"])
    assert f"ms · {share:.0%}" in rows.nth(0).inner_text(), "of the time without compiling"


def rounded(rows, *names):
    """Rows with their times rounded, in an order that does not depend on these."""
    same = [{k: round(v) if k in names else v for k, v in row.items()} for row in rows]
    return sorted(same, key=lambda row: repr([v for k, v in row.items() if k not in names]))


def test_what_is_in_view_is_summed_like_the_whole(opened, data):
    """All but its first nanosecond, and it is not the whole any more; and one kernel alone."""
    wanted = data["summary"]
    found = opened.evaluate("trace.within(trace.data, 0.4, trace.data.ns_all)")
    for name in ("kernels", "lines", "ranges"):
        assert rounded(found[name], "ns") == rounded(wanted[name], "ns"), name
    assert rounded(found["waits"], "ns") == rounded(wanted["waits"], "ns")
    assert found["sent"] == wanted["sent"]
    states = "computing", "moving", "waiting", "compiling", "idle"
    for ours, theirs in zip(found["pes"], wanted["pes"], strict=True):
        assert {k: round(v) for k, v in ours.items()} == {k: theirs[k] for k in ours}
    kernel = data["categories"].index("kernel")
    k = int(np.flatnonzero(data["category"] == kernel)[5])
    began, ended = float(data["began"][k]), float(data["began"][k] + data["ns"][k])
    found = opened.evaluate("([a, b]) => trace.within(trace.data, a, b)", [began, ended])
    assert sum(found["pes"][0][name] for name in states) == pytest.approx(ended - began)
    own = [row for row in found["kernels"] if row["pe"] == data["tracks"][
        data["track"][data["lane"][k]]]["pe"]]  # fmt: skip
    assert [row["ns"] for row in own if row["times"] == 1] == [pytest.approx(ended - began)]


def test_the_tables_are_of_what_is_in_view(opened, data):
    opened.click("#tabs >> text=Kernels")
    opened.keyboard.press("0")
    shown = opened.locator(".panel:not([hidden])")
    shown.locator(".span").wait_for(state="detached")
    whole = shown.inner_text()
    k = int(np.flatnonzero(data["category"] == data["categories"].index("kernel"))[5])
    opened.evaluate("(k) => trace.timeline.select(k, true)", k)
    shown.locator(".span").wait_for()
    assert shown.inner_text() != whole
    assert shown.locator("tr.marked").count() == 1, "the selected kernel"


def test_keys_work_wherever_the_focus_is(opened):
    """Not in a field where one types; Escape closes the help first."""
    opened.evaluate("document.activeElement.blur()")
    opened.keyboard.press("0")
    span = "trace.timeline.to - trace.timeline.from"
    whole = opened.evaluate(span)
    opened.keyboard.press("+")
    assert opened.evaluate(span) < whole
    opened.click("#expand")
    opened.keyboard.press("n")
    opened.keyboard.press("?")
    assert opened.is_visible("#keys")
    opened.keyboard.press("Escape")
    assert not opened.is_visible("#keys")
    assert opened.evaluate("trace.timeline.selected") >= 0
    opened.keyboard.press("Escape")
    assert opened.evaluate("trace.timeline.selected") == -1
    opened.keyboard.press("/")
    opened.keyboard.type("n+0")
    assert opened.input_value("#query") == "n+0"
    assert opened.evaluate(span) < whole


def test_nothing_before_the_job_or_after_it_is_shown(opened, data):
    opened.keyboard.press("0")
    for _ in range(3):
        opened.keyboard.press("a")
    assert opened.evaluate("trace.timeline.from") == 0
    opened.evaluate("trace.timeline.show(-1e9, trace.data.ns_all + 1e9)")
    ends = opened.evaluate("[trace.timeline.from, trace.timeline.to]")
    assert ends == [0, data["ns_all"]]


def test_nothing_is_said_to_move_where_nothing_does(opened, data):
    """Small numbers remain where large ones have been added and taken away."""
    idle = opened.evaluate(
        """() => {
            const { data, timeline } = trace, at = data.moved_at, all = data.moved.at(-1);
            data.moved.forEach((each, k) => { data.moved[k] = each + 1e-14 * all * (k % 2); });
            const alike = (k) => Math.abs(data.moved[k] - data.moved[k - 1]) < 1e-13 * all;
            const k = at.findIndex((each, k) => k && alike(k) && each > at[k - 1]);
            return [k, timeline.moved(at[k - 1], at[k]), timeline.moved(0, data.ns_all)];
        }"""
    )
    assert idle[0] > 0
    assert idle[1] == 0
    assert idle[2] > 0


def test_arrows_leave_room_and_all_of_an_event_are_drawn_under_the_pointer(opened, data):
    drawn = """() => {
        const t = trace.timeline, ends = [], arrow = t.arrow;
        t.arrow = (x0, y0, x1, y1, alpha) => ends.push([x1, y1, alpha]);
        t.paint();
        t.arrow = arrow;
        return ends;
    }"""
    opened.keyboard.press("0")
    faint = opened.evaluate(drawn)
    assert all(alpha < 0.5 for *_, alpha in faint)
    assert len({(int(x // 16), y) for x, y, _ in faint}) == len(faint)
    event = int(data["wait_event"][0])
    ours = int(((data["wait_event"] == event) | (data["wait_by"] == event)).sum())
    opened.evaluate("(k) => trace.timeline.point(k)", event)
    assert sum(alpha == 1 for *_, alpha in opened.evaluate(drawn)) == ours


def test_a_wait_is_found_selected_and_followed_by_keys(opened, data):
    opened.fill("#query", "signal_wait")
    wanted = sum(data["labels"][k] == "signal_wait_until" for k in data["label"])
    assert opened.inner_text("#found") == f"{wanted} events"
    opened.focus("#view")
    opened.keyboard.press("n")
    assert "signal_wait_until on PE" in opened.inner_text("#detail")
    assert "program.py:10 in shift" in opened.inner_text("#detail")
    opened.keyboard.press("f")
    assert opened.inner_text("#detail").startswith("put_signal_block on PE")
    opened.keyboard.press("Escape")
    assert opened.inner_text("#detail") == ""
    assert opened.inner_text("#found") == ""


def test_the_longest_wait_is_shown_where_the_table_leads(opened, data):
    opened.click("#tab1")
    opened.locator("#panel1 tbody tr").nth(0).locator("button").nth(0).click()
    row = data["summary"]["waits"][0]
    began, end = opened.evaluate("[trace.timeline.from, trace.timeline.to]")
    assert began <= row["longest_at"] <= row["longest_at"] + row["longest_ns"] <= end
    assert end - began <= 2 * row["longest_ns"]
    opened.wait_for_function(
        "(from) => location.hash.includes(`from=${Math.round(from)}`)", arg=began
    )
    link = opened.url
    opened.goto("about:blank")
    opened.goto(link)
    opened.wait_for_selector("body[data-ready]")
    there = opened.evaluate("[trace.timeline.from, trace.timeline.to]")
    np.testing.assert_allclose(there, [began, end], atol=1)


def test_the_canvas_shows_the_wait_in_its_colour(opened, data):
    """The picture itself: at the middle of the longest wait, in its row, is the colour of waits."""
    k = int(data["wait_event"][0])
    opened.evaluate("(k) => trace.timeline.select(k, true)", k)
    opened.evaluate("trace.timeline.select(-1)")
    opened.wait_for_timeout(200)
    drawn, wanted = opened.evaluate(
        """(k) => {
            const t = trace.timeline, ratio = devicePixelRatio;
            const x = t.xOf(t.data.began[k] + t.data.ns[k] * 0.9);
            const y = t.yOf(k) - t.view.scrollTop - 5;
            const pixel = t.pen.getImageData(x * ratio, y * ratio, 1, 1).data;
            const meets = t.data.categories[t.data.category[k]] === "meet";
            t.pen.fillStyle = t.colour(meets ? "meet" : "waiting");
            return [Array.from(pixel).slice(0, 3), t.pen.fillStyle];
        }""",
        k,
    )
    assert drawn == [int(wanted[k : k + 2], 16) for k in (1, 3, 5)]


def test_a_notebook_shows_it_in_a_frame(browser, folder, data):
    tab = browser.new_page()
    errors = []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.set_content(show(folder)._repr_html_())
    inside = tab.frame_locator("iframe")
    inside.locator("body[data-ready]").wait_for(timeout=20_000)
    inside.locator("#view").press("+")
    tab.wait_for_timeout(500)
    assert f"{len(data['began'])} events" in inside.locator("#facts").inner_text()
    assert not errors
