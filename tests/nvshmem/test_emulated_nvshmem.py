"""The stand-in for NVSHMEM's functions, by real nvshmem.core, between processes."""

import functools
import subprocess
import sys

import numpy as np
import pytest

from tests.nvshmem import emulation
from tests.nvshmem.emulation import pes
from tests.nvshmem.emulation.driver import view
from tests.nvshmem.emulation.errors import EmulationError

pytestmark = pytest.mark.skipif(emulation.missing() is not None, reason=str(emulation.missing()))

N = 8
BYTES = N * 4

SMALL = {"NVSHMEM_SYMMETRIC_SIZE": "64M", "NVSHMEM_CUMEM_GRANULARITY": 2 << 20}


def job(function):
    """Make `function(nv, stream, me, n)` a PE's program, from init to finalize."""

    @functools.wraps(function)
    def program(*args):
        import nvshmem.core as nv

        _, stream = pes.init()
        result = function(nv, stream, nv.my_pe(), nv.n_pes(), *args)
        nv.finalize()
        assert nv.init_status() == nv.InitStatus.STATUS_NOT_INITIALIZED
        return result

    return program


def array(nv, values, dtype=np.int32):
    """Return a symmetric buffer with these values in it on all PEs, and a view of it."""
    from nvshmem import bindings

    values = np.asarray(values, dtype)
    buffer = nv.buffer(values.nbytes)
    seen = view(buffer.handle, values.size, dtype)
    seen[:] = values
    bindings.barrier_all()  # nobody puts before that
    return buffer, seen


@job
def ring(nv, stream, me, n):
    src, _ = array(nv, 1000 * me + np.arange(N))
    dst, seen = array(nv, np.full(N, -1))
    flag, count = array(nv, [0], np.uint64)
    left, right = (me - 1) % n, (me + 1) % n
    nv.put_signal(dst, src, flag, 5, nv.SignalOp.SIGNAL_ADD, right, stream=stream)
    nv.signal_wait(flag, 5, nv.ComparisonType.CMP_EQ, stream=stream)
    assert seen.tolist() == (1000 * left + np.arange(N)).tolist()
    assert nv.signal_fetch(flag) == count[0] == 5
    nv.barrier_all(stream=stream)
    nv.get(dst, src, right, stream=stream)
    assert seen[1] == 1000 * right + 1
    nv.barrier_all(stream=stream)
    nv.put(dst, src, right, stream=stream)
    nv.quiet(stream=stream)
    nv.barrier(nv.Teams.TEAM_WORLD, stream=stream)
    assert seen[1] == 1000 * left + 1
    for buffer in (src, dst, flag):
        nv.free(buffer)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_puts_gets_and_signals(n):
    pes.run(n, ring)


@job
def peers(nv, stream, me, n):
    buffer, _ = array(nv, [me])
    found = []
    for pe in range(n):
        try:
            other = nv.get_peer_buffer(buffer, pe)
        except nv.NvshmemError:
            found.append(None)
        else:
            found.append(int(view(other.handle, 1, np.int32)[0]))
            assert int(other.handle) - int(buffer.handle) == (pe - me) * (1 << 26)
    teams = [nv.team_n_pes(team) for team in (0, 1, 2, 3, 4)]
    nv.barrier_all(stream=stream)
    return found, teams, int(buffer.handle), int(nv.init_status())


def test_addresses_of_peers():
    (found, teams, first, status), (_, _, second, _) = pes.run(2, peers, env=SMALL)
    assert (found, teams, status) == ([0, 1], [2, 2, 2, 1, 1], 2)
    assert first != second, "an address means nothing to another PE"


def test_pretended_nodes_and_a_shared_device():
    env = {**SMALL, "EMULATION_NODE_PES": 2, "EMULATION_DEVICES": 1}
    env["EMULATION_MPS"] = 0
    results = pes.run(4, peers, env=env)
    assert [found for found, *_ in results] == [[0, 1, None, None]] * 2 + [[None, None, 2, 3]] * 2
    assert {tuple(teams) for _, teams, *_ in results} == {(4, 2, 2, 2, 2)}
    assert {status for *_, status in results} == {3}


@job
def collectives(nv, stream, me, n):
    from nvshmem import bindings

    world, handle = nv.Teams.TEAM_WORLD, int(stream.handle)
    src, _ = array(nv, 100 * me + np.arange(2 * n), np.float32)
    dst, seen = array(nv, np.full(2 * n * n, -1), np.float32)
    all_of = 100 * np.arange(n)[:, None] + np.arange(2 * n)

    def run(name, count, *root):
        seen[:] = -1
        bindings.barrier_all()
        function = getattr(bindings, f"float_{name}_on_stream")
        function(world, int(dst.handle), int(src.handle), count, *root, handle)
        return seen[seen >= 0].tolist()

    assert run("fcollect", 2 * n) == all_of.ravel().tolist()
    assert run("broadcast", 2 * n, n - 1) == all_of[n - 1].tolist()
    assert run("alltoall", 2) == all_of[:, 2 * me : 2 * me + 2].ravel().tolist()
    assert run("sum_reduce", 2 * n) == all_of.sum(0).tolist()
    assert run("max_reduce", 2) == all_of[-1, :2].tolist()
    assert run("min_reducescatter", 2) == all_of[0, 2 * me : 2 * me + 2].tolist()
    seen[:] = 9
    nv.collective_on_buffer("fcollect", world, dst, src, dtype="float", stream=stream)
    assert seen.tolist() == all_of.ravel().tolist()
    nv.barrier_all(stream=stream)
    nv.free(src)
    nv.free(dst)


@pytest.mark.parametrize("n", [1, 3])
def test_collectives(n):
    pes.run(n, collectives)


@job
def teams(nv, stream, me, n):
    config = nv.TeamConfig()
    world = nv.Teams.TEAM_WORLD
    odd = nv.team_split_strided(world, 1, 2, n // 2, config, 0, new_team_name="ODD")
    assert (odd is None) == (me % 2 == 0)
    if odd is not None:
        assert (nv.team_my_pe(odd), nv.team_n_pes(odd)) == (me // 2, n // 2)
        assert nv.team_translate_pe(odd, 1, world) == 3
        assert nv.team_translate_pe(world, 0, odd) == -1
        for _ in range(3):
            nv.barrier(odd, stream=stream)
        nv.team_destroy(odd)
    again = nv.team_split_strided(world, 0, 1, n, config, 0)
    nv.barrier(again, stream=stream)
    nv.team_destroy(again)
    assert nv.team_n_pes(again) == -1
    assert nv.team_split_strided(world, 3, 2, 2, config, 0) is None, "PE 5 is none"
    return odd, again


def test_teams():
    assert pes.run(4, teams) == [(None, 7), (7, 7), (None, 7), (7, 7)]


@job
def teams_2d(nv, stream, me, n):
    import ctypes

    from nvshmem import bindings

    x, y = ctypes.c_int(), ctypes.c_int()
    config = nv.TeamConfig()
    addresses = ctypes.addressof(x), ctypes.addressof(y)
    bindings.team_split_2d(0, 2, config.ptr, 0, addresses[0], config.ptr, 0, addresses[1])
    return [
        [nv.team_translate_pe(team, i, 0) for i in range(nv.team_n_pes(team))]
        for team in (x.value, y.value)
    ]


def test_teams_in_two_dimensions():
    assert pes.run(3, teams_2d) == [[[0, 1], [0, 2]], [[0, 1], [1]], [[2], [0, 2]]]


@job
def registered(nv, stream, me, n):
    from cuda.core import Device, VirtualMemoryResource, VirtualMemoryResourceOptions

    array(nv, [0])  # nvshmem.core has nowhere to register one before its first buffer
    with pytest.raises(EmulationError, match="no more heap"):
        nv.register_external_buffer(Device().allocate(BYTES, stream=stream))
    nv.barrier_all(stream=stream)
    options = VirtualMemoryResourceOptions(handle_type="posix_fd", gpu_direct_rdma=True)
    own = VirtualMemoryResource(Device(), options).allocate(2 << 20)
    mine = view(own.handle, N, np.int32)
    mine[:] = me
    symmetric = nv.register_external_buffer(own)
    assert int(symmetric.handle) != int(own.handle)
    src, _ = array(nv, np.arange(N) + 10 * me)
    nv.put(symmetric, src, (me + 1) % n, stream=stream)
    nv.barrier_all(stream=stream)
    expected = (np.arange(N) + 10 * ((me - 1) % n)).tolist()
    assert view(own.handle, N, np.int32).tolist() == expected
    nv.unregister_external_buffer(symmetric)
    assert view(own.handle, N, np.int32).tolist() == expected
    with pytest.raises(EmulationError, match="not symmetric"):
        nv.put(own, src, 0, stream=stream)


def test_registered_buffers():
    pes.run(2, registered, env=SMALL)


@job
def captured(nv, stream, me, n):
    from cuda.bindings import driver as cuda

    src, values = array(nv, [me + 1])
    dst, seen = array(nv, [0])
    mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    cuda.cuStreamBeginCapture(stream.handle, mode)
    nv.barrier_all(stream=stream)
    nv.put(dst, src, (me + 1) % n, stream=stream)
    nv.barrier_all(stream=stream)
    _, graph = cuda.cuStreamEndCapture(stream.handle)
    assert seen[0] == 0
    _, program = cuda.cuGraphInstantiate(graph, 0)
    for factor in (1, 10):
        values[:] = factor * (me + 1)
        cuda.cuGraphLaunch(program, stream.handle)
        assert seen[0] == factor * ((me - 1) % n + 1)


def test_a_graph_of_puts():
    pes.run(2, captured)


@job
def misused(nv, stream, me, n):
    from nvshmem import bindings

    small, _ = array(nv, np.zeros(2))
    handle, address = int(stream.handle), int(small.handle)
    for wrong, what in (
        (lambda: bindings.putmem_on_stream(address, address, 64, 0, handle), "not symmetric"),
        (lambda: bindings.putmem_on_stream(address, 1 << 20, 4, 0, handle), "no device may use"),
        (lambda: bindings.putmem_on_stream(address, address, 4, n, handle), "there is no PE"),
        (lambda: bindings.putmem_on_stream(address, address, 4, 0, 12345), "CUresult 400"),
        (lambda: bindings.signal_op_on_stream(address + 4, 1, 9, 0, handle), "not aligned"),
        (lambda: bindings.barrier_on_stream(9, handle), "in no team 9"),
        (lambda: bindings.free(address + 512), "not the start"),
    ):
        with pytest.raises(EmulationError, match=what):
            wrong()
    with pytest.raises(NotImplementedError, match="team_get_uniqueid"):
        bindings.team_get_uniqueid(0)
    with pytest.raises(bindings.NVSHMEMError):
        bindings.team_init(0, 0, 0, 1, 0)  # there is no configuration
    with pytest.raises(TypeError):
        bindings.malloc(1.5)
    assert bindings.malloc(1 << 40) == 0
    with pytest.raises(EmulationError, match=rf"PE {me} is in malloc.*, PE {1 - me} in malloc"):
        bindings.malloc(64 + me)


def test_what_nvshmem_forbids():
    pes.run(2, misused)


def compiled(source):
    """Return a cubin."""
    from cuda.core import Program, ProgramOptions

    return Program(source, "c++", ProgramOptions(arch="sm_90")).compile("cubin")


@job
def libraries(nv, stream, me, n):
    kernel = 'extern "C" __global__ void f(int *x) { *x = g[0]; }'
    state = "__constant__ char nvshmemi_device_lib_version_d[24];"
    with_state = compiled(state + kernel.replace("g[0]", "nvshmemi_device_lib_version_d[*x]"))
    library = nv.NvshmemKernelObject.from_obj(with_state)
    nv.library_init(library)
    nv.library_finalize(library)
    with pytest.raises(nv.NvshmemError):
        nv.library_finalize(library)
    without = nv.NvshmemKernelObject.from_obj(compiled(kernel.replace("g[0]", "1")))
    with pytest.raises(nv.NvshmemError):
        nv.library_init(without)


def test_libraries_of_kernels():
    pes.run(1, libraries)


@pes.in_pes(1, env={"EMULATION_DEVICES": 1})
def test_a_device_chosen_after_init():
    import nvshmem.core as nv

    uid, me, n = pes.uid()
    nv.init(uid=uid, rank=me, nranks=n, initializer_method="uid")
    assert nv.init_status() == nv.InitStatus.STATUS_IS_BOOTSTRAPPED
    from cuda.core import Device

    with pytest.raises(EmulationError, match="needs a device"):
        __import__("nvshmem.bindings").bindings.malloc(64)
    Device(0).set_current()
    nv.free(nv.buffer(64))
    nv.finalize()


PROGRAM = """
from cuda.core import Device
import nvshmem.bindings
Device(1).set_current()
print(Device().name, nvshmem.bindings.malloc.__module__)
"""


def test_the_command_passes_it_on(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    command = [sys.executable, "-m", "gpushmem", "run", "-n", "2", str(script)]
    done = subprocess.run(
        command,
        env=emulation.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.count("Emulated device") == 2, done.stderr
    assert done.stdout.count("tests.nvshmem.emulation.nvshmem_bindings") == 2


def test_this_process_has_no_emulated_driver():
    with open("/proc/self/maps") as maps:
        assert "emulated-cuda" not in maps.read()
