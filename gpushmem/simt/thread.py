"""What a device function knows of the thread that calls it, and how that waits, meets and fails.

The `*_word` functions are addresses: of the thread's structures in `layout`, and of C strings.
"""

from gpushmem.simt.compiler.groups import (
    arrive_in_call,
    arrive_in_step,
    begin_call,
    block_group,
    mark_of,
    release,
    warp_group,
)
from gpushmem.simt.compiler.primitives import (
    LOOKS,
    alone,
    begin_wait,
    block_of,
    core_word,
    end_wait,
    enter_timed,
    fail_if,
    fail_with,
    fiber_word,
    launch_word,
    leave_timed,
    pause,
    poll,
    site_word,
    text_word,
    thread_of,
    thread_word,
    unpacked,
    user_word,
)

__all__ = [
    "LOOKS", "alone", "arrive_in_call", "arrive_in_step", "begin_call", "begin_wait",
    "block_group", "block_of", "core_word", "end_wait", "enter_timed", "fail_if", "fail_with",
    "fiber_word", "launch_word", "leave_timed", "mark_of", "pause", "poll", "release", "site_word",
    "text_word", "thread_of", "thread_word", "unpacked", "user_word", "warp_group",
]  # fmt: skip
