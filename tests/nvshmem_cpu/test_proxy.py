"""The proxy's channel: what requests do, what is promised of their order, what is refused."""

import ctypes
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.backends.nvshmem_cpu.layout import STATE
from gpushmem.errors import ArgumentError, KernelError, SymmetryError
from tests.nvshmem_cpu import writer
from tests.nvshmem_cpu.writer import ALL, HEAP, Channel, in_time

SEEDS = range(24)
FAR = 1 << 20  # an offset outside of the heap
DATA, SIGNAL, MORE = 8, 4096, 512  # offsets


@pytest.fixture(params=[None, 1], ids=["in order", "late"])
def channel(request):
    with Channel(seed=request.param) as opened:
        yield opened
    assert opened.errors == []


def eventually(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def until_failed(channel):
    eventually(lambda: channel.errors)
    return channel.errors[0]


def large(dtype):
    """A number whose bytes differ."""
    return np.array([0x1122334455667788], "i8").view(dtype)[0].item()


# --- what requests do


@pytest.mark.parametrize("dtype", ["i1", "u2", "i4", "f4", "f8", "i8"])
def test_p_writes_one_element(channel, dtype):
    wanted = np.zeros(HEAP, np.uint8).view(dtype)
    for k in (0, 1, 5):
        value = large(dtype) - k
        wanted[k] = value
        channel.p(1, k * wanted.itemsize, value, dtype)
    channel.quiet()
    assert np.array_equal(channel.on(1, dtype), wanted)
    assert not channel.on(0).any()
    assert not channel.on(2).any()


@pytest.mark.parametrize("nbytes", [1, 3, 8, 9, 64, 1001, 30_000])
def test_put_and_get_copy(channel, nbytes):
    channel.on(0, "u1")[:nbytes] = np.arange(nbytes) % 251 + 1
    near = address_of(channel.on(0, "u1"))
    channel.put(2, 1003, near, nbytes)
    channel.quiet_pe(2)
    assert np.array_equal(channel.on(2, "u1")[1003 : 1003 + nbytes], channel.on(0, "u1")[:nbytes])
    assert np.count_nonzero(channel.on(2, "u1")) == nbytes
    channel.get(2, 1003, near + 32_000, nbytes)
    channel.quiet_pe(2)
    assert np.array_equal(
        channel.on(0, "u1")[32_000 : 32_000 + nbytes], channel.on(0, "u1")[:nbytes]
    )


def test_g_reads_into_the_buffers_of_the_proxy(channel):
    channel.on(1)[3] = large("i8")
    for field in ("proxy_channel_g_buf", "proxy_channel_g_coalescing_buf"):
        near = channel.fields[field]
        channel.get(1, 24, near, 8, writer.G)
        channel.quiet_pe(1)
        assert ctypes.c_int64.from_address(near).value == large("i8")


@pytest.mark.parametrize(
    ("what", "value", "result"),
    [
        (writer.SET, 9, 9), (writer.ADD, -5, 95), (writer.AND, 12, 4), (writer.OR, 3, 103),
        (writer.XOR, 5, 97), (writer.SIGNAL, 9, 9), (writer.SIGNAL_SET, 9, 9),
        (writer.SIGNAL_ADD, 9, 109), (writer.FETCH, 0, 100), (writer.FETCH_INC, 1, 101),
        (writer.FETCH_ADD, 7, 107), (writer.FETCH_AND, 12, 4), (writer.FETCH_OR, 3, 103),
        (writer.FETCH_XOR, 5, 97), (writer.SWAP, 9, 9),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["i2", "i4", "i8"])
def test_atomic_operations(channel, what, value, result, dtype):
    element = channel.on(1, dtype)
    element[1:4] = 55, 100, 66
    if what >= writer.FETCH:
        assert channel.fetch(what, 1, 2 * element.itemsize, value, 0, dtype) == 100
    else:
        channel.amo(what, 1, 2 * element.itemsize, value, 0, dtype)
        channel.quiet()
    assert element[:5].tolist() == [0, 55, result, 66, 0]


@pytest.mark.parametrize("dtype", ["i4", "i8", "f4", "f8"])
def test_compare_and_swap(channel, dtype):
    element, value = channel.on(1, dtype), large(dtype)
    swap = writer.COMPARE_SWAP
    assert channel.fetch(swap, 1, 0, value, 1, dtype, counter=0) == 0
    assert channel.fetch(swap, 1, 0, value, 0, dtype, counter=1) == 0
    assert channel.fetch(swap, 1, 0, 5, value, dtype, counter=2) == value
    assert element[0] == 5


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_numbers_are_added(channel, dtype):
    channel.on(1, dtype)[0] = 1.5
    channel.amo(writer.ADD, 1, 0, 2.25, 0, dtype)
    assert channel.fetch(writer.FETCH_ADD, 1, 0, -0.5, 0, dtype) == 3.75
    assert channel.on(1, dtype)[0] == 3.25


def test_results_go_round_their_buffer(channel):
    elements = channel.fields["proxy_channel_g_buf_size"] // 16
    for counter in (0, 1, elements - 1, elements, 3 * elements + 2):
        assert channel.fetch(writer.FETCH_INC, 1, 0, counter=counter) == channel.on(1)[0] - 1


@pytest.mark.parametrize(("what", "result"), [(writer.SIGNAL_SET, 2**40 + 3), (10, 2**40 + 10)])
def test_put_signal(channel, what, result):
    channel.on(0)[:100] = np.arange(100)
    channel.on(2)[512] = 7
    channel.put_signal(2, DATA, address_of(channel.on(0)), 800, SIGNAL, 2**40 + 3, what)
    eventually(lambda: channel.on(2)[512] == result)
    assert np.array_equal(channel.on(2)[1:101], channel.on(0)[:100])


def test_put_signal_without_data(channel):
    channel.put_signal(1, 0, 0, 0, SIGNAL, 1)
    channel.quiet()
    assert np.flatnonzero(channel.on(1)).tolist() == [SIGNAL // 8]


def test_consistency_is_answered(channel):
    channel.p(1, 0, 1)
    channel.quiet("cst")
    channel.quiet()


@pytest.mark.parametrize("seed", [None, 3])
def test_rounds_over_the_end_of_the_ring(seed):
    """Requests of 8 to 48 bytes in a ring of 256."""
    with Channel(seed=seed, ring_log=8) as channel:
        near = address_of(channel.on(0))
        for k in range(1, 3001):
            channel.p(1, 8 * (k % 100), k)
            channel.fence()
            channel.on(0)[k % 50] = k
            channel.put_signal(2, 8 * (k % 50), near + 8 * (k % 50), 8, SIGNAL, 1, 10)
            assert channel.fetch(writer.FETCH_INC, 1, SIGNAL, counter=k) == k - 1
            channel.quiet_pe(2)
            assert channel.on(2)[k % 50] == k
        channel.quiet()
        assert channel.on(1)[:100].tolist() == [3000, *range(2901, 3000)]
        assert channel.on(2)[512] == 3000
    assert channel.errors == []


@pytest.mark.parametrize("seed", [None, 3])
def test_several_threads_write_at_once(seed):
    """Four threads, in a ring in which there is room for few requests."""
    times, errors = 400, []

    def work(k):
        for number in range(times):
            channel.amo(writer.ADD, 1, 0, 1)
            channel.p(2, 8 * (k * times + number), number + 1)
            if number % 7 == k:
                channel.quiet_pe(2)
                if channel.on(2)[k * times + number] != number + 1:
                    errors.append((k, number))
        channel.quiet()
        if channel.on(1)[0] < times:
            errors.append(k)

    with Channel(seed=seed, ring_log=7) as channel:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert channel.on(1)[0] == 4 * times
        assert channel.on(2)[: 4 * times].tolist() == [*range(1, times + 1)] * 4
    assert not errors


# --- atomicity


def test_atomic_with_processors_and_other_adapters():
    segments, times = np.zeros((3, HEAP), np.uint8), 3000
    with Channel(segments=segments, me=0) as one, Channel(segments=segments, me=2, seed=1) as two:
        work = [
            lambda: [one.amo(writer.ADD, 1, 0, 1) for _ in range(times)],
            lambda: [two.amo(writer.ADD, 1, 0, 1) for _ in range(times)],
            lambda: one.calls["add_often"](address_of(segments[1]), 1000 * times),
        ]
        threads = [threading.Thread(target=each) for each in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        one.quiet()
        two.quiet()
        assert one.on(1)[0] == 1002 * times


# --- orders


def outcome(seed, act, first, second):
    """What PE 1 sees at `first` when it sees something new at `second`."""
    with Channel(seed=seed) as channel, ThreadPoolExecutor(1) as pool:
        channel.on(0)[:100] = 5
        places = [address_of(channel.on(1)) + offset for offset in (first, second)]
        seen = pool.submit(channel.calls["see"], *places)
        act(channel, address_of(channel.on(0)))
        channel.proxy.quiet()
        assert channel.on(1)[first // 8] == 5
    assert channel.errors == []
    return in_time(seen.result())


def outcomes(act, first=DATA, second=SIGNAL):
    """What is seen with some seeds: 0, the old, and 5, the new, if both can be."""
    found = set()
    for seed in range(500):
        found.add(outcome(seed, act, first, second))
        if found == {0, 5}:
            break
    return found


def always(act, first=DATA, second=SIGNAL):
    """Whether the new is seen with each seed."""
    return all(outcome(seed, act, first, second) == 5 for seed in SEEDS)


def puts(between):
    def act(channel, near):
        channel.put(1, DATA, near, 8)
        between(channel)
        channel.p(1, SIGNAL, 1)

    return act


@pytest.mark.parametrize("between", ["nothing", "a fence to another PE"])
def test_requests_are_seen_in_another_order(between):
    fence = (lambda channel: channel.fence(2)) if "fence" in between else lambda channel: None
    assert outcomes(puts(fence)) == {0, 5}


@pytest.mark.parametrize("pe", [None, 1, ALL])
def test_a_fence_orders(pe):
    assert always(puts(lambda channel: channel.fence(pe)))


@pytest.mark.parametrize("what", ["quiet", "quiet_pe"])
def test_a_quiet_completes(what):
    for seed in SEEDS:
        with Channel(seed=seed) as channel:
            channel.on(0)[:] = 5
            near = address_of(channel.on(0))
            for k in range(20):
                channel.put(1, 1000 * k, near, 1000)
            channel.quiet() if what == "quiet" else channel.quiet_pe(1)
            assert channel.on(1)[:2500].all()


@pytest.mark.parametrize("what", ["quiet", "cst"])
def test_a_request_that_is_being_written_keeps_a_quiet_only(what):
    with Channel() as channel, ThreadPoolExecutor(1) as pool:
        channel.calls["add_often"](channel.fields["proxy_channels_issue"], 8)  # a fence of 8 bytes
        asked = pool.submit(channel.quiet, what)
        time.sleep(0.05)
        assert asked.done() == (what == "cst")
        assert channel.proxy.pending
        place = channel.fields["proxy_channels_buf"]
        ctypes.c_int64.from_address(place).value = writer.FENCE << 16 | 1
        asked.result(10)


def test_a_quiet_of_the_host():
    for seed in SEEDS:
        with Channel(seed=seed) as channel:
            for k in range(20):
                channel.p(1, 8 * k, 1)
            channel.proxy.quiet()
            assert channel.on(1)[:20].all()


def test_a_quiet_of_one_pe_leaves_others_late():
    for seed in range(500):
        with Channel(seed=seed) as channel:
            for k in range(8):
                channel.p(2, 8 * k, 1)
            channel.p(1, 0, 1)
            channel.quiet_pe(1)
            if not channel.on(2)[:8].all():
                return
    pytest.fail("all were performed at once")


def test_a_signal_comes_after_its_data():
    assert always(lambda channel, near: channel.put_signal(1, DATA, near, 8, SIGNAL, 1))

    def last_word(channel, near):
        channel.put_signal(1, DATA, near, 400, SIGNAL, 1)

    assert always(last_word, first=DATA + 392)


def test_a_signal_may_come_before_data_of_other_operations():
    def act(channel, near):
        channel.put(1, DATA, near, 8)
        channel.put_signal(1, MORE, near, 8, SIGNAL, 1)

    assert outcomes(act) == {0, 5}


def test_a_put_is_seen_in_part():
    def act(channel, near):
        channel.put(1, DATA, near, 800)

    assert outcomes(act, first=DATA, second=DATA + 792) == {0, 5}


def test_words_of_a_put_are_whole():
    for seed in SEEDS:
        with Channel(seed=seed) as channel:
            channel.on(0)[:4] = -1
            channel.put(1, 8, address_of(channel.on(0)), 24)
            values = set()
            while not channel.on(1)[1:4].all():
                values |= set(channel.on(1)[1:4].tolist())
            assert values <= {0, -1}


def test_updates_of_a_word_are_in_order():
    for seed in SEEDS:
        with Channel(seed=seed) as channel:
            for value in (1, 2, 3):
                channel.amo(writer.SET, 1, 0, value)
            assert channel.fetch(writer.FETCH, 1, 0) == 3


def test_the_source_of_a_put_is_read_late():
    found = set()
    for seed in range(500):
        if found == {1, 2}:
            break
        with Channel(seed=seed) as channel:
            channel.on(0)[0] = 1
            channel.put(1, 0, address_of(channel.on(0)), 8)
            eventually(lambda: channel.proxy._record["requests"][0] == 1)
            channel.on(0)[0] = 2
            channel.quiet()
            found.add(int(channel.on(1)[0]))
    assert found == {1, 2}


def test_a_seed_decides_for_each_request():
    def hashes(seed):
        with Channel(seed=seed) as channel:
            for k in range(40):
                channel.p(1, 8 * k, 1)
            channel.quiet()
            entries = channel.proxy._entries[:-1]
            return set(entries["hash"][entries["hash"] != 0].tolist())

    first, again, other = hashes(4), hashes(4), hashes(5)
    assert first & again
    assert not first & other


# --- refusals

OUTSIDE = ": a remote array of {} bytes at 0x[0-9a-f]+ is not on the symmetric heap"
STRANGE = r": PE 1 is on another node, and {} \(16 bytes at 0x[0-9a-f]+\) is neither symmetric"
NONE = ": there is none of {} bytes for PEs that are far"
REFUSED = [
    (lambda c, near: c.p(3, 0, 1), ArgumentError, "p: there is no PE 3: PEs are 0 to 2"),
    (lambda c, near: c.put(9, 0, near, 8), ArgumentError, "put: there is no PE 9"),
    (lambda c, near: c.fence(7), ArgumentError, "fence: there is no PE 7"),
    (lambda c, near: c.p(1, HEAP - 4, 1), SymmetryError, "p" + OUTSIDE.format(8)),
    (lambda c, near: c.get(1, FAR, near, 16), SymmetryError, "get" + OUTSIDE.format(16)),
    (lambda c, near: c.amo(4, 1, FAR, 1), SymmetryError, "atomic_add" + OUTSIDE.format(8)),
    (lambda c, near: c.amo(9, 1, FAR), SymmetryError, "signal_op" + OUTSIDE.format(8)),
    (
        lambda c, near: c.put_signal(1, 0, near, 8, FAR, 1),
        SymmetryError, "put_signal" + OUTSIDE.format(8),
    ),
    (lambda c, near: c.amo(19, 1, 12, 1), ArgumentError, "atomic_compare_swap: .* not aligned"),
    (lambda c, near: c.put(1, 0, c.other, 16), SymmetryError, "put" + STRANGE.format("src")),
    (lambda c, near: c.get(1, 0, c.other, 16), SymmetryError, "get" + STRANGE.format("dst")),
    (
        lambda c, near: c.put_signal(1, 0, c.other, 16, 0, 1),
        SymmetryError, "put_signal" + STRANGE.format("src"),
    ),
    (lambda c, near: c.put(1, 0, near - 8, 16), SymmetryError, "put" + STRANGE.format("src")),
    (
        lambda c, near: c.put(1, 0, near + HEAP - 8, 16),
        SymmetryError, "put" + STRANGE.format("src"),
    ),
    (lambda c, near: c.amo(1, 1, 0), KernelError, "atomic operation 1" + NONE.format(8)),
    (lambda c, near: c.amo(4, 1, 0, 1, 0, "i1"), KernelError, "atomic_add" + NONE.format(1)),
    (lambda c, near: c.amo(4, 1, 0, 1, 0, "f2"), KernelError, "atomic_add" + NONE.format(2)),
    (lambda c, near: c.send(9 << 16), KernelError, "does not know NVSHMEM's request 9"),
]  # fmt: skip


@pytest.mark.parametrize(("act", "kind", "text"), REFUSED)
@pytest.mark.parametrize("seed", [None, 2])
def test_refused(act, kind, text, seed):
    segments = np.zeros((5, HEAP), np.uint8)[1:4]  # what is beside them is mapped
    other = np.zeros(2)
    with Channel(seed=seed, segments=segments) as channel:
        channel.other = address_of(other)
        act(channel, address_of(channel.on(0)))
        error = until_failed(channel)
        assert type(error) is kind
        assert re.search(text, str(error))
    assert len(channel.errors) == 1
    assert not channel.on(1)[2:].any()


@pytest.mark.parametrize("gone", [50, 60])
def test_registered_memory_can_be_sent_until_it_is_not(gone):
    arrays = [np.full(2, k + 1) for k in range(100)]
    ends = [(address_of(a), address_of(a) + a.nbytes) for a in arrays]
    with Channel() as channel:
        for low, high in ends:
            channel.ranges.add(low, high)
        for k, (low, _) in enumerate(ends):
            channel.put(1, 16 * k, low, 16)
        channel.quiet()
        assert channel.on(1)[:200].tolist() == np.repeat(np.arange(1, 101), 2).tolist()
        for k in (50, 51, 60):
            channel.ranges.remove(*ends[k])
        channel.ranges.add(*ends[51])
        channel.put(1, 0, ends[51][0], 16)
        channel.put(1, 0, ends[99][0], 16)
        channel.quiet()
        channel.put(1, 0, ends[gone][0], 16)
        assert "neither symmetric nor registered" in str(until_failed(channel))


def test_refusals_name_addresses():
    for offset in (-8, HEAP, FAR):
        with Channel() as channel:
            channel.p(1, offset, 1)
            address = address_of(channel.on(0)) + offset
            assert f"8 bytes at {address:#x} is not on" in str(until_failed(channel))


def test_refusals_name_arrays():
    with Channel() as channel:
        other = np.zeros(2)
        channel.arrays.note(other, "the device array")
        channel.put(1, 0, address_of(other), 16)
        assert re.search("; it is the device array .*float64", str(until_failed(channel)))


def test_a_global_exit():
    with Channel() as channel:
        at = [channel.fields[f"global_exit_{name}"] for name in ("code", "request_state")]
        for address, value in zip(at, (42, 2), strict=True):
            ctypes.c_int32.from_address(address).value = value
        assert str(until_failed(channel)) == "a kernel has called nvshmem_global_exit(42)"


# --- beginning and end


def test_what_is_late_is_pending():
    for seed in range(500):
        with Channel(seed=seed) as channel:
            before = channel.proxy.performed
            channel.p(1, 0, 1)
            eventually(lambda: channel.proxy._record["requests"][0] == 1)
            pending = channel.proxy.pending
            late = channel.on(1)[0] == 0
            assert pending or not late
            channel.quiet()
            assert not channel.proxy.pending
            assert channel.proxy.performed == before + 1
        if late:
            return
    pytest.fail("all were performed at once")


@pytest.mark.parametrize("seed", [None, 1])
def test_what_has_been_asked_for_is_done_before_the_end(seed):
    with Channel(seed=seed, ring_log=16) as channel:
        for k in range(500):
            channel.p(1, 8 * k, 1)
    assert channel.on(1)[:500].all()
    assert not channel.proxy.pending


def test_a_request_that_is_not_finished_does_not_keep_the_thread():
    channel = Channel()
    with channel:
        address = channel.fields["proxy_channels_buf"]
        ctypes.c_int64.from_address(address).value = writer.P << 16 | 1  # its first word
        time.sleep(0.01)
    assert channel.errors == []


def test_the_device_state_has_the_fields():
    assert Channel().fields.keys() <= set(STATE.names)


def test_an_idle_proxy_rests():
    with Channel():
        time.sleep(0.1)
        before = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - before < 0.1
