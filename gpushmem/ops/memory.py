"""Other PEs' memory as arrays."""

from __future__ import annotations

from gpushmem.ops.roles import MulticastView, Pe, TeamHandle, View, Views
from gpushmem.ops.row import declare


@declare(on_host=True, stream=False)
def peer_array(array: Views, pe: Pe) -> View:
    """Return `array` (symmetric) as it is on `pe`: loads and stores then reach that PE's memory.

    `fence`, `quiet` and barriers treat these stores like `p`. The memory of a PE that is not in
    TEAM_SHARED cannot be reached so: on the host that raises `SymmetryError`; in a kernel the array
    is null (`a.ctypes.data == 0`) and must not be used, on the cpu backend that is an error. Ask
    `team_translate_pe(TEAM_WORLD, pe, TEAM_SHARED) >= 0` first. NVSHMEM 3: nvshmem_ptr.
    """


@declare(on_host=True, stream=False)
def multicast_array(array: Views, team: TeamHandle) -> MulticastView:
    """Return `array` (symmetric) as it is on all PEs of `team`: a store reaches all of them.

    It can be assigned to (`m[i] = value`) but not read. All PEs of `team` must be in TEAM_SHARED;
    for others it raises `SymmetryError` on the host, and in kernels on the cpu backend. It cannot
    be passed to a kernel: call this in the kernel. NVSHMEM 3: nvshmemx_mc_ptr.
    """
