"""Every check: where all is well, without a GPU, and where something is wrong."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushmem.doctor.check import VERDICTS
from gpushmem.doctor.checks import CHECKS, run, summary
from tests.doctor.machines import (
    CLOSED_DRIVER,
    NVSHMEM_LIB,
    Machines,
    limits,
    matrix,
    nvidia_smi,
    port,
)

PARAMS = "/proc/driver/nvidia/params"
DRIVER = "/proc/driver/nvidia/version"
PEERMEM = "/sys/module/nvidia_peermem/version"
IB = port("mlx5_0", state="1: DOWN")
H100 = "NVIDIA H100 80GB HBM3"
FITTING = {"nvshmem4py-cu13": "0.4.1", "numba-cuda": "0.30.4", "cuda-core": "1.0"}
IBGDA = {"NVSHMEM_IB_ENABLE_IBGDA": "1"}
BRIDGE = {
    "/sys/class/net/virbr0/operstate": "up", "/sys/class/net/virbr0/flags": "0x1003",
    "/sys/class/net/virbr0/ifindex": "0",
}  # fmt: skip
IPOIB = {"/sys/class/net/ib0/operstate": "up", "/sys/class/net/ib0/ifindex": "9"}


def no_ports():
    return dict.fromkeys((*port("mlx5_0"), *port("mlx5_1", layer="Ethernet")))


def test_all_is_well_on_a_good_node(machines):
    rows = run(machines.node(n=2), 2)
    bad = [(row.name, row.found) for row in rows if row.verdict in {"warning", "problem"}]
    assert bad == []
    not_applicable = {row.name for row in rows if row.verdict == "not applicable"}
    assert not_applicable == {"imex", "ibgda"}
    assert summary(machines.node(n=2), rows, 2)[1].startswith("NVSHMEM on GPUs: no problem")


def test_without_a_gpu_only_the_cpu_backends_checks_apply(machines):
    system = machines.bare()
    rows = run(system, 2)
    for row in rows:
        applies = row.verdict != "not applicable"
        assert applies == (row.concerns in {"cpu", "both"}), row
    told = summary(system, rows, 2)
    assert told[0] == "cpu backend: this machine can run 2 PEs (8 checks)."
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
    (
        "cuda_packages", {"packages": {"nvidia-nvshmem-cu12": "3.4", "nvshmem4py-cu13": "0.4"}},
        "warning", "nvidia-nvshmem-cu12, nvshmem4py-cu13",
    ),
    ("cuda_packages", {"packages": {"numpy": "2.0"}}, "ok", "none installed"),
    ("gpus", {"n": 1}, "warning", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE to 50"),
    ("gpus", {"n": 1, "files": {"/tmp/nvidia-mps/control": ""}}, "ok", "with MPS"),
    ("gpus", {"n": 8}, "ok", f"8 ({H100}); PE i on GPU i of 8"),
    ("visible_gpus", {"environ": {"CUDA_VISIBLE_DEVICES": "0,7"}}, "problem", "'7' is not a GPU"),
    ("visible_gpus", {"environ": {"CUDA_VISIBLE_DEVICES": ""}}, "problem", "shows 0 of 2"),
    ("visible_gpus", {"environ": {"CUDA_VISIBLE_DEVICES": "1,1"}}, "problem", "named twice"),
    ("visible_gpus", {"environ": {"CUDA_VISIBLE_DEVICES": "1"}}, "warning", "shows 1 of 2 GPUs"),
    ("visible_gpus", {"environ": {"CUDA_VISIBLE_DEVICES": "1,0"}}, "ok", "2 of 2"),
    ("visible_gpus", {"environ": {"CUDA_VISIBLE_DEVICES": "GPU-00000001,0"}}, "ok", "2 of 2"),
    ("visible_gpus", {"environ": {"CUDA_VISIBLE_DEVICES": "MIG-1234"}}, "ok", "see mig"),
    ("mig", {"programs": nvidia_smi(2, mig="Enabled")}, "problem", "on, GPUs 0, 1"),
    ("mig", {"programs": nvidia_smi(2, mig="[N/A]")}, "ok", "unknown"),
    ("peer_access", {"programs": {"nvidia-smi topo -p2p r": matrix(2, "CNS")}}, "problem", "CNS"),
    ("peer_access", {"programs": {"nvidia-smi topo -m": matrix(2, "SYS")}}, "ok", "by PCIe (SYS)"),
    ("peer_access", {}, "ok", "by NVLink (NV18)"),
    ("peer_access", {"programs": {"nvidia-smi topo -p2p r": None}}, "warning", "does not report"),
    ("peer_access", {"n": 1}, "not applicable", "no peers"),
    ("nvswitch", {}, "ok", "Completed"),
    ("nvswitch", {"programs": nvidia_smi(2, fabric="In Progress")}, "problem", "fabricmanager"),
    ("nvswitch", {"programs": nvidia_smi(2, fabric="N/A")}, "not applicable", "no NVSwitch"),
    ("imex", {"programs": nvidia_smi(2, name="NVIDIA GB200")}, "warning", "CreateImexChannel0=1"),
    (
        "imex", {"programs": nvidia_smi(2, name="NVIDIA GB200"),
                 "environ": {"NVSHMEM_DISABLE_MNNVL": "1"}},
        "ok", "only inside a node",
    ),
    (
        "imex", {"programs": nvidia_smi(2, name="NVIDIA GB200"),
                 "files": {"/dev/nvidia-caps-imex-channels/channel0": ""}},
        "ok", "channel0",
    ),
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
    ("roce_gids", {}, "ok", "mlx5_1:1 has RoCE v2 GIDs of IPv4 addresses at [3]"),
    ("roce_gids", {"environ": {"NVSHMEM_IB_GID_INDEX": "0"}}, "warning", "show_gids"),
    ("roce_gids", {"environ": {"NVSHMEM_IB_GID_INDEX": "3"}}, "ok", "[3]"),
    ("roce_gids", {"files": no_ports() | port("mlx5_0")}, "not applicable", "no RoCE port"),
    (
        "roce_gids",
        {"files": {"/sys/class/infiniband/mlx5_1/ports/1/gids/3": "fe80::1"}},
        "warning", "no index",
    ),
    ("gpudirect", {}, "ok", "nvidia_peermem"),
    ("gpudirect", {"files": {PEERMEM: None}}, "ok", "dma-buf"),
    (
        "gpudirect", {"files": {PEERMEM: None}, "environ": {"NVSHMEM_IB_DISABLE_DMABUF": "1"}},
        "problem", "which NVSHMEM_IB_DISABLE_DMABUF turns off",
    ),
    (
        "gpudirect", {"files": {PEERMEM: None, DRIVER: CLOSED_DRIVER}}, "problem",
        "modprobe nvidia-peermem",
    ),
    (
        "gpudirect", {"files": {PEERMEM: None, "/proc/sys/kernel/osrelease": "5.4.0-100-generic"}},
        "problem", "neither nvidia-peermem nor dma-buf",
    ),
    ("gdrcopy", {"files": {"/dev/gdrdrv": None}}, "warning", "--device /dev/gdrdrv"),
    (
        "gdrcopy",
        {"files": {"/dev/gdrdrv": None}, "environ": {"NVSHMEM_DISABLE_GDRCOPY": "true"}},
        "ok", "turned off",
    ),
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
    ("ibgda", {}, "not applicable", "is not set"),
    ("ibgda", {"environ": {"NVSHMEM_IB_ENABLE_IBGDA": "no"}}, "not applicable", "is not set"),
    ("ibgda", {"environ": IBGDA}, "warning", 'NVreg_RegistryDwords="PeerMappingOverride=1;"'),
    (
        "ibgda", {"environ": IBGDA, "files": {PARAMS: 'RegistryDwords: "PeerMappingOverride=1;"'}},
        "ok", "PeerMappingOverride=1",
    ),
    ("ibgda", {"environ": IBGDA | {"NVSHMEM_IBGDA_NIC_HANDLER": "gpu"}}, "problem", "reboot"),
    ("ibgda", {"environ": IBGDA | {"NVSHMEM_IBGDA_NIC_HANDLER": "cpu"}}, "ok", "the CPU rings"),
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
    ("bootstrap", {}, "ok", "plugins for uid and pmi"),
    ("bootstrap", {"environ": {"NVSHMEM_BOOTSTRAP": "UID"}}, "ok", "plugins for uid are"),
    ("bootstrap", {"environ": {"NVSHMEM_BOOTSTRAP": "tcp"}}, "problem", "Use one of pmi, mpi"),
    ("bootstrap", {"environ": {"NVSHMEM_BOOTSTRAP_PMI": "PMIX"}}, "ok", "uid and pmix"),
    (
        "bootstrap", {"files": {f"{NVSHMEM_LIB}/nvshmem_bootstrap_mpi.so.3": None},
                      "environ": {"NVSHMEM_BOOTSTRAP": "MPI"}},
        "problem", "nvshmem_bootstrap_mpi.so is not in",
    ),
    ("bootstrap", {"environ": {"NVSHMEM_BOOTSTRAP": "plugin"}}, "problem", "BOOTSTRAP_PLUGIN"),
    (
        "bootstrap", {"environ": {"NVSHMEM_BOOTSTRAP": "plugin",
                                  "NVSHMEM_BOOTSTRAP_PLUGIN": "/opt/none.so"}},
        "problem", "there is no /opt/none.so",
    ),
    ("bootstrap", {"packages": {}}, "not applicable", "see nvshmem"),
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
    ("descriptors", {"files": limits(nofile="32")}, "problem", "ulimit -n 40"),
    ("processes", {"files": limits(nproc="8")}, "problem", "ulimit -u 24"),
    (
        "processes", {"files": {"/sys/fs/cgroup/user.slice/pids.max": "10"}}, "problem",
        "--pids-limit",
    ),
    ("mappings", {"files": {"/proc/sys/vm/max_map_count": "30000"}}, "warning", "30000"),
    ("memlock", {"files": limits(memlock="8388608")}, "problem", "--ulimit memlock=-1"),
    ("memlock", {"files": no_ports()}, "not applicable", "no RDMA device"),
    ("shared_memory", {"room": lambda path: (64 << 20, 1 << 20)}, "warning", "1 MiB free of 64"),
    ("container", {"files": {"/.dockerenv": ""}}, "ok", "--ipc=host"),
    (
        "container", {"files": {"/.dockerenv": "", "/dev/infiniband/uverbs0": None}}, "problem",
        "--device /dev/infiniband",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "machine", "verdict", "words"), CASES)
def test_verdicts(machines, look, name, machine, verdict, words):
    told = look(name, machines.node(**machine))
    assert (told[0], words in " ".join(told[1:])) == (verdict, True), told
    assert bool(told[2]) == (verdict in {"warning", "problem"})  # a fix where one is needed


def test_every_check_is_tested_for_well_and_not_well():
    tested = {(name, verdict in {"warning", "problem"}) for name, _, verdict, _ in CASES}
    assert {check.name for check in CHECKS} == {name for name, bad in tested if bad}


def test_a_single_pe_on_a_mig_gpu_is_only_warned(machines, look):
    system = machines.node(programs=nvidia_smi(2, mig="Enabled"))
    assert look("mig", system, 1)[0] == "warning"


def test_checks_have_all_their_columns():
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    for check in CHECKS:
        assert check.concerns in {"cpu", "nvshmem", "both"}
        assert len(check.source) <= 90  # fits a line
        assert check.meaning.endswith((".", '."'))
