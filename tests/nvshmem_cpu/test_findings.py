"""What NVSHMEM's device code does otherwise than our pages say, shown by running it.

Each program is right by docs/memory-model.md. What it does on GPUs, as far as a CPU can show it, is
what these tests want now: whoever mends the lowering turns the test around. The cpu backend runs
the same programs as the pages say. docs/nvshmem-cpu.md has the list.
"""

import re

import pytest

from tests.conftest import ROOT

PROGRAMS = ROOT / "tests/nvshmem_cpu/programs"


def run(run_cli, name, *options, args=(), code=0, backend="nvshmem-cpu", n_pes=2):
    done = run_cli(
        "run", "--backend", backend, *options, "-n", n_pes, PROGRAMS / f"{name}.py", *args,
        timeout=170, code=code,
    )  # fmt: skip
    return done.stdout + done.stderr


def seen(text):
    (numbers,) = re.findall(r"sees (.*)", text)
    return numbers.split()


def test_loads_of_g_are_taken_out_of_a_loop(run_cli):
    """C0: the loop has no load left. With weak memory accesses are calls, and it ends."""
    said = run(run_cli, "g_in_a_loop", "--timeout", 5, code=124)
    assert re.search(r"PE 1: kernel poll, .* g_in_a_loop\.py:\d+ in poll, .*\n +is in a loop", said)
    assert run(run_cli, "g_in_a_loop", backend="cpu") == "ended\n" * 2


@pytest.mark.parametrize("name", ["signal_fetch_then_data", "sync_then_a_peers_data"])
def test_old_data_are_seen_after(run_cli, name):
    """H1 and H4: neither is followed by a fence, so loads may give what the block has seen."""
    weak = ("--memory", "weak", "--seed", 1)
    assert {*seen(run(run_cli, name, *weak))} == {"0", "7"}
    assert {*seen(run(run_cli, name, *weak, backend="cpu"))} == {"7"}


def test_old_data_are_seen_after_a_barrier(run_cli):
    """Its last access is a relaxed load: what the block has read meanwhile may be seen again."""
    weak = ("--memory", "weak", "--seed", 1)
    assert "sees old" in run(run_cli, "barrier_then_data", *weak)
    assert "sees old" not in run(run_cli, "barrier_then_data", *weak, backend="cpu")


def test_wait_until_any_takes_turns(run_cli):
    """H3: the search begins one element further in each call."""
    found = run(run_cli, "wait_until_any_of_all", n_pes=1)
    assert found == "finds 0 1 2 0 1 2\n"


def test_blocks_of_less_than_a_warp_add_up_wrongly(run_cli):
    """M3, without a network: there is no error."""
    assert run(run_cli, "sum_by_few_threads", args=[32]) == "sums 2\n"
    assert run(run_cli, "sum_by_few_threads", args=[16]) in ("sums 0\n", "sums 1\n")


def test_a_network_does_not_know_device_memory(run_cli):
    """C1: on GPUs `device_array` is not registered, either."""
    said = run(run_cli, "put_from_device_memory", "--nodes", 2, code=1)
    assert "SymmetryError: PE 0, kernel send, " in said
    assert "PE 1 is on another node, and src (64 bytes at 0x" in said


def test_a_broadcast_writes_before_all_have_read_the_last(run_cli):
    """The pages allow it: PEs that read `dst` afterwards have to `sync`."""
    assert "overwritten True" in run(run_cli, "broadcast_twice", n_pes=3)
    assert "overwritten True" not in run(run_cli, "broadcast_twice", n_pes=3, backend="cpu")
