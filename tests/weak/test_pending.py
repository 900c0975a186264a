"""The list of pending operations: nothing comes before what a fence has put before it."""

import ctypes
import time

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.backends.cpu.operations.dynamic_updates import SET
from gpushmem.backends.cpu.weak.pending import (
    DEFAULT_QPS,
    OF_KERNELS,
    OWN,
    PATIENCE,
    PENDING,
    WEAK,
    functions,
)
from gpushmem.job.board import PE
from gpushmem.native.structs import new
from gpushmem.ops import QP_DEFAULT
from gpushmem.simt.base.layout import LAUNCH

PES = 3
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]


class Memory:
    """A WEAK record of one PE of three, of which the others are always idle."""

    def __init__(self, seed):
        self.calls, self.record, self.launch = functions(), new(WEAK), new(LAUNCH)
        self.pes, self.turns = np.zeros(PES, PE), np.zeros(PES, np.int64)
        self.performed, self.words = np.zeros(1, np.int64), np.zeros(100, np.int64)
        self.pes["initialised"] = 1
        self.record["seed"], self.record["n_pes"] = seed, PES
        for name, array in (
            ("pes", self.pes),
            ("turns", self.turns),
            ("performed", self.performed),
        ):
            self.record[name] = address_of(array)
        for name in OF_KERNELS:
            self.record[name] = self.calls[f"{name} address"]
        self.address = address_of(self.record)

    def call(self, number, pe):
        """Call an operation that sets a word of its own."""
        place = libc.malloc(OWN)
        entry = np.frombuffer((ctypes.c_char * OWN).from_address(place), PENDING)
        entry["pe"], entry["nbytes"], entry["count"], entry["data"] = pe, 0, 1, 0
        entry["what"], entry["width"], entry["value"] = SET, 8, 1
        entry["borrows"], entry["plain"], entry["qp"] = 0, 0, QP_DEFAULT
        entry["address"] = address_of(self.words) + 8 * number
        self.calls["commit"](self.address, place, 0, address_of(self.launch), 1)

    def fence(self):
        self.calls["fence"](self.address, 0, -1, DEFAULT_QPS)

    def idle(self):
        """All PEs have a turn in which nothing moves."""
        self.pes["turns"][1:] += 1
        return self.calls["host_idle"](self.address, 1)


STEPS = st.lists(st.sampled_from([*range(PES), "fence", "idle"]), max_size=60)


def held_to(steps, seed):
    """Follow the steps; the operations in the order in which they are performed."""
    memory, called, order = Memory(seed), [], []

    def look():
        new_ones = [k for k in range(len(called)) if memory.words[k] and k not in order]
        for k in new_ones:
            pe, fences = called[k]
            before = [j for j, (other, n) in enumerate(called) if other == pe and n < fences]
            assert all(memory.words[j] for j in before), (k, before)
        order.extend(new_ones)

    fences = 0
    for step in steps:
        if step == "fence":
            fences += 1
            memory.fence()
        elif step == "idle":
            memory.idle()
        else:
            called.append((step, fences))
            memory.call(len(called) - 1, step)
        look()
    for _ in range(4 * len(called) + 4):
        memory.idle()
        look()
    assert len(order) == len(called)  # nothing is lost
    assert memory.record["n"][0] == 0
    return order


@settings(max_examples=300, deadline=None)
@given(STEPS, st.integers(0, 1 << 40))
def test_a_fence_is_kept_and_nothing_is_lost(steps, seed):
    held_to(steps, seed)


def test_the_seed_decides_the_order():
    steps = [0, 1, 0, 2, 1, 0, "idle", "fence", 0, 1]
    orders = [tuple(held_to(steps, seed)) for seed in range(40)]
    assert orders == [tuple(held_to(steps, seed)) for seed in range(40)]
    assert len(set(orders)) > 10
    assert any(order.index(6) < order.index(7) for order in orders)
    assert any(order.index(7) < order.index(6) for order in orders)


def test_nothing_held_back_is_performed_while_a_pe_moves():
    memory = Memory(seed=1)
    for number in range(20):
        memory.call(number, 1)
    held = int(memory.record["n"][0])
    assert held
    for _ in range(5):
        assert memory.calls["host_idle"](memory.address, 1) == held  # PEs 1 and 2 have no turns
    while memory.idle():
        pass
    assert memory.words[:20].all()


def test_naps_do_not_put_off_what_has_waited_for_long():
    memory = Memory(seed=1)
    for number in range(20):
        memory.call(number, 1)
    assert memory.record["n"][0]
    end = time.monotonic() + 2 * PATIENCE / 1e9
    while time.monotonic() < end:
        memory.calls["nap"](memory.address, 0)
        memory.calls["late"](memory.address)
    assert memory.words[:20].all()
