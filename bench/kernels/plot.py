"""Plots of the rows of bench/results/kernels.json."""

from harness import RESULTS

PLOTS = RESULTS / "plots"  # not in git


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
