"""NVSHMEM's proxy: a thread that does what kernels ask of PEs whose memory is not mapped.

The vendor's device code writes such requests into a `channel`; on a GPU its host library
passes them to a network adapter. Here the thread is the adapter, too: it reads and writes the
peers' segments, which this process has mapped, though the device code does not know it. What is
local must be memory that an adapter could reach: symmetric, or registered.

*Orders.* Without a seed requests are performed in the order of the channel, each as soon as it is
read. With one they come late and in any order that the channel leaves open, which is the order of
no transport: on the InfiniBand of NVSHMEM 3.4.5 (`transport_ib_common.cpp`, `ibrc.cpp`) requests to
a PE go in turn to several queue pairs, if so configured, and what one queue holds back another does
not; an atomic operation is a message that the peer's own proxy thread performs, after what comes
in behind it; and reads need not wait for writes. Its `fence` waits for all queues to that PE, and
`put_signal` fences between data and signal. So promised are: what precedes a fence in the channel,
whoever wrote it, comes before what follows it, for each PE by itself; a signal comes after the
data of its own `put_signal`, and of nothing else; a quiet is answered when all before it has been
performed. Beyond that, only updates of one word by one queue pair come in the order of the channel:
the device code of 3.8 sends those of one target through one queue (`ibgda_get_amo_qp`). A fence and
a quiet are of some queue pairs alone, if they name them. A fence that names none is of the default
one (`process_channel_qp_fence` in `proxy.cpp` of 3.4.5 then does nothing), a quiet of all. An
aligned word of a `put` is never seen in part, the `put` as a whole may be. Get and put read their
source when they are performed. A fetching atomic operation is performed late as well, and its
caller waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from gpushmem.artifacts.argument_packing import address_of
from gpushmem.backends.cpu.operations.access import TRAPS, explain
from gpushmem.backends.cpu.seeded_order import number_of
from gpushmem.backends.cpu.sync.address_ranges import Ranges
from gpushmem.backends.nvshmem_cpu import channel
from gpushmem.backends.nvshmem_cpu.channel import AMO, CUT
from gpushmem.backends.nvshmem_cpu.network_adapter import ENTRY, EXIT, MOST, NO_SUCH_ATOMIC, PROXY
from gpushmem.diagnosis.arrays import Arrays
from gpushmem.errors import KernelError, ShmemError
from gpushmem.native.structs import new, offset
from gpushmem.simt.launch import KernelFailure
from gpushmem.waiting_threads import help_others

__all__ = ["Proxy"]

RING_LOG = 22  # the device code has been compiled for a ring of this size
G_BUF_LOG = 14  # bytes for values that are fetched, 16 each, beside which 32 times 8 bytes ...
WARP_OF_VALUES = 16  # ... so as many times this: for those that a warp fetches together
PAUSE = 2e-5  # seconds between two looks of a host that waits
STUCK = 10  # seconds without a move
FULL = 2  # `proxy` of the device state

OPERATIONS = {1: "put", 2: "p", 3: "put_signal", 4: "get", 5: "g", 6: "fence", 8: "quiet"}
ATOMICS = {
    2: "atomic_inc",
    3: "atomic_set", 4: "atomic_add", 5: "atomic_and", 6: "atomic_or", 7: "atomic_xor",
    8: "signal_op", 9: "signal_op", 10: "signal_op", 12: "atomic_fetch", 13: "atomic_fetch_inc",
    14: "atomic_fetch_add", 15: "atomic_fetch_and", 16: "atomic_fetch_or", 17: "atomic_fetch_xor",
    18: "atomic_swap", 19: "atomic_compare_swap",
}  # fmt: skip


class Proxy:
    """The proxy of one PE. `bases` are the addresses at which it has mapped the segments of all.

    `fail` is called in the proxy's thread, which then ends, with the error of a refused request.
    """

    def __init__(
        self,
        bases: Sequence[int],
        heap_bytes: int,
        my_pe: int,
        arrays: Arrays,
        ranges: Ranges,
        fail: Callable[[ShmemError], None],
        seed: int | None = None,
        ring_log: int = RING_LOG,
    ) -> None:
        self._arrays, self._fail = arrays, fail
        self._bases = np.array(bases, np.int64)
        self._entries = np.zeros(MOST + 1, ENTRY)
        self._ring = np.zeros(1 << ring_log - 3, np.int64)
        self._g_buf = np.zeros(1 << G_BUF_LOG, np.uint8)
        self._g_coalescing = np.zeros(WARP_OF_VALUES << G_BUF_LOG, np.uint8)
        for memory in (self._g_buf, self._g_coalescing):
            ranges.add(address_of(memory), address_of(memory) + memory.nbytes)
        self._record = record = new(PROXY)
        record["ring"], record["mask"] = address_of(self._ring), (1 << ring_log) - 1
        record["log"], record["g_log"] = ring_log, G_BUF_LOG
        record["g_buf"], record["g_mask"] = address_of(self._g_buf), (1 << G_BUF_LOG) - 1
        record["bases"] = address_of(self._bases)
        record["n_pes"], record["my_pe"] = len(bases), my_pe
        record["heap_bytes"], record["registered"] = heap_bytes, ranges.address
        record["entries"] = address_of(self._entries)
        if seed is not None:
            record["late"], record["seed"] = 1, number_of(seed, my_pe)
        self._lock = threading.Lock()
        self._done: tuple[tuple[int, ...], float] = (), 0.0
        self._thread = threading.Thread(target=self._run, name="gpushmem-proxy", daemon=True)

    def fields(self) -> dict[str, int]:
        """The fields of the vendor's device state that are about the proxy."""
        at = {name: self.address + offset(PROXY, name) for name in PROXY.names or ()}
        return {
            "proxy": FULL,
            "proxy_ops_are_ordered": 0,
            "atomics_complete_on_quiet": 0,
            "proxy_channels_buf": address_of(self._ring),
            "proxy_channel_buf_size": self._ring.nbytes,
            "proxy_channel_buf_logsize": int(self._record["log"][0]),
            "proxy_channel_g_buf": address_of(self._g_buf),
            "proxy_channel_g_buf_size": self._g_buf.nbytes,
            "proxy_channel_g_buf_log_size": G_BUF_LOG,
            "proxy_channel_g_buf_head_ptr": at["g_buf_head"],
            "proxy_channel_g_coalescing_buf": address_of(self._g_coalescing),
            "proxy_channels_issue": at["issue"],
            "proxy_channels_complete": at["complete"],
            "proxy_channels_complete_local_ptr": at["complete_local"],
            "proxy_channels_quiet_issue": at["quiet_issue"],
            "proxy_channels_quiet_ack": at["quiet_ack"],
            "proxy_channels_cst_issue": at["cst_issue"],
            "proxy_channels_cst_ack": at["cst_ack"],
            "global_exit_request_state": at["exit_state"],
            "global_exit_code": at["exit_code"],
        }

    @property
    def address(self) -> int:
        """Address of the PROXY record."""
        return address_of(self._record)

    @property
    def pending(self) -> bool:
        """Whether requests are not performed, or a quiet not answered.

        While it is not, and no kernel of this PE moves, the proxy does not move either. Nor does it
        if a kernel has ended with an error in the middle of a request, which is never whole.
        """
        it = self._record[0]  # what is passed on is looked at where it comes from first
        waits = bool(
            it["processed"] != it["issue"]
            or it["live"] != 0
            or it["quiet_ack"] < it["quiet_issue"]
            or it["cst_ack"] < it["cst_issue"]
        )
        return waits and self._moves()

    def _moves(self) -> bool:
        """Whether it has done anything in the last STUCK seconds in which this was asked."""
        it, now = self._record[0], time.monotonic()
        done = tuple(int(it[name]) for name in ("processed", "performed", "quiet_ack", "cst_ack"))
        if done != self._done[0]:
            self._done = done, now
        return now - self._done[1] < STUCK

    @property
    def performed(self) -> int:
        """How much has been performed: copies, and updates of words."""
        return int(self._record["performed"][0])

    def late(self) -> None:
        """Nothing: it performs what waits by itself."""

    def quiet(self) -> None:
        """Return when all that has been asked for is done, or the proxy has ended, or is stuck."""
        with self._lock:
            asked = self._record["host_issue"][0] = self._record["issue"][0]
        while self._record["host_ack"][0] < asked and self._thread.is_alive() and self._moves():
            time.sleep(PAUSE)

    def start(self) -> None:
        """Begin."""
        channel.run()
        self._thread.start()

    def stop(self) -> None:
        """Do what has been asked for, and end."""
        self._record["stop"] = 1
        self._thread.join()

    def _run(self) -> None:
        help_others()
        channel.run()(self.address)
        error = self._error()
        if error is not None:
            self._fail(error)

    def _error(self) -> ShmemError | None:
        record = self._record[0]
        code, values = int(record["failed"]), record["values"].tolist()
        if code in (0, CUT):
            return None
        op, amo = int(record["op"]), int(record["amo"]) & 0x7F
        name = ATOMICS.get(amo, f"atomic operation {amo}") if op == AMO else OPERATIONS.get(op)
        if code == EXIT:
            return KernelError(f"a kernel has called nvshmem_global_exit({values[0]})")
        if code in TRAPS:
            failure = KernelFailure("", code, "", (), (), tuple(values), None)
            return explain(failure, str(name), self._arrays)
        if code == NO_SUCH_ATOMIC:
            return KernelError(f"{name}: there is none of {values[0]} bytes for PEs that are far")
        return KernelError(f"the proxy does not know NVSHMEM's request {values[0]}")
