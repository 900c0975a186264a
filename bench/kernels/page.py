"""The tables and plots of docs/kernels.md, from the rows of bench/results/kernels.json."""

from pathlib import Path

from harness import seconds

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "kernels.md"
MARK = "<!-- What follows is written by bench/kernels. -->\n"
COLUMNS = (
    "case", "PEs", "fused", "phases", "ratio", "overlap", "NumPy + mpi4py", "ratio",
    "bytes sent", "formula",
)  # fmt: skip


def overlap(row):
    """How much of the shorter of communicating and computing is hidden; negative: none, and worse.

    Phases alone, without the barriers between them, would take their sum; the most that can be
    hidden is what is not the longest phase.
    """
    alone = row["alone"].values()
    hideable = sum(alone) - max(alone)
    return (sum(alone) - row["fused"]) / hideable if hideable else 0.0


def cells(row):
    arrived = row.get("arrived")
    return [
        row["label"], str(row["n_pes"]), seconds(row["fused"]), seconds(row["phased"]),
        f"{row['phased'] / row['fused']:.2f}x", f"{overlap(row):.0%}", seconds(row["mpi"]),
        f"{row['mpi'] / row['fused']:.2f}x", "" if arrived is None else f"{arrived:,}",
        f"{row['formula']:,}",
    ]  # fmt: skip


def table(rows):
    """Markdown, a line for each case and number of PEs."""
    lines = [COLUMNS, ["---", *["--:"] * (len(COLUMNS) - 1)]]
    lines += [cells(row) for row in sorted(rows, key=lambda row: row["n_pes"])]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def plot(name, title, rows):
    """Speed of the fused kernel as a ratio to both peers; returns the picture's path."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "gpushmem"  # the same picture from the same numbers
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3), sharey=True)
    for axis, n in zip(axes, (2, 4), strict=True):
        mine = [row for row in rows if row["n_pes"] == n]
        for key, label in (("phased", "phases, with barriers"), ("mpi", "NumPy + mpi4py")):
            ratios = [row[key] / row["fused"] for row in mine]
            axis.plot([row["label"] for row in mine], ratios, marker="o", label=label)
        axis.axhline(1, color="grey", linewidth=1)
        axis.set_yscale("log", base=2)
        axis.yaxis.set_major_formatter("{x:g}x")
        axis.set_title(f"{n} PEs")
        axis.tick_params(axis="x", rotation=30)
    axes[0].set_ylabel("speed of the fused kernel")
    axes[0].legend()
    figure.suptitle(title)
    figure.tight_layout()
    path = DOCS / "plots" / f"{name}.svg"
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path


def write(families):
    """Put all of them at the end of the page."""
    text = PAGE.read_text().split(MARK)[0] + MARK
    for name, family in families.items():
        path = plot(name, family["title"], family["rows"])
        picture = f"![speed of the fused kernel]({path.relative_to(DOCS)})"
        text += f"\n### {family['title']}\n\n{picture}\n\n{table(family['rows'])}"
    PAGE.write_text(text)
