"""The results of bench/gpu as the tables of docs/performance.md.

python bench/gpu/page.py bench/results/gpu-h100.json
"""

import json
import re
import sys
from itertools import groupby
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1]))

from harness import seconds

COPIES = [f"{verb}{scope}" for scope in ("", "_warp", "_block") for verb in ("put", "get")]
CODE = re.compile(r"kernel\[grid, block\](\(\.\.\.\))?|^(?!launch|process|signal)\w+|\bquiet$")
PEERS = {"theirs": "nvshmem4py", "memcpy": "memcpy", "peer": "numba-cuda"}


def tables(rows):
    """Copies, a line for each size; and all else."""
    copied = sorted((r for r in rows if r["what"] in COPIES), key=_place)
    return _table(["PEs", "bytes", *COPIES], _copies(copied)), _table(
        ["what", "PEs", "bytes", "ours", "against", "peer", "time ratio", "of the rounds"],
        (_other(row) for row in rows if row["what"] not in COPIES),
    )


def _place(row):
    return row["n_pes"], row["bytes"]


def _pes(row):
    return f"{row.get('n_pes', 1)}{', MPS' if row.get('mps') else ''}"


def _copies(rows):
    for _, group in groupby(rows, _place):
        found = {row["what"]: row for row in group}
        first = next(iter(found.values()))
        cells = [
            f"{seconds(found[c]['ours'])}, {found[c]['ratio']:.2f}" if c in found else ""
            for c in COPIES
        ]
        yield [_pes(first), str(first["bytes"]), *cells]


def _other(row):
    peer = next(name for name in PEERS if name in row)
    against = "cuda.core" if "cuda.core" in row["what"] else PEERS[peer]
    return [
        CODE.sub(r"`\g<0>`", row["what"].split(", beside")[0]), _pes(row),
        str(row.get("bytes") or ""), seconds(row["ours"]), against, seconds(row[peer]),
        f"{row['ratio']:.2f}",
        f"{row['from']:.2f} to {row['to']:.2f}" if row["from"] != row["to"] else "",
    ]  # fmt: skip


def _table(columns, lines):
    ruled = [columns, ["---"] * len(columns), *lines]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in ruled)


if __name__ == "__main__":
    print(*tables(json.loads(Path(sys.argv[1]).read_text())["rows"]), sep="\n")
