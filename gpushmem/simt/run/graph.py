"""Graphs: what is queued on a stream while it is captured, to be queued again as often as wanted.

Launches that follow each other are one item of the queue that a graph is launched on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any, cast

from gpushmem.errors import ArgumentError
from gpushmem.simt.run.kernel import Running
from gpushmem.simt.run.stream import Launches, Stream

__all__ = ["Graph", "captured"]

Step = Launches | Callable[[Stream], object]


class Graph:
    """Launches and operations of a capture; `stream_of` finds the stream that `launch` is given."""

    def __init__(self, stream_of: Callable[[Any], Stream]) -> None:
        self._stream_of = stream_of
        self._steps: list[Step] | None = None  # from the end of the capture on

    def complete(self, work: list[Running | Callable[[Stream], object]]) -> None:
        """The capture has ended: this is what has been queued, in order."""
        steps: list[Step] = []
        for is_launch, some in groupby(work, key=lambda each: isinstance(each, Running)):
            if is_launch:
                steps.append(Launches(cast("list[Running]", list(some))))
            else:
                steps += cast("Iterator[Step]", some)
        self._steps = steps

    def launch(self, stream: Any = 0) -> None:
        """Queue all of it on `stream`, in order; asynchronous, as a launch is."""
        if self._steps is None:
            raise ArgumentError("a graph cannot be launched before its capture has ended")
        on = self._stream_of(stream)
        with on.device.lock:  # nothing comes between
            for step in self._steps:
                if isinstance(step, Launches):
                    on.submit(step)
                else:
                    step(on)


@contextmanager
def captured(stream: Stream, stream_of: Callable[[Any], Stream]) -> Iterator[Graph]:
    """Make a graph of what is queued on a stream in a `with` block, where it does not run."""
    graph = Graph(stream_of)
    work = stream.begin_capture()
    try:
        yield graph
    finally:
        stream.end_capture()
    graph.complete(work)
