"""Launches of this process that run, and what their threads wait for, read while they wait."""

from gpushmem.simt.compiler.groups import MEETING
from gpushmem.simt.compiler.primitives import LANE_MEETING, POLLING
from gpushmem.simt.run.kernel import running
from gpushmem.simt.run.waits import Wait, unstarted, waits

__all__ = ["LANE_MEETING", "MEETING", "POLLING", "Wait", "running", "unstarted", "waits"]
