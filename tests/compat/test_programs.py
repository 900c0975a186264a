"""Programs in the manner of NVIDIA's for nvshmem4py, unmodified, through the command line."""

import importlib
import importlib.util
import re
import socket
import subprocess
import sys
from pathlib import Path

import cffi
import pytest
from numba.cuda import types

from gpushmem.artifacts.fingerprint import fingerprint
from gpushmem.simt.grid import kernel_cache
from gpushmem.start.launch import local
from tests.bootstrap.launchers import ENV, SEARCH, mpirun, need_mpi4py
from tests.conftest import PLAIN, ROOT

PROGRAMS = Path(__file__).parent / "programs"


def at(text):
    """The line of ring.py that begins so, as reports name it."""
    lines = (PROGRAMS / "ring.py").read_text().splitlines()
    return f"ring.py:{1 + next(k for k, line in enumerate(lines) if line.strip().startswith(text))}"


PUT = f"{at('put_signal_block(')} in shift"


@pytest.fixture
def run(run_cli, tmp_path):
    def run(n, program, *args, options=()):
        words = ["run", "--as-nvshmem", "-n", str(n), *options]
        words += [PROGRAMS / program, tmp_path / "uid", *args]
        return run_cli(*words, timeout=150, cwd=tmp_path)

    return run


def all_done(done, n):
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"(\d) done", done.stdout)) == [str(pe) for pe in range(n)]


OBSERVED = {
    (): "",
    ("--check",): "",
    ("--trace", "trace"): "see what the PEs did",
    ("--stats",): "put_signal",
    ("--memory", "weak", "--seed", "3"): "",
}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            options,
            id="".join(options[:1]),
            marks=[pytest.mark.sweep] * (options[:1] in (("--stats",), ("--memory",))),
        )
        for options in OBSERVED
    ],
)
def test_a_ring(run, options):
    done = run(3, "ring.py", "ring", options=options)
    all_done(done, 3)
    assert "warning" not in done.stderr
    assert OBSERVED[options] in done.stderr


def test_kernels_and_hosts(run):
    done = run(3, "everything.py")
    all_done(done, 3)
    for dst in (16, 12):  # `get`, `reduce`
        told = f"{dst} elements, src 8: 8 are moved, as in nvshmem4py, and the other {dst - 8} are"
        assert done.stderr.count(f"in uneven: dst has {told} not written") == 3
    assert done.stderr.count("in uneven: dst has 6 elements, src 8: 6 are moved") == 3


def test_kernels_are_compiled_once_and_kept():
    """Their key knows the names of nvshmem4py, and cffi's object that makes pointers of arrays."""
    local.preload("cpu")  # it binds the names of gpushmem
    numba = importlib.import_module("gpushmem.compat.nvshmem.core.device.numba")
    bindings = importlib.import_module("gpushmem.compat.nvshmem.bindings.device.numba")
    int_p, ffi = bindings.int_p, cffi.FFI()

    def kernel(x, pe):
        numba.put(x, numba.get_peer_array(x, pe), pe)
        numba.reduce(0, x, x, "sum")
        bindings.int_put(ffi.from_buffer(x), ffi.from_buffer(x), 1, pe)
        int_p(ffi.from_buffer(x), 1, pe)

    assert fingerprint(kernel, (types.int32[::1], types.int64), {}, kernel_cache.machine())


def test_buffers(run):
    done = run(3, "buffers.py")
    all_done(done, 3)
    told = "are copied, as in nvshmem4py, and the other"
    assert done.stderr.count(f"put: dst has 8 bytes, src 64: 8 {told} 56 are lost") == 3
    assert done.stderr.count(f"get: dst has 16 bytes, src 8: 8 {told} 8 are not written") == 3
    assert done.stderr.count(told) == 6  # of longer targets of `put`, say, there are none


AT_START = """
import gpushmem
gpushmem.init()
from cuda.core import system
print(gpushmem.my_pe(), "done")
"""


@pytest.mark.parametrize(
    "variable",
    [pytest.param("GPUSHMEM_SIM", marks=pytest.mark.sweep), "GPUSHMEM_AS_NVSHMEM"],
)
def test_the_variable_is_set_for_the_launcher_and_without_one(run_cli, tmp_path, variable):
    """Their gpushmem is imported before numba.cuda is; nothing is said at the end."""
    script = tmp_path / "script.py"
    script.write_text(AT_START)
    env = {variable: "1"}
    all_done(run_cli("run", "-n", "2", script, env=env), 2)
    words = [sys.executable, script]
    env = PLAIN | {"PYTHONPATH": str(ROOT)} | env
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=150)
    all_done(done, 1)
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize(("option", "value"), [("--as-nvshmem", "strict"), ("--strict", "1")])
def test_a_launcher_with_the_variable(run_cli, tmp_path, option, value):
    """Options are added to it; each PE has a device, though its launcher has one."""
    words = "run", "-n", "2", option, PROGRAMS / "ring.py", tmp_path / "uid", "short"
    done = run_cli(*words, env={"GPUSHMEM_AS_NVSHMEM": value})
    assert done.returncode == 1
    assert f"{PUT}: dst has 1000 elements, src 1024: pass" in done.stderr


def test_other_backends_are_an_error(tmp_path):
    env = PLAIN | {"PYTHONPATH": str(ROOT), "GPUSHMEM_BACKEND": "null"}
    words = [sys.executable, "-W", "ignore", "-c", IMPORTED]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=150)
    assert (
        "null was chosen, because GPUSHMEM_BACKEND is set: set GPUSHMEM_BACKEND=cpu" in done.stderr
    )


def test_the_port_of_a_unique_id_is_kept():
    nv = importlib.import_module("gpushmem.compat.nvshmem.core")
    port = int.from_bytes(bytes(nv.get_unique_id()._data.view("u1").reshape(-1)[4:6]), "big")
    with pytest.raises(OSError, match="in use"), socket.socket() as other:
        other.bind(("127.0.0.1", port))
    nv.init_fini._reserved.pop(port).close()


def test_a_deadlock_is_reported_with_the_lines_of_the_program(run):
    done = run(2, "ring.py", "stuck")
    assert done.returncode
    assert re.search(r"signal_wait_until: signal\[0\] >= 2, sees 1", done.stderr)
    assert re.search(rf"uint64, .* allocated at {at('signal = ')}", done.stderr)
    assert f"last written at {PUT}" in done.stderr
    assert "Wait cycle: PE 0 -> PE 1 -> PE 0" in done.stderr


def test_the_checker_names_lines_of_the_program(run):
    done = run(2, "ring.py", "early", options=("--check",))
    assert done.returncode == 66, done.stderr
    assert f"put_signal_block writes it at {PUT}" in done.stderr
    assert f"`dst[0]` on PE 0 (float32, shape (1024,), allocated at {at('dst = ')})" in done.stderr


def test_sizes_that_differ_are_told_once_a_line(run):
    done = run(2, "ring.py", "short")
    all_done(done, 2)
    told = re.findall(rf"{PUT}: dst has 1000 elements, src 1024: 1000 are moved", done.stderr)
    assert len(told) == 2  # one of each PE, of 128 threads


def test_strict_makes_them_errors(run):
    done = run(2, "ring.py", "short", options=("--strict",))
    assert done.returncode == 1
    assert f"{PUT}: dst has 1000 elements, src 1024: pass" in done.stderr


def test_strict_alone_is_a_usage_error(run_cli):
    done = run_cli("run", "--strict", PROGRAMS / "ring.py")
    assert done.returncode == 2
    assert "--strict: add --as-nvshmem" in done.stderr


def test_ranks_of_mpi(run_cli):
    need_mpi4py()
    mpirun()
    words = "run", "--as-nvshmem", "--hosts", "localhost:2", PROGRAMS / "with_mpi.py", "mpi"
    env = ENV | {"PATH": SEARCH, "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    all_done(run_cli(*words, env=env, timeout=150), 2)


def test_ranks_that_are_no_pes_are_told_what_to_do(run_cli):
    need_mpi4py()
    done = run_cli("run", "--as-nvshmem", "-n", "2", PROGRAMS / "with_mpi.py", "emulated_mpi")
    assert done.returncode == 1
    assert "gpushmem run --as-nvshmem --hosts localhost:2" in done.stderr


def test_processes_that_a_program_starts_find_each_other(tmp_path):
    """Without a launcher: each is told its rank, and the way to the unique id."""
    words = sys.executable, PROGRAMS / "ring.py", tmp_path / "uid", "ring"
    base = PLAIN | {"PYTHONPATH": str(ROOT), "GPUSHMEM_AS_NVSHMEM": "1", "WORLD_SIZE": "2"}
    started = [
        subprocess.Popen(
            words, env=base | {"RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=100) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert [out for out, _ in said] == ["0 done\n", "1 done\n"], said
    assert [process.returncode for process in started] == [0, 0], said


IMPORTED = """
import gpushmem.compat.nvshmem.core as nv
from gpushmem.compat.cuda_core import Device
from gpushmem.compat.nvshmem.core.device.numba import my_pe, put
from numba import cuda

@cuda.jit
def send(dst, src):
    put(dst, src, my_pe())

nv.init(Device(), nv.get_unique_id(), 0, 1, initializer_method="uid")
stream = Device().create_stream()
src, dst = nv.array(4), nv.array(4)
src[:] = 7
send[1, 1, stream](dst, src)
stream.sync()
print(dst.sum())
"""


def test_a_program_may_import_the_package_itself():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IMPORTED], env=PLAIN, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "28.0\n", done.stderr


@pytest.mark.parametrize("asked", ["0", "1"])
def test_gpus_get_nvidias_package(asked):
    pytest.importorskip("nvshmem")
    code = (
        "import nvshmem.core, cuda.core; print(nvshmem.core.__name__, cuda.core.Device.__module__)"
    )
    backend = "nvshmem" if asked == "1" else "cpu"
    env = PLAIN | {"GPUSHMEM_AS_NVSHMEM": asked, "GPUSHMEM_BACKEND": backend}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=150)
    assert done.stdout.split() == ["nvshmem.core", "cuda.core._device"], done.stderr


def test_a_unique_id_that_was_not_shared(run_cli, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, nvshmem.core as nv\n"
        "rank, size = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])\n"
        "uid = nv.get_unique_id(empty=bool(rank))\n"
        "nv.init(uid=uid, rank=rank, nranks=size, initializer_method='uid')\n"
    )
    done = run_cli("run", "--as-nvshmem", "-n", "2", script)
    assert done.returncode == 1
    assert "the unique id of rank 1 is empty: one rank calls get_unique_id()" in done.stderr


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs PyTorch")
def test_tensors(run):
    all_done(run(2, "tensors.py"), 2)
