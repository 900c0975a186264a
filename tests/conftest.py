"""Fixtures: real PEs, the command as a user types it, and who has the machine."""

import faulthandler
import fcntl
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from gpushmem.backends import selection
from gpushmem.gc_control import OBJECTS

if selection.choose()[0] != "cpu":  # where there is a GPU, who wants tests of it asks for them
    os.environ.setdefault("GPUSHMEM_BACKEND", "cpu")

# What tests compile is kept for the tests that follow, and not among the user's own.
if not os.environ.get("GPUSHMEM_CACHE_DIR"):
    os.environ["GPUSHMEM_CACHE_DIR"] = tempfile.mkdtemp(prefix=f"gpushmem-tests-{os.getpid()}-")

# Each of hundreds of processes would compile the sources again, for a second.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    sys.dont_write_bytecode = False

# Half a minute for each dtype and architecture: who tests it asks for it.
os.environ.setdefault("GPUSHMEM_CUBLASDX", "0")

# Most kernels of tests are launched once; see the fixture `tier`.
os.environ.setdefault("GPUSHMEM_TIER", "fast")

# On a machine that is busy, compiling may take long enough to be told of.
os.environ.setdefault("GPUSHMEM_PROGRESS", "0")

from tests import gpus, huge, pes, tiers
from tests.forks import Forks
from tests.later import later, load_nvshmem4py

load_nvshmem4py()
if pes.ON_GPUS:
    gpus.prepare()
ROOT = Path(__file__).parent.parent
# What children import from: this repository, and what the user has added.
PATHS = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
# Unbuffered output would mix the PEs' lines in their middle.
PLAIN = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
FORKED = () if pes.ON_GPUS else ("run", "compile", "explain")  # commands; see `run_cli`


def pytest_unconfigure():
    if f"gpushmem-tests-{os.getpid()}-" in os.environ["GPUSHMEM_CACHE_DIR"]:
        shutil.rmtree(os.environ["GPUSHMEM_CACHE_DIR"], ignore_errors=True)


def pytest_configure(config):
    pes.CHECKED = config.getoption("gpushmem_check", default=False)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in what a shell starts with "&"
        signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.set_threshold(OBJECTS, 10, 20)  # compiling makes many objects, few of which are garbage


def below_tests(path):
    """A test file as `tiers` names it."""
    return Path(os.path.relpath(path, ROOT / "tests")).as_posix()


def pytest_ignore_collect(collection_path, config):
    """Do not even import files without a test of this tier: some import large packages."""
    if "not slow" in config.getoption("markexpr") and collection_path.suffix == ".py":
        return True if tiers.SLOW.get(below_tests(collection_path)) == {"*": ""} else None
    return None


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items):
    """Mark the tests of the slow tier; and, on GPUs, those of what every backend does."""
    for item in items:
        if tiers.is_slow(below_tests(item.path), item.name) and not item.get_closest_marker(
            "sweep"
        ):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: below_tests(item.path).startswith(tiers.LARGE))
    if pes.BACKEND != "cpu":
        gpus.mark(items, ROOT / "tests")


@pytest.fixture(autouse=True, scope="module")
def tier(request):
    """How kernels of this module's tests are compiled."""
    with pytest.MonkeyPatch.context() as patch:
        if below_tests(request.path).startswith(tiers.OPTIMISED):
            patch.setenv("GPUSHMEM_TIER", "full")
        yield


def settings_here():
    return {name: text for name, text in os.environ.items() if name.startswith("GPUSHMEM_")}


@pytest.fixture(autouse=True)
def settings_are_given_back():
    """A command that is run in this process leaves later tests their settings."""
    before = settings_here()
    yield
    assert settings_here() == before


@pytest.fixture(autouse=True, scope="module")
def loaded(request):
    """What a module's tests have `later` is there: `like=torch` and PyTorch's compiler want it."""
    for name, value in [*vars(request.module).items()]:
        if isinstance(value, later):
            setattr(request.module, name, value.load())


@pytest.fixture(autouse=True, scope="session")
def threads_of_xdist():
    """A worker of xdist has a thread that waits for orders: it moves nothing of a PE's."""
    from gpushmem import waiting_threads

    others = {thread.ident for thread in threading.enumerate()} - {threading.main_thread().ident}
    waiting_threads._helpers.update(others)


@pytest.fixture(autouse=True, scope="session")
def with_the_checker():
    """If jobs are checked, all that is compiled in this process is compiled with the checker.

    So all is recorded, also what tests with the mark `gpushmem_check(False)` do.
    """
    if not pes.CHECKED:
        yield
        return
    from gpushmem.check import command

    with command.recorded():
        yield


@pytest.fixture(autouse=True, scope="module")
def set_aside():
    """Earlier modules' objects are set aside: collections, in PEs forked later too, are quick.

    What has been compiled grows the process, so its memory is put into large pages now and then.
    """
    gc.collect()
    gc.freeze()
    if time.monotonic() > _collapsed[0] + SELDOM:
        huge.collapse()
        _collapsed[0] = time.monotonic()


SELDOM = 10.0  # seconds; it takes a quarter of one
_collapsed = [-SELDOM]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """With several workers: a test marked `quiet` has the machine for itself.

    Others share it. Who waits for it stands in the door, so that nobody overtakes. Waiting is not
    of the test's own time, which `timeout` limits: the test before may be a long one.
    """
    if not hasattr(item.config, "workerinput"):  # no worker of xdist
        return (yield)
    folder = Path(os.environ["GPUSHMEM_CACHE_DIR"])  # which the workers have from their controller
    how = fcntl.LOCK_EX if item.get_closest_marker("quiet") else fcntl.LOCK_SH
    with open(folder / "door", "w") as door, open(folder / "room", "w") as room:
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, how)
        fcntl.flock(door, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            fcntl.flock(room, fcntl.LOCK_UN)  # a child that outlives the test may have a copy


def pytest_runtest_setup(item):
    if item.get_closest_marker("timeout"):  # it may take longer than `faulthandler_timeout`
        faulthandler.cancel_dump_traceback_later()


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def browser():
    """Chromium, without a window."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with playwright.sync_playwright() as started:
        yield started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture
def run_pes(run_pes):
    """The plugin's, for the backend and the nodes that the environment names.

    A heap is of `pes.DEFAULT_HEAP` bytes.
    """

    def run(function, n_pes, *args, timeout=150, heap_size=pes.DEFAULT_HEAP):
        __tracebackhide__ = True
        how = {"timeout": timeout, "heap_size": heap_size, "backend": pes.BACKEND}
        with pes.job_of(n_pes):
            return run_pes(pes.call, n_pes, function, *args, **how)

    return run


@pytest.fixture
def on_nodes(monkeypatch):
    """`on_nodes(n)`: jobs that start from now on are on `n` nodes."""
    from gpushmem.start.launch import local

    yield lambda n: monkeypatch.setattr(pes, "NODES", n)
    local.preload(pes.BACKEND)  # what this process compiles is for one node again


@pytest.fixture
def alone():
    """One PE: this process."""
    import gpushmem as shmem

    if pes.ON_GPUS:
        gpus.need()
    with pes.on_nodes(1):
        shmem.init(heap_size="16M")
    yield
    shmem.finalize()


@pytest.fixture(scope="session")
def forks():
    """A process that has loaded what PEs need, and forks commands."""
    forks = Forks({**PLAIN, "PYTHONPATH": PATHS}, ROOT)
    yield forks
    forks.close()


@pytest.fixture(scope="session")
def run_cli(forks):
    """`run_cli(*args)`: run the `gpushmem` command; see `cli`.

    It is a process of its own, but where a second of importing can be saved: `run`, `compile` and
    `explain`, with nothing special about the environment, run in copies of one that has done it.
    """

    def run(*args, timeout=150, code=None, cwd=None, env=None, stdin=None):
        if args[0] not in FORKED or env or stdin:
            return cli(*args, timeout=timeout, code=code, cwd=cwd, env=env, stdin=stdin)
        return ended(args, *forks.run(args, cwd or ROOT, timeout), timeout, code)

    return run


def cli(*args, timeout=150, code=None, cwd=None, env=None, stdin=None):
    """Run the command, return its CompletedProcess; `code` is the exit code it must have."""
    process = start_cli(*args, cwd=cwd, env=env, stdin=subprocess.PIPE if stdin else None)
    try:
        out, err = process.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return ended(args, None, *process.communicate(), timeout, code)
    return ended(args, process.returncode, out, err, timeout, code)


def ended(args, got, out, err, timeout, code):
    """How the command ended; fails where it took too long, `got` is None, or with another code."""
    if got is None:
        pytest.fail(f"gpushmem {args} still ran after {timeout} s\nstdout:\n{out}\nstderr:\n{err}")
    if code is not None and got != code:
        pytest.fail(f"exit code {got}, not {code}\nstdout:\n{out}\nstderr:\n{err}")
    return subprocess.CompletedProcess(args, got, out, err)


def start_cli(*args, cwd=None, env=None, stdin=None):
    """Start the command in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "gpushmem", *map(str, args)], cwd=cwd or ROOT, text=True,
        errors="surrogateescape", env={**PLAIN, "PYTHONPATH": PATHS, **(env or {})},
        start_new_session=True, stdin=stdin or subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
