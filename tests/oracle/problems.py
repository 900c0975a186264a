"""The problems that the checker finds in numba-cuda's tests and that are there, with the reasons.

A rule is a pattern for the test's name, `module.Class.test`, and one for the checker's report.
"""

import re

RULES = []

# Tests that are left out as they take too long, with the reason.
TOO_LONG = [
    (
        r"test_sync_at_matrix_row|test_ex_grid_sync",
        "1024 threads meet 1023 times in grid.sync(): a million events",
    ),
]


def why_wrong(test, report):
    """Why a test has a problem, or None if it should have none."""
    rules = (why for name, text, why in RULES if re.search(name, test) and re.search(text, report))
    return next(rules, None)


def takes_too_long(test):
    """Why a test is not checked, or None if it is."""
    return next((why for name, why in TOO_LONG if re.search(name, test)), None)
