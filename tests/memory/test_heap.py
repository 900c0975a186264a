"""The heap's books: no overlap, same offsets for same calls, nothing lost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gpushmem.errors import ArgumentError, HeapExhausted, SymmetryError
from gpushmem.memory.heap import Heap
from gpushmem.size import format_size, parse_size

TOTAL = 64 * 256


class HeapMachine(RuleBasedStateMachine):
    """Random calls on two heaps; the second must agree with the first, as PEs must."""

    def __init__(self):
        super().__init__()
        self.heap, self.twin = Heap(TOTAL), Heap(TOTAL)
        self.held = {}
        self.most = 0

    @rule(nbytes=st.integers(0, TOTAL // 2), alignment=st.sampled_from([1, 256, 4096]))
    def alloc(self, nbytes, alignment):
        free_before = self.heap.largest_free
        try:
            offset = self.heap.alloc(nbytes, alignment)
        except HeapExhausted:
            assert max(nbytes, 1) > free_before - max(0, alignment - 256)
            with pytest.raises(HeapExhausted):
                self.twin.alloc(nbytes, alignment)
            return
        assert offset == self.twin.alloc(nbytes, alignment)
        assert offset % max(256, alignment) == 0
        self.held[offset] = nbytes
        self.most = max(self.most, sum(size for _, size in self.heap.blocks()))

    @rule(data=st.data())
    def free(self, data):
        if self.held:
            offset = data.draw(st.sampled_from(sorted(self.held)))
            nbytes = self.held.pop(offset)
            assert (
                self.heap.free(offset)
                == self.twin.free(offset)
                == max(256, -(-nbytes // 256) * 256)
            )

    @invariant()
    def blocks_do_not_overlap(self):
        end = 0
        for offset, size in self.heap.blocks():
            assert offset >= end
            assert size >= self.held[offset]
            end = offset + size
        assert end <= TOTAL
        assert self.heap.used == sum(size for _, size in self.heap.blocks())
        assert self.heap.peak == self.most
        assert self.held.keys() == dict(self.heap.blocks()).keys()

    @invariant()
    def the_largest_gap_is_the_largest_free_block(self):
        ends = [0] + [o + n for o, n in self.heap.blocks()]
        starts = [o for o, _ in self.heap.blocks()] + [TOTAL]
        assert self.heap.largest_free == max(s - e for s, e in zip(starts, ends, strict=True))

    def teardown(self):
        for offset in self.held:
            self.heap.free(offset)
        assert (self.heap.used, self.heap.largest_free) == (0, TOTAL)


HeapMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestHeapMachine = HeapMachine.TestCase


@given(st.permutations(range(16)))
def test_freeing_in_any_order_makes_one_block_again(order):
    heap = Heap(16 * 256)
    offsets = [heap.alloc(200) for _ in range(16)]
    assert heap.largest_free == 0
    for k in order:
        heap.free(offsets[k])
    assert heap.largest_free == heap.total == 16 * 256
    assert heap.used == 0


def test_the_largest_free_block_can_be_allocated_behind_gaps_too():
    heap = Heap(1 << 16, gap=256)
    heap.alloc(1000)
    heap.alloc(heap.largest_free)
    assert heap.largest_free == 0


def test_the_best_fitting_hole_is_taken_and_the_lowest_among_equals():
    heap = Heap(100 * 256)
    blocks = [heap.alloc(n * 256) for n in (4, 1, 2, 1, 8, 1, 2, 1)]
    for k in (0, 2, 4, 6):
        heap.free(blocks[k])
    assert heap.alloc(2 * 256) == blocks[2]
    assert heap.alloc(2 * 256) == blocks[6]
    assert heap.alloc(2 * 256) == blocks[0]


def test_exhaustion_says_what_to_do():
    heap = Heap(1 << 20)
    keep = [heap.alloc(256 << 10) for _ in range(4)]
    heap.free(keep[0])
    heap.free(keep[2])
    with pytest.raises(HeapExhausted) as error:
        heap.alloc(300 << 10)
    text = str(error.value)
    for part in (
        "307200 bytes (300 KiB) requested", "largest free block has 262144 (256 KiB)",
        "524288 of 1048576 bytes", "fragmented", "--heap-size", "GPUSHMEM_HEAP_SIZE",
        "init(heap_size=",
    ):  # fmt: skip
        assert part in text
    with pytest.raises(HeapExhausted) as error:
        heap.alloc(2 << 20)
    assert "fragmented" not in str(error.value)


def test_a_full_heap_is_not_called_fragmented():
    heap = Heap(256)
    heap.alloc(1)
    for nbytes in (0, 1):
        with pytest.raises(HeapExhausted) as error:
            heap.alloc(nbytes)
        assert "fragmented" not in str(error.value)


def test_no_block_is_less_than_nothing():
    heap = Heap(1024)
    with pytest.raises(ArgumentError, match="-5"):
        heap.alloc(-5)
    assert heap.used == 0


def test_freeing_what_is_not_allocated():
    heap = Heap(4096)
    offset = heap.alloc(1)
    heap.free(offset)
    for wrong in (offset, 128, -256):
        with pytest.raises(SymmetryError, match="nothing is allocated at offset"):
            heap.free(wrong)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096), (4096, 4096), ("256M", 256 << 20), ("256m", 256 << 20), ("1G", 1 << 30),
        ("1.5GiB", 3 << 29), ("64k", 65536), ("64 KB", 65536), ("2T", 2 << 40), ("10B", 10),
        ("0.3K", 307), (2**62 + 1, 2**62 + 1), ("8589934591G", 2**63 - 2**30),
    ],
)  # fmt: skip
def test_sizes_people_write(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "", "M", "-1", "0", "0M", "1.2.3", "12Q", "1e3", "lots", "0.1", -5, "nan",
        "1.5", "1.5B", "10iB", "٣", "8388608T", 2**63, "9" * 400, "9" * 400 + "T", "9" * 5000,
    ],
)  # fmt: skip
def test_what_is_not_a_size(text):
    with pytest.raises(ArgumentError, match="is not a size"):
        parse_size(text)


@given(st.integers(1, 2**63 - 1))
def test_sizes_survive_writing_and_reading(size):
    assert parse_size(str(size)) == size


def test_sizes_for_people():
    shown = [format_size(n) for n in (0, 96, 1024, 2**20 - 1, 256 << 20, 3 << 29)]
    assert shown == ["0 bytes", "96 bytes", "1 KiB", "1024 KiB", "256 MiB", "1.5 GiB"]
