"""The tables of docs/kernels.md, and plots, from the rows of bench/results/kernels.json."""

from pathlib import Path

from harness import RESULTS, seconds

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "kernels.md"
PLOTS = RESULTS / "plots"  # not in git
MARK = "<!-- What follows is written by bench/kernels. -->\n"
COLUMNS = (
    "case", "PEs", "fused", "phases", "ratio", "overlap", "NumPy + mpi4py", "ratio",
    "bytes sent", "formula",
)  # fmt: skip


def overlap(row):
    """Fraction of the time that can be hidden which is hidden; negative if slower than phases.

    Phases alone, without the barriers between them, would take their sum; at most everything
    except the longest phase can be hidden.
    """
    alone = row["alone"].values()
    hideable = sum(alone) - max(alone)
    return (sum(alone) - row["fused"]) / hideable if hideable else 0.0


def cells(row):
    arrived = row.get("arrived")
    graph = [] if "graph" not in row else [
        seconds(row["graph"]), f"{row['mpi'] / row['graph']:.2f}x",
    ]  # fmt: skip
    return [
        row["label"], str(row["n_pes"]), seconds(row["fused"]), seconds(row["phased"]),
        f"{row['phased'] / row['fused']:.2f}x", f"{overlap(row):.0%}", seconds(row["mpi"]),
        f"{row['mpi'] / row['fused']:.2f}x", "" if arrived is None else f"{arrived:,}",
        f"{row['formula']:,}", *graph,
    ]  # fmt: skip


def table(rows):
    """Return a Markdown table, one row per case and number of PEs."""
    columns = [*COLUMNS, *(("in a graph", "ratio to mpi4py") if "graph" in rows[0] else ())]
    lines = [columns, ["---", *["--:"] * (len(columns) - 1)]]
    lines += [cells(row) for row in sorted(rows, key=lambda row: row["n_pes"])]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def plot(name, title, rows):
    """Plot the speed of the fused kernel as a ratio to both peers; returns the path (SVG)."""
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
    PLOTS.mkdir(exist_ok=True)
    path = PLOTS / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path


def write(families):
    """Replace the tables at the end of the page."""
    text = PAGE.read_text().split(MARK)[0] + MARK
    for family in families.values():
        text += f"\n### {family['title']}\n\n{table(family['rows'])}"
    PAGE.write_text(text)
