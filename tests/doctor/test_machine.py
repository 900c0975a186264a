"""What is read from files and programs: numbers, GPUs, ports, interfaces, packages."""

import pytest

from gpushmem.doctor import software
from gpushmem.doctor.facts import KEYS, collect, plain
from gpushmem.doctor.gpu_inventory import driver_version, gpus, visible
from gpushmem.doctor.machine import cores, kernel, limit, memory, numbers
from gpushmem.doctor.network import bootstrap_interface, interfaces, ports
from gpushmem.doctor.system import System
from tests.doctor.machines import CLOSED_DRIVER, OPEN_DRIVER, dangling, limits, nvidia_smi


@pytest.mark.parametrize(
    ("text", "read"),
    [("0-3,8", [0, 1, 2, 3, 8]), ("", []), ("0", [0]), ("0-1\n", [0, 1]), ("x,2-,3", [2, 3])],
)
def test_lists_of_numbers(text, read):
    assert numbers(text) == read


def test_cores_and_quota_of_both_kinds_of_cgroup(machines):
    assert cores(machines.bare()).usable == 4
    unified = {"/sys/fs/cgroup/user.slice/cpu.max": "150000 100000"}
    assert cores(machines.bare(files=unified)).quota == 1.5


def test_quota_of_cgroup_version_1_and_of_a_containers_own_mount(machines):
    legacy = {
        "/proc/self/cgroup": "4:memory:/docker/1234\n2:cpu,cpuacct:/docker/1234",
        "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000",
        "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes": "4096",
    }
    system = machines.bare(files=legacy)
    assert cores(system).quota == 0.5
    assert memory(system).usable == (1 << 30) - 4096


def test_no_limit_of_memory_is_none(machines):
    files = {"/sys/fs/cgroup/user.slice/memory.max": "max"}
    assert memory(machines.bare(files=files)).limit is None
    files = {
        "/proc/self/cgroup": "4:memory:/",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
    }
    system = machines.bare(files=files)
    assert (memory(system).limit, memory(system).usable) == (None, 15360000 * 1024)


def test_limits_and_kernel(machines):
    system = machines.bare(files=limits(nofile="1024", memlock="unlimited"))
    assert limit(system, "Max open files") == 1024
    assert limit(system, "Max locked memory") == float("inf")
    assert limit(system, "Max nice priority") is None
    assert kernel(system) == (6, 1)


@pytest.mark.parametrize(
    ("text", "version"), [(OPEN_DRIVER, "580.65.06"), (CLOSED_DRIVER, "535.104.05")]
)
def test_driver_version(machines, text, version):
    assert driver_version(machines.bare(files={"/proc/driver/nvidia/version": text})) == version


def test_gpus_by_an_old_nvidia_smi_and_by_proc(machines):
    old = "nvidia-smi --query-gpu=index,name,memory.total,uuid --format=csv,noheader,nounits"
    (gpu,) = gpus(machines.bare(programs={old: "0, Tesla V100-SXM2-32GB, 32768, GPU-1\n"}))
    assert (gpu.name, gpu.memory, gpu.compute, gpu.mig) == (
        "Tesla V100-SXM2-32GB", 32 << 30, None, None,
    )  # fmt: skip
    file = "/proc/driver/nvidia/gpus/0000:18:00.0/information"
    (gpu,) = gpus(machines.bare(files={file: "Model: \t\t NVIDIA A100\nGPU UUID: \t GPU-2"}))
    assert (gpu.name, gpu.uuid, gpu.memory) == ("NVIDIA A100", "GPU-2", None)


def test_visible_gpus_end_at_the_first_that_is_wrong(machines):
    def seen(text):
        system = machines.bare(programs=nvidia_smi(4), environ={"CUDA_VISIBLE_DEVICES": text})
        found, ignored = visible(system, gpus(system))
        return [gpu.index for gpu in found], ignored

    assert seen("2,0") == ([2, 0], [])
    assert seen("1,-1,0") == ([1], ["-1", "0"])
    assert seen("GPU-0000000") == ([], ["GPU-0000000"])  # fits several


def test_ports_and_gids(machines):
    infiniband, roce = ports(machines.node())
    assert (infiniband.name, infiniband.state, infiniband.link_layer) == (
        "mlx5_0:1", "ACTIVE", "InfiniBand",
    )  # fmt: skip
    assert (infiniband.gids, roce.gids) == (1, 2)


def test_interfaces(machines, tmp_path):
    dangling(tmp_path / "sys/class/net/gone")
    lo, eth0 = [found for found in interfaces(machines.bare()) if found.name != "gone"]
    assert (lo.name, lo.up, lo.speed) == ("lo", True, None)
    assert (eth0.name, eth0.up, eth0.speed) == ("eth0", True, 25000)


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [("", "eth0"), ("eth", "eth0"), ("^eth", "lo"), ("=lo", "lo"), ("=l", None), ("ib,lo", "lo")],
)
def test_choice_of_the_bootstraps_interface(machines, asked, chosen):
    system = machines.bare(environ={"NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": asked})
    assert bootstrap_interface(system)[0] == chosen


def test_cuda_packages_and_versions(machines):
    packages = {
        "nvidia-nccl-cu12": "2.27", "nvshmem4py-cu13": "0.4.1", "cuda-python": "13.0.1",
        "cuda-core": "1.2.2", "nvidia-nvtx": "13.2", "numba": "0.65.1",
    }  # fmt: skip
    system = machines.bare(packages=packages)
    assert software.cuda_packages(system) == {
        "cuda-python": 13, "nvidia-nccl-cu12": 12, "nvshmem4py-cu13": 13,
    }  # fmt: skip
    told = software.versions(system)
    assert (told["nvshmem4py"], told["numba"], told["nvshmem"]) == ("0.4.1", "0.65.1", None)


def test_launchers(machines):
    system = machines.bare(
        find=lambda name: f"/usr/bin/{name}" if name != "srun" else None,
        programs={"mpirun --version": "mpirun (Open MPI) 4.1.4\n\nReport bugs"},
    )
    assert software.launchers(system) == {
        "mpirun": "/usr/bin/mpirun: mpirun (Open MPI) 4.1.4",
        "srun": None,
        "torchrun": "/usr/bin/torchrun",
    }


def test_backends_say_why_they_cannot_be_used(machines):
    def told(system, there=("cpu", "nvshmem")):
        return {k: v["reasons"] for k, v in collect(system, "1", there)["backends"].items()}

    assert told(machines.node()) == {"cpu": [], "nvshmem": []}
    assert told(machines.node(), ("null",)) == {"null": []}


def test_backends_of_a_bare_machine(machines):
    system = machines.bare(platform=("Darwin", "arm64"), probe=lambda call: "no such call")
    told = collect(system, "1", ["cpu", "nvshmem"])["backends"]
    assert told["cpu"]["reasons"] == [
        "Darwin arm64: not x86-64 Linux", "memfd_create does not work: no such call",
        "pidfd_open does not work: no such call",
    ]  # fmt: skip
    reasons = told["nvshmem"]["reasons"]
    assert reasons[0] == "no NVIDIA driver"
    assert reasons[1].startswith("nvshmem4py is not installed (needed: nvshmem4py-cu13 or ")
    assert reasons[-1] == "no NVSHMEM library"


def test_keys_of_info_are_the_documented_ones(machines):
    told = collect(machines.node(), "1", ["cpu"])
    assert list(told) == list(KEYS)
    assert told["gpus"][0]["compute"] == "9.0"
    assert told["rdma"][0]["gids"] == 1


def test_secrets_are_hidden_and_odd_text_is_escaped(machines):
    environ = {"GPUSHMEM_JOB_KEY": "s3cret", "NVSHMEM_X": "a\x1b[2J\udcff", "HOME": "/root"}
    told = collect(machines.bare(environ=environ), "1", ["cpu"])["environment"]
    assert told == {"GPUSHMEM_JOB_KEY": "(hidden)", "NVSHMEM_X": r"'a\x1b[2J\udcff'"}
    assert plain("1G") == "1G"


def test_this_machine():
    system = System()
    assert cores(system).available >= 1
    assert memory(system).total > 1 << 20
    assert "numba" in system.packages
    assert system.probe("memfd_create") is None
    assert system.run(("no-such-program-here",)) is None
    assert system.run(("true",)) == ""
    assert system.run(("false",)) is None
    assert system.room(system.path("/nowhere")) is None
