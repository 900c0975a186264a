"""What weak memory shows of the checker's corpus: programs with a bug end in different ways.

Each program runs once for each of SEEDS seeds, with its bug and without. What is in the arrays at
the end (`outcomes.py`) does not depend on the seed without the bug; with it, it does, or the job
fails.
"""

import re
from collections import defaultdict

import pytest

from tests.check.programs import cases
from tests.conftest import ROOT

SEEDS = 20
SAMPLE, FEW = {"fence_before_flag", "threads_write_then_block_sends"}, 12  # in CI
# Right in several ways: what is there at the end depends on which PE was first.
OPEN = {
    "counter_read_by_get", "fetching_atomic_is_no_fence", "flag_by_swap",
    "flag_of_a_line_again",  # lines of LL128 are filled up with anything
    "lock", "lock_of_one_bit", "lock_on_a_pe",
    "loser_writes_too", "reserved_is_not_written", "source_of_put_signal_nbi", "the_last_one_adds",
    "tickets_from_nowhere", "wait_until_any",
}  # fmt: skip
# The same with each seed: weak memory does not do what would show the bug.
COLLECTIVES = {  # they move their data when all threads and PEs have called, and have not gone on
    "argument_of_a_slow_pe", "filled_by_threads_then_reduced", "marked_while_exchanged",
    "strided_exchange", "sum_in_place_and_get",
}  # fmt: skip
GROUPS = {"a_block_call_is_no_barrier"}  # no thread returns from a call before all have called
OWN_STORES = {  # they are visible at once, also where a fence is missing or too narrow
    "flag_between_blocks", "last_block_sums", "lock_given_back_unfenced", "lock_taken_unfenced",
    "own_stores_without_quiet", "relaxed_load_of_a_flag", "the_last_block_adds",
}  # fmt: skip
ONE_PIECE = {  # cuda.atomic, plain stores and puts of a number are as good as atomic operations
    "counter_of_two_gpus", "flag_of_one_gpu", "flag_stored_to_a_peer", "half_of_a_word",
    "plain_load_of_what_is_stored", "put_over_units", "signal_by_four_bytes",
}  # fmt: skip
HOSTS = {  # threads of kernels are interrupted, hosts are not
    "copy_from_and_a_put", "host_polls_once", "streams_of_a_graph",
}  # fmt: skip
UNSEEN = {  # what is in shared memory, and nobody reads
    "source_changed_before_the_wait", "source_of_a_tile_changed_early",
}  # fmt: skip
ROOM = {  # all blocks of small grids run at the same time
    "barrier_made_of_a_counter", "waits_for_another_block",
}  # fmt: skip
HIDDEN = COLLECTIVES | GROUPS | OWN_STORES | ONE_PIECE | HOSTS | UNSEEN | ROOM
# Wrong with each seed: what nobody has written is poison; a flag that was there before is found.
POISONED = {
    "flag_again",
    "allocated_again", "halo_nobody_fills", "last_bin_of_a_histogram", "never_written",
    "sum_of_blocks_from_nothing",
}  # fmt: skip
NUMBA_CUDA = {"two_barriers_of_a_block"}  # and what says so; its memory is not weak
PROGRAMS = cases(SAMPLE, lambda name: "numba_cuda" not in name and name not in NUMBA_CUDA)


def outcomes(run_cli, one, seeds, *args):
    """The different ways in which a program ends: digests of all PEs; and how the job ended."""
    done = run_cli(
        "run", "--backend", "cpu", "--memory", "weak", "--tag-output", "-n", one.pes,
        ROOT / "tests/weak/outcomes.py", seeds, *one.words, *args, timeout=170,
    )  # fmt: skip
    found = defaultdict(dict)
    for pe, seed, digest in re.findall(r"^\[(\d+)\] seed (\d+): (\w+)", done.stdout, re.MULTILINE):
        found[seed][pe] = digest
    return {
        tuple(sorted(ends.items())) for ends in found.values() if len(ends) == int(one.pes)
    }, done


@pytest.mark.parametrize("one", PROGRAMS)
def test_a_bug_shows_within_20_seeds(run_cli, one):
    seeds = FEW if one.name in SAMPLE else SEEDS
    right, done = outcomes(run_cli, one, seeds, "fixed")
    assert done.returncode == 0, done.stderr
    assert len(right) == 1 or one.name in OPEN
    wrong, done = outcomes(run_cli, one, seeds)
    assert done.returncode != 0 or len(wrong) > 1 or one.name in HIDDEN | OPEN | POISONED
    assert wrong != right or one.name not in POISONED
