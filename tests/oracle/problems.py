"""The problems that the checker finds in numba-cuda's tests and that are there, with the reasons.

A rule is a pattern for the test's name, `module.Class.test`, and one for the checker's report.
"""

import re

SAME = "all threads write the same value to one element"
SHAPE = "copies shared memory that nobody has written: the test is that it compiles"

RULES = [
    (r"test_inline\.|test_launch_config_sensitive\.|test_caching\.", "^race: .* two writes", SAME),
    (r"test_warning\.", "^race: .* two writes .*in foo", SAME),
    (r"test_warp_ops\..*useful_syncwarp", r"^race: .*ary\[i\] = ary\[0\]",
     "thread 0 writes to ary[0] what is there already, while others read it"),
    (r"test_sm_creation\.|test_freevar\.", "^unwritten: ", SHAPE),
    (r"test_sm\..*test_issue_2393", "^unwritten: |^race: .* two writes",
     "threads 0 of all blocks write to one element what they find in unwritten shared memory"),
    (r"test_localmem\..*struct_model_type_arr", "^bounds: ",
     "writes ten elements to arrays of one: `np.array((10,))`"),
    (r"test_exception\..*warp_diverge", "^race: ",
     "all threads add to all elements; the test compares two such kernels, whose threads run in "
     "the same order"),
]  # fmt: skip

# Tests that are not checked, with the reasons.
LEFT_OUT = [
    (r"test_sync_at_matrix_row|test_ex_grid_sync", "1024 threads meet 1023 times in grid.sync()"),
    (r"test_ex_(laplace|3d_grid)", "a million accesses or meetings, and more"),
    (r"test_call_(force)?inline", "looks at how the kernel's code calls: it has calls that record"),
]


def why_wrong(test, report):
    """Why a test has a problem, or None if it should have none."""
    for name, text, why in RULES:
        if re.search(name, test) and re.search(text, report, re.DOTALL):
            return why
    return None


def left_out(test):
    """Why a test is not checked, or None if it is."""
    return next((why for name, why in LEFT_OUT if re.search(name, test)), None)
