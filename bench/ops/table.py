"""The measurements as a table for docs/performance-ops.md: a line each, the peers side by side."""

MARK = "<!-- The table is written by bench/ops. -->\n"


def table(rows):
    """Markdown of the rows in results/ops.json."""
    peers = list(dict.fromkeys(row["against"] for row in rows))
    columns = ["what", "ours", *(c for peer in peers for c in (peer, "speed ratio"))]
    lines = [columns, ["---", "--:"] + ["--:"] * 2 * len(peers)]
    for what in dict.fromkeys(row["what"] for row in rows):
        same = [row for row in rows if row["what"] == what]
        lines.append([what, same[0]["ours"], *(c for r in same for c in (r["peer"], r["ratio"]))])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
