"""Every check: where all is well, without a GPU, and where something is wrong."""

import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpushmem
from gpushmem.doctor.check import VERDICTS
from gpushmem.doctor.checks import CHECKS, run, summary
from tests.doctor.machines import (
    CLOSED_DRIVER,
    NVSHMEM_LIB,
    VERSION_H,
    Machines,
    limits,
    nvidia_smi,
    port,
    version_h,
)

DRIVER = "/proc/driver/nvidia/version"
IB = port("mlx5_0", state="1: DOWN")
H100 = "NVIDIA H100 80GB HBM3"
FITTING = {"nvshmem4py-cu13": "0.4.1", "numba-cuda": "0.30.4", "cuda-core": "1.0"}
IBGDA = {"NVSHMEM_IB_ENABLE_IBGDA": "1"}
BRIDGE = {
    "/sys/class/net/virbr0/operstate": "up", "/sys/class/net/virbr0/flags": "0x1003",
    "/sys/class/net/virbr0/ifindex": "0",
}  # fmt: skip
MTU = "/sys/class/net/eth1/mtu"
SHARED = {f"/dev/shm/{name}": "x" for name in ("nccl-aBc123", "vader_segment.n.1", "mine")}
USER = "/proc/77/maps"
ABOUT = str(Path(gpushmem.__file__).parent / "compiled/about.json")
MAPPED = "7f0000-7f1000 rw-s 00000000 00:1a 5  /dev/shm/"
USED = {USER: f"{MAPPED}vader_segment.n.1", "/proc/5/maps": f"x\n{MAPPED}nccl-aBc123"}
IPOIB = {"/sys/class/net/ib0/operstate": "up", "/sys/class/net/ib0/ifindex": "9"}


def no_ports():
    return dict.fromkeys((*port("mlx5_0"), *port("mlx5_1", layer="Ethernet")))


def test_all_is_well_on_a_good_node(machines):
    rows = run(machines.node(n=2), 2)
    assert [(row.name, row.found) for row in rows if row.verdict != "ok"] == []
    assert summary(machines.node(n=2), rows, 2)[1].startswith("NVSHMEM on GPUs: no problem")


def test_without_a_gpu_only_the_cpu_backends_checks_apply(machines):
    system = machines.bare()
    rows = run(system, 2)
    for row in rows:
        applies = row.verdict != "not applicable"
        assert applies == (row.concerns in {"cpu", "both"}), row
    told = summary(system, rows, 2)
    assert told[0] == "cpu backend: this machine can run 2 PEs (10 checks)."
    assert told[1].startswith("No GPU found")


def test_an_empty_file_system_breaks_nothing(machines, tmp_path):
    system = machines.bare(files={}, room=lambda path: None, probe=lambda call: "ENOSYS")
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.unlink()
    for row in run(system, 3):
        assert row.verdict in VERDICTS
        assert "this check failed" not in row.found


@pytest.mark.parametrize("text", ["", "\x00\xff", "-1", "999999999999999999999", "a: b: c\n:\n"])
def test_files_of_nonsense_break_nothing(machines, tmp_path, text):
    system = machines.node(n=2)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.write_text(text)
    for row in run(system, 2):
        assert row.verdict in VERDICTS
        assert "this check failed" not in row.found, row


@pytest.fixture(scope="module")
def good_node(tmp_path_factory):
    """A node that is made once, and the texts of its files."""
    folder = tmp_path_factory.mktemp("node")
    system = Machines(folder).node(environ=IBGDA)
    files = {path: path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}
    return system, {path: text for path, text in files.items() if len(text) > 1}


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_files_that_are_damaged_break_nothing(good_node, data):
    """A few files have a part cut out and something else put in."""
    system, files = good_node
    chosen = data.draw(st.lists(st.sampled_from(sorted(files)), min_size=1, max_size=4))
    for path in chosen:
        start = data.draw(st.integers(0, len(files[path])))
        put = data.draw(st.text(st.sampled_from(string.printable + "\x00\xff\u0663"), max_size=4))
        end = start + data.draw(st.integers(0, 9))
        path.write_text(files[path][:start] + put + files[path][end:])
    try:
        assert [row for row in run(system, 2) if "this check failed" in row.found] == []
    finally:
        for path in chosen:
            path.write_text(files[path])


def test_a_check_that_fails_does_not_end_the_others(machines):
    def broken(words):
        raise ValueError("no such format")

    rows = run(machines.node(run=broken), 2)
    assert len(rows) == len(CHECKS)
    assert any(row.found == "this check failed: ValueError: no such format" for row in rows)


# Check, what differs from a good node, the verdict, and words of what is found or to be done.
CASES = [
    ("driver", {"files": {DRIVER: CLOSED_DRIVER}}, "problem", "needs 580"),
    (
        "driver", {"files": {DRIVER: CLOSED_DRIVER}, "packages": {"nvidia-nvshmem-cu12": "3.4"}},
        "ok", "535.104.05, enough for CUDA 12",
    ),
    ("driver", {"find": lambda name: f"/usr/bin/{name}"}, "ok", "580.65.06"),
    (
        "driver",
        {"find": lambda name: f"/usr/bin/{name}", "programs": {"nvidia-smi -L": None}},
        "problem", "version mismatch",
    ),
    ("driver", {"files": {"/dev/nvidiactl": None}}, "problem", "--gpus all"),
    ("driver", {"programs": {"ldconfig -p": "libc.so.6"}}, "problem", "DRIVER_CAPABILITIES"),
    (
        "driver",
        {"files": {DRIVER: None, "/sys/bus/pci/devices/0000:18:00.0/vendor": "0x10de",
                   "/sys/bus/pci/devices/0000:18:00.0/class": "0x030200"}},
        "problem", "1 NVIDIA GPUs on the PCI bus, but no driver",
    ),
    ("driver", {"files": {DRIVER: None}}, "not applicable", "no GPU"),
    ("gpus", {"n": 1}, "warning", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE to 50"),
    ("gpus", {"n": 1, "files": {"/tmp/nvidia-mps/control": ""}}, "ok", "with MPS"),
    ("gpus", {"n": 8}, "ok", f"8 ({H100}); PE i on GPU i of 8"),
    ("gpus", {"environ": {"CUDA_VISIBLE_DEVICES": "0,7"}}, "problem", "'7' is not a GPU"),
    ("gpus", {"environ": {"CUDA_VISIBLE_DEVICES": ""}}, "problem", "shows 0 of 2"),
    ("gpus", {"environ": {"CUDA_VISIBLE_DEVICES": "1,1"}}, "problem", "named twice"),
    ("gpus", {"environ": {"CUDA_VISIBLE_DEVICES": "1"}}, "warning", "2 PEs on 1 GPUs"),
    ("gpus", {"environ": {"CUDA_VISIBLE_DEVICES": "1,0"}}, "ok", "PE i on GPU i of 2"),
    ("gpus", {"environ": {"CUDA_VISIBLE_DEVICES": "GPU-00000001,0"}}, "ok", "GPU i of 2"),
    ("gpus", {"environ": {"CUDA_VISIBLE_DEVICES": "MIG-1234"}}, "ok", "MIG instances"),
    ("rdma", {}, "ok", "mlx5_0:1 ACTIVE InfiniBand, mlx5_1:1 ACTIVE Ethernet"),
    ("rdma", {"files": no_ports() | IB}, "problem", "subnet manager"),
    ("rdma", {"files": no_ports()}, "not applicable", "one node only"),
    ("rdma", {"files": no_ports() | port("erdma_0")}, "problem", "Set NVSHMEM_HCA_PREFIX"),
    (
        "rdma", {"files": no_ports() | port("ibp0"), "environ": {"NVSHMEM_HCA_PREFIX": "ibp"}},
        "ok", "ibp0:1",
    ),
    ("rdma", {"environ": {"NVSHMEM_HCA_LIST": "mlx5_7:1"}}, "problem", "names mlx5_7:1"),
    ("rdma", {"environ": {"NVSHMEM_HCA_LIST": "^mlx5_1:1"}}, "ok", "mlx5_0:1"),
    ("transport", {}, "ok", "inside the node peer access; between nodes ibrc"),
    ("transport", {"environ": IBGDA}, "ok", "ibrc and ibgda"),
    ("transport", {"environ": {"NVSHMEM_REMOTE_TRANSPORT": "tcp"}}, "problem", "ibrc, ucx"),
    ("transport", {"environ": {"NVSHMEM_REMOTE_TRANSPORT": "None"}}, "ok", "not used"),
    (
        "transport", {"environ": {"NVSHMEM_REMOTE_TRANSPORT": "gpunetio"}}, "problem",
        "nvshmem_transport_gpunetio.so is not in",
    ),
    ("transport", {"files": no_ports()}, "ok", "no RDMA port it could use"),
    ("transport", {"environ": {"GPUSHMEM_TRANSPORT": "p2p"}}, "ok", "between nodes not used"),
    ("transport", {"environ": {"GPUSHMEM_TRANSPORT": "ibgda"}}, "ok", "ibrc and ibgda"),
    ("rdma", {"environ": {"GPUSHMEM_HCA": "mlx5_7:1"}}, "problem", "names mlx5_7:1"),
    (
        "settings", {"environ": {"GPUSHMEM_HCA": "mlx5_7:1", "GPUSHMEM_NIC_MAP": "mlx5_7:1:2"}},
        "problem", "are both set",
    ),
    (
        "transport", {"files": no_ports(), "environ": {"NVSHMEM_DISABLE_P2P": "1"}}, "problem",
        "Unset NVSHMEM_DISABLE_P2P",
    ),
    ("nvshmem", {}, "ok", "nvshmem4py-cu13 0.4.1, library 3.7.2"),
    ("nvshmem", {"packages": {}}, "warning", "gpushmem[nvshmem]"),
    (
        "nvshmem", {"packages": {"nvshmem4py-cu12": "0.4", "nvshmem4py-cu13": "0.4"}}, "problem",
        "nvshmem4py-cu12 and nvshmem4py-cu13 are both installed",
    ),
    ("nvshmem", {"packages": {"nvshmem4py-cu13": "0.4"}}, "problem", "NVSHMEM_HOME"),
    (
        "nvshmem", {"packages": FITTING, "environ": {"NVSHMEM_HOME": "/opt/nvshmem/"}},
        "ok", f"library in {NVSHMEM_LIB}",
    ),
    (
        "nvshmem", {"packages": FITTING | {"nvidia-nvshmem-cu13": "3.7", "numba-cuda": "0.29.1"}},
        "problem", "numba-cuda 0.29.1 is installed (needed: numba-cuda>=0.30,<0.31)",
    ),
    (
        "nvshmem", {"packages": FITTING | {"nvidia-nvshmem-cu13": "3.7", "nvshmem4py-cu13": "0.5"}},
        "problem", "nvshmem4py-cu13 0.5 is installed",
    ),
    ("nvshmem_files", {}, "ok", "both 3.7.2"),
    ("nvshmem_files", {"files": {VERSION_H: None}}, "ok", "library 3.7.2; headers' version unk"),
    (
        "nvshmem_files", {"files": {VERSION_H: version_h(3, 4, 5)}}, "problem",
        "/opt/nvshmem/include are of 3.4.5, the library of 3.7.2 "
        "pip install --force-reinstall nvidia-nvshmem-cu13==3.7.2",
    ),
    (
        "nvshmem_files",
        {"packages": {"nvidia-nvshmem-cu12": "3.4.5", "nvidia-nvshmem-cu13": "3.7.2"}},
        "problem", "nvidia-nvshmem-cu12 3.4.5 and nvidia-nvshmem-cu13 3.7.2 are both installed",
    ),
    ("bitcode", {}, "ok", "libnvshmem_device_sm_90.bc"),
    ("bitcode", {"programs": nvidia_smi(1, "8.6")}, "ok", "libnvshmem_device_sm_80.bc"),
    ("bitcode", {"programs": nvidia_smi(1, "12.0")}, "warning", "none for compute capability 12.0"),
    ("bitcode", {"programs": nvidia_smi(1, "10.3")}, "warning", "there is sm_80, sm_89, sm_90"),
    ("bitcode", {"programs": nvidia_smi(1, "8.9")}, "ok", "libnvshmem_device_sm_89.bc"),
    (
        "bitcode",
        {"programs": nvidia_smi(1, "7.0"), "files": {f"{NVSHMEM_LIB}/libnvshmem_device.bc": ""}},
        "ok", "libnvshmem_device.bc",
    ),
    ("mtu", {}, "ok", "mlx5_1:1: MTU 9000, packets of 4096"),
    ("mtu", {"files": {MTU: "4192"}}, "ok", "MTU 4192, packets of 4096"),
    ("mtu", {"files": {MTU: "4191"}}, "warning", "MTU 4191, packets of 2048"),
    ("mtu", {"files": {MTU: "1500"}}, "warning", "packets of 1024 Set an MTU of 4192 or more"),
    ("mtu", {"files": {MTU: None}}, "not applicable", "unknown"),
    ("mtu", {"files": port("mlx5_1", "1: DOWN", "Ethernet")}, "not applicable", "no RoCE port"),
    ("shm", {}, "ok", "8 GiB of 8 GiB free; 0 files of such libraries"),
    ("shm", {"files": SHARED | USED}, "ok", "2 files of such libraries"),
    ("shm", {"files": SHARED}, "warning", "that no process uses: nccl-aBc123, vader_segment.n.1"),
    ("shm", {"files": SHARED | USED | {USER: None}}, "warning", "1 files of "),
    ("shm", {"room": lambda path: (64 << 20, 1 << 20)}, "warning", "1 MiB of 64 MiB free"),
    ("interface", {}, "ok", "eth0"),
    ("interface", {"files": BRIDGE}, "warning", "UID_SOCK_IFNAME=eth0"),
    ("interface", {"files": BRIDGE | IPOIB}, "ok", "ib0"),
    (
        "interface", {"environ": {"NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "=eth1"}}, "problem",
        "matches '=eth1'",
    ),
    ("interface", {"environ": {"NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "^lo"}}, "ok", "eth0, sel"),
    ("launcher", {"environ": {"RANK": "1", "WORLD_SIZE": "2"}}, "ok", "torchrun: 1 of 2"),
    (
        "launcher",
        {"environ": {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "OMPI_COMM_WORLD_RANK": "3",
                     "OMPI_COMM_WORLD_SIZE": "4"}},
        "warning", "Open MPI: 3 of 4, Slurm: 0 of 1",
    ),
    ("settings", {"environ": {"GPUSHMEM_HEAP_SIZE": "lots"}}, "problem", "GPUSHMEM_HEAP_SIZE"),
    ("settings", {"environ": {"NVSHMEM_SYMMETRIC_SIZE": "-1"}}, "problem", "SYMMETRIC_SIZE"),
    ("settings", {"environ": {"GPUSHMEM_HEAPSIZE": "1G"}}, "warning", "unknown setting GPUSHMEM_H"),
    ("settings", {"environ": {"GPUSHMEM_HEAP_SIZE": "1G"}}, "ok", "1 set"),
    ("cpu_backend", {"platform": ("Linux", "aarch64")}, "problem", "Linux aarch64"),
    ("cpu_backend", {"probe": lambda call: "EPERM"}, "problem", "memfd_create does not work"),
    ("memory", {"environ": {"GPUSHMEM_HEAP_SIZE": "100G"}}, "warning", "2 x 100 GiB"),
    ("memory", {"environ": {"GPUSHMEM_HEAP_SIZE": "100G"}}, "warning", "to 7500M or less"),
    (
        "memory", {"files": {"/sys/fs/cgroup/user.slice/memory.max": str(1 << 30),
                             "/sys/fs/cgroup/user.slice/memory.current": str(1 << 29)}},
        "warning", "512 MiB available",
    ),
    ("memory", {"files": limits(fsize="1048576")}, "problem", "ulimit -f unlimited"),
    ("memory", {"files": limits(space="1048576")}, "problem", "ulimit -v unlimited"),
    ("gpu_memory", {"environ": {"NVSHMEM_SYMMETRIC_SIZE": "100G"}}, "problem", "1 x 100 GiB"),
    ("gpu_memory", {}, "ok", "1 x 1 GiB on a GPU of 79.65 GiB"),
    ("gpu_memory", {"environ": {"NVSHMEM_SYMMETRIC_SIZE": "x"}}, "not applicable", "is invalid"),
    ("cores", {}, "ok", "2 PEs on 4 of 8 cores"),
    (
        "cores", {"files": {"/sys/fs/cgroup/user.slice/cpu.max": "10000 100000"}}, "warning",
        "limited by the cgroup to 0.1",
    ),
    ("engine", {}, "ok", "not installed from a wheel"),
    ("engine", {"files": {ABOUT: "{}"}}, "ok", "installed with the package"),
    ("engine", {"files": {ABOUT: '{"numba": "0.1"}'}}, "warning", "compiled with numba 0.1, here"),
    ("engine", {"files": {ABOUT: '{"cpython": "2.7"}'}}, "warning", "compiled with cpython 2.7"),
    ("engine", {"files": {ABOUT: "damaged"}}, "warning", "is damaged"),
    ("descriptors", {"files": limits(nofile="32")}, "problem", "ulimit -n 40"),
    ("processes", {"files": limits(nproc="8")}, "problem", "ulimit -u 24"),
    (
        "processes", {"files": {"/sys/fs/cgroup/user.slice/pids.max": "10"}}, "problem",
        "--pids-limit",
    ),
    ("mappings", {"files": {"/proc/sys/vm/max_map_count": "30000"}}, "warning", "30000"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "machine", "verdict", "words"), CASES)
def test_verdicts(machines, look, name, machine, verdict, words):
    told = look(name, machines.node(**machine))
    assert (told[0], words in " ".join(told[1:])) == (verdict, True), told
    assert bool(told[2]) == (verdict in {"warning", "problem"})  # a fix where one is needed


def test_every_check_is_tested_for_well_and_not_well():
    tested = {(name, verdict in {"warning", "problem"}) for name, _, verdict, _ in CASES}
    assert {check.name for check in CHECKS} == {name for name, bad in tested if bad}


def test_checks_have_all_their_columns():
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    for check in CHECKS:
        assert check.concerns in {"cpu", "nvshmem", "both"}
        assert len(check.source) <= 90  # fits a line
        assert check.meaning.endswith((".", '."'))
