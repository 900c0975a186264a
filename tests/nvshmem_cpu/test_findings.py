"""What NVSHMEM's device code does otherwise than our pages say, shown by running it.

Each program is right by docs/memory-model.md. Where gpushmem mends what NVSHMEM does, the tests
want that; else what it does on GPUs, as far as a CPU can show it: whoever mends the lowering turns
the test around. The cpu backend runs the programs as the pages say. docs/nvshmem-cpu.md has a list.
"""

import re

import pytest

from tests.conftest import ROOT

PROGRAMS = ROOT / "tests/nvshmem_cpu/programs"
WEAK = ("--memory", "weak", "--seed", 1)


def run(run_cli, name, *options, args=(), code=0, backend="nvshmem-cpu", n_pes=2):
    done = run_cli(
        "run", "--backend", backend, *options, "-n", n_pes, PROGRAMS / f"{name}.py", *args,
        timeout=170, code=code,
    )  # fmt: skip
    return done.stdout + done.stderr


def seen(text):
    (numbers,) = re.findall(r"sees (.*)", text)
    return numbers.split()


def test_g_in_a_loop_loads_again(run_cli):
    """NVSHMEM's own is a plain load, which the optimiser takes out of the loop."""
    assert run(run_cli, "g_in_a_loop") == "ended\n" * 2
    assert run(run_cli, "g_in_a_loop", *WEAK) == "ended\n" * 2


@pytest.mark.parametrize("name", ["signal_fetch_then_data", "sync_then_a_peers_data"])
def test_new_data_are_seen_after(run_cli, name):
    """NVSHMEM has no fence there, so loads might give what the block has seen."""
    assert {*seen(run(run_cli, name, *WEAK))} == {"7"}


def test_new_data_are_seen_after_a_barrier(run_cli):
    """NVSHMEM's last access is a relaxed load: what the block has read meanwhile is seen again."""
    assert run(run_cli, "barrier_then_data", *WEAK).split("\n")[:2] == ["sees new"] * 2


@pytest.mark.parametrize("scope", ["thread", "warp"])
def test_new_data_are_seen_after_collectives(run_cli, scope):
    """Without the fence, `fcollect` and `alltoall` of a thread give old ones with this seed."""
    weak = ("--memory", "weak", "--seed", 2)
    assert run(run_cli, "collective_then_data", *weak, args=[scope]) == "old 0 0 0 0 0 0 0\n" * 2


def test_a_wait_returns_the_signal_that_it_has_seen(run_cli):
    """NVSHMEM's own loads it again, after its fence: a later one, in one run of four."""
    assert run(run_cli, "waits_return_what_they_saw") == "gets 1\n"


def test_a_fence_of_a_block_is_for_all_its_threads(run_cli):
    """NVSHMEM's thread 0 acts for all, before the others have come: 3 of 20 rounds are too old."""
    assert run(run_cli, "fence_for_a_block", *WEAK) == "sees 0 too old\n" * 2


def test_wait_until_any_takes_turns(run_cli):
    """The search begins one element further in each call."""
    found = run(run_cli, "wait_until_any_of_all", n_pes=1)
    assert found == "finds 0 1 2 0 1 2\n"


def test_sums_by_blocks_of_less_than_a_warp_are_refused(run_cli):
    """Without a network: NVSHMEM's are wrong, without an error."""
    assert run(run_cli, "sum_by_few_threads", args=[32]) == "sums 2\n"
    said = run(run_cli, "sum_by_few_threads", args=[16], code=1)
    assert "reduce_block: the block has 16 threads: NVSHMEM sums by whole warps" in said


def test_a_network_does_not_know_device_memory(run_cli):
    """On GPUs `device_array` is not registered, either."""
    said = run(run_cli, "put_from_device_memory", "--nodes", 2, code=1)
    assert "SymmetryError: PE 0, kernel send, " in said
    assert "PE 1 is on another node, and src (64 bytes at 0x" in said


def test_a_broadcast_writes_before_all_have_read_the_last(run_cli):
    """The pages allow it: PEs that read `dst` afterwards have to `sync`."""
    assert "overwritten True" in run(run_cli, "broadcast_twice", n_pes=3)
    assert "overwritten True" not in run(run_cli, "broadcast_twice", n_pes=3, backend="cpu")
