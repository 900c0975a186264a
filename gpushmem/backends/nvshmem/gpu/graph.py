"""CUDA graphs: what is queued on a stream while it is captured, to be queued again and again."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cuda.bindings import driver
from cuda.core import LEGACY_DEFAULT_STREAM

from gpushmem.backends.nvshmem.gpu.device import Device
from gpushmem.backends.nvshmem.gpu.driver_errors import check
from gpushmem.errors import ArgumentError

__all__ = ["Graph", "captured"]

# What would break other captures, memory that is allocated for one, does not concern this one.
RELAXED = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED


class Graph:
    """A CUDA graph, from the end of the capture on; it keeps the stream, with its workspace."""

    def __init__(self, device: Device, stream: Any) -> None:
        self._device, self._stream = device, stream
        self._program: Any = None

    def complete(self, graph: Any) -> None:
        """The capture has ended: this is what has been queued."""
        self._program = check(driver.cuGraphInstantiate(graph, 0), "capture")
        check(driver.cuGraphDestroy(graph), "capture")
        # What is running then ends before it goes.
        weakref.finalize(self, driver.cuGraphExecDestroy, self._program).atexit = False

    def launch(self, stream: Any = 0) -> None:
        """Queue all of it on `stream`, in order; asynchronous, as a launch is."""
        if self._program is None:
            raise ArgumentError("a graph cannot be launched before its capture has ended")
        handle = self._device.stream_of(stream).handle
        check(driver.cuGraphLaunch(self._program, handle), "graph.launch")


@contextmanager
def captured(device: Device, stream: Any) -> Iterator[Graph]:
    """Make a graph of what is queued on a stream in a `with` block, where it does not run."""
    on, graph = device.stream_of(stream), Graph(device, stream)
    if on is LEGACY_DEFAULT_STREAM:
        raise ArgumentError(
            "the default stream cannot be captured: capture one of gpushmem.stream()"
        )
    if device.is_captured(on):
        raise ArgumentError("the stream is being captured already")
    with device.capturing:
        check(driver.cuStreamBeginCapture(on.handle, RELAXED), "capture")
        device.captures.append(threading.get_ident())
        try:
            yield graph
        except BaseException:
            driver.cuStreamEndCapture(on.handle)  # whatever it says of what is not complete
            raise
        finally:
            device.captures.pop()
        graph.complete(check(driver.cuStreamEndCapture(on.handle), "capture"))
