"""Writes requests into a proxy's channel, as NVSHMEM's device code does (proxy_device.cuh, 3.8)."""

import ctypes
from functools import cache

import numpy as np
from numba import types

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.backends.cpu.sync.address_ranges import Ranges
from gpushmem.backends.nvshmem_cpu.proxy import Proxy
from gpushmem.diagnosis.arrays import Arrays
from gpushmem.native.c_function import c_function
from gpushmem.native.internal import internal
from gpushmem.native.memory import (
    atomic_add_word,
    compare_swap_word,
    load_acquire,
    monotonic_ns,
    sched_yield,
    store_release,
    word,
)
from gpushmem.native.structs import view

HEAP = 1 << 16
LIMIT = 30_000_000_000  # nanoseconds
PUT, P, PUT_SIGNAL, GET, G, FENCE, AMO, QUIET = range(1, 9)
SET, ADD, AND, OR, XOR, SIGNAL, SIGNAL_SET, SIGNAL_ADD = range(3, 11)
FETCH, FETCH_INC, FETCH_ADD, FETCH_AND, FETCH_OR, FETCH_XOR, SWAP, COMPARE_SWAP = range(12, 20)
FLOAT, QP, DEFAULT, ALL = 0x80, 100, 1, 1 << 15

# Addresses of the channel's parts, for the functions below.
CHANNEL = np.dtype([(name, "i8") for name in ("issue", "complete", "ring", "size", "log")])
as_channel = view(CHANNEL)
as_word = view(np.dtype([("v", "i8")]))


@internal
def wait_for(address, value):
    """Wait until a word is a value, or greater; not 0 if that takes too long."""
    start = monotonic_ns()
    while load_acquire(address) < value:
        if monotonic_ns() > start + LIMIT:
            return -1
        sched_yield()
    return 0


def send(channel, words, n, last):
    """Write a request of `n` words from its first or its second on; return where it ends."""
    it = as_channel(channel)
    at = atomic_add_word(it.issue, 8 * n)
    if wait_for(it.complete, at + 8 * n - it.size) != 0:
        return -1
    for k in range(last, last + n):
        place = at + 8 * (k % n)
        flag = 1 - ((place >> it.log) & 1)
        value = as_word(words + 8 * (k % n)).v
        store_release(it.ring + (place & (it.size - 1)), value | flag)
        if place % 7 == 0:
            sched_yield()
    return at + 8 * n


def ask_for(issue, asked):
    """Ask for all that has been issued; return what to wait for."""
    value = load_acquire(issue)
    before = load_acquire(asked)
    while before < value:
        before = compare_swap_word(asked, before, value)
    return value


def add_often(address, times):
    """Add one to a word so often, as a processor does."""
    for _ in range(times):
        atomic_add_word(address, 1)


def see(first, second):
    """What is at the first address when there is something new at the second."""
    return -1 if wait_for(second, 1) != 0 else load_acquire(first)


@cache
def functions():
    signatures = {
        send: word(word, word, word, word), wait_for.py_func: word(word, word),
        ask_for: word(word, word), add_often: types.void(word, word), see: word(word, word),
    }  # fmt: skip
    made = {}
    for function, signature in signatures.items():
        result = None if signature.return_type == types.void else ctypes.c_int64
        compiled = c_function(signature, function)
        made[function.__name__] = compiled.callable(result, *[ctypes.c_int64] * len(signature.args))
    return made


def in_time(answer):
    """An answer of one of them."""
    assert answer != -1, "the proxy does not go on"
    return answer


def number(value, dtype="i8"):
    """The bytes of a value as an integer."""
    return int.from_bytes(np.array(value, dtype).tobytes(), "little")


class Channel:
    """The proxy of PE 0, with the segments of several PEs; methods are the device's operations."""

    def __init__(self, n_pes=3, seed=None, ring_log=12, segments=None, me=0):
        if segments is None:
            segments = np.zeros((n_pes, HEAP), np.uint8)
        self.segments, self.errors, self.arrays, self.ranges = segments, [], Arrays(), Ranges()
        bases = [address_of(segment) for segment in segments]
        self.proxy = Proxy(
            bases, HEAP, me, self.arrays, self.ranges, self.errors.append, seed, ring_log
        )
        self.fields, self.calls = self.proxy.fields(), functions()
        self.record = np.zeros(1, CHANNEL)
        self.record["issue"] = self.fields["proxy_channels_issue"]
        self.record["complete"] = self.fields["proxy_channels_complete"]
        self.record["ring"] = self.fields["proxy_channels_buf"]
        self.record["size"], self.record["log"] = 1 << ring_log, ring_log

    def __enter__(self):
        self.proxy.start()
        return self

    def __exit__(self, *exception):
        self.proxy.stop()

    def on(self, pe, dtype="i8"):
        """The segment of a PE."""
        return self.segments[pe].view(dtype)

    def send(self, *words):
        """Write a request; where NVSHMEM does, its first word comes last."""
        given = np.array([word & 0xFFFFFFFFFFFFFF00 for word in words], np.uint64)
        last = words[0] >> 16 & 0xFF in (PUT, GET, G)
        places = address_of(self.record), address_of(given)
        return in_time(self.calls["send"](*places, len(words), last))

    def wait_for(self, address, value):
        in_time(self.calls["wait_for"](address, value))

    def _first(self, op, offset):
        return offset << 24 | op << 16 | 1 << 8

    def _copy(self, op, pe, offset, near, nbytes, queue=DEFAULT):
        return (
            self._first(op, offset), near, nbytes << 16 | (near & 0xFF) << 8, queue << 32 | pe << 16
        )  # fmt: skip

    def put(self, pe, offset, near, nbytes):
        self.send(*self._copy(PUT, pe, offset, near, nbytes))

    def get(self, pe, offset, near, nbytes, op=GET):
        self.send(*self._copy(op, pe, offset, near, nbytes))

    def p(self, pe, offset, value, dtype="i8"):
        bits, size = number(value, dtype), np.dtype(dtype).itemsize
        low = (bits & 0xFFFFFFFF) << 32
        self.send(self._first(P, offset), low | pe << 16, bits & ~0xFFFFFFFF | size << 16)

    def amo(self, what, pe, offset, value=0, compare=0, dtype="i8", counter=0):
        bits, other = number(value, dtype), number(compare, dtype)
        if np.dtype(dtype).kind == "f":
            what |= FLOAT
        size = np.dtype(dtype).itemsize
        self.send(
            self._first(AMO, offset),
            (bits & 0xFFFFFFFF) << 32 | pe << 16 | what << 8,
            bits & ~0xFFFFFFFF | size << 16 | (other & 0xFF) << 8,
            other & ~0xFF,
            counter << 8,
        )

    def fetch(self, what, pe, offset, value=0, compare=0, dtype="i8", counter=0):
        """A fetching atomic operation with the `counter`-th element of the buffer for results."""
        size = self.fields["proxy_channel_g_buf_size"]
        element = self.fields["proxy_channel_g_buf"] + counter * 16 % size
        self.amo(what, pe, offset, value, compare, dtype, counter)
        self.wait_for(element + 8, counter * 16 // size * 2 + 1)
        memory = (ctypes.c_char * 8).from_address(element)
        return np.frombuffer(memory, dtype, 1)[0].item()

    def put_signal(self, pe, offset, near, nbytes, signal, value, what=SIGNAL_SET):
        signal_word = signal << 24 | what << 16 | (value & 0xFF) << 8
        self.send(*self._copy(PUT_SIGNAL, pe, offset, near, nbytes), signal_word, value & ~0xFF)

    def fence(self, pe=None):
        if pe is None:
            self.send(FENCE << 16)
        else:
            self.send(1 << 32 | (QP + FENCE) << 16, DEFAULT << 32 | pe << 16 | (QP + FENCE) << 8)

    def quiet_pe(self, pe):
        """The quiet that ends a blocking operation."""
        op = QP + QUIET
        end = self.send(1 << 32 | op << 16, DEFAULT << 32 | pe << 16 | op << 8)
        self.wait_for(self.fields["proxy_channels_complete"], end)

    def quiet(self, what="quiet"):
        at = [self.fields[f"proxy_channels_{name}"] for name in ("issue", f"{what}_issue")]
        end = self.calls["ask_for"](*at)
        self.wait_for(self.fields[f"proxy_channels_{what}_ack"], end)
