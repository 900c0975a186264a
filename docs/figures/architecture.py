"""The figures of docs/architecture.md: `python docs/figures/architecture.py` writes them."""

from drawing import write


def rooms(d):
    """Who may import whom: those above import those below."""
    rows = (
        (("notebook, pytest_plugin", 1), ("cli", 1)),
        (("explain", 1), ("doctor", 1), ("torch", 1)),
        (("kernels: the ready kernels", 1),),
        (("kernel, runtime, memory, groups, simulator", 1),),
        (("start: launch, bootstrap", 1),),
        (("cpu", 1), ("nvshmem_cpu", 1), ("nvshmem", 1), ("null", 1)),
        (("diagnosis", 1), ("check", 1), ("trace", 1)),
        (("simt: the engine", 2), ("job", 1)),
        (("parking", 1), ("native: C functions", 1)),
        (("artifacts: keys, limits, launch parameters", 1),),
    )
    colours = (
        "violet",
        "violet",
        "blue",
        "blue",
        "orange",
        "green",
        "quiet",
        "green",
        "green",
        "quiet",
    )
    for k, (row, colour) in enumerate(zip(rows, colours, strict=True)):
        x, unit = 110, 440 / sum(share for _, share in row)
        for name, share in row:
            d.box(x, 14 + 38 * k, unit * share - 6, 32, name, colour, size=12)
            x += unit * share
    for k, name in ((0, "commands"), (3, "host"), (5, "backends")):
        d.label(98, 30 + 38 * k, name, "quiet", at="right", size=12)
    d.arrow((26, 22), (26, 380), "quiet")
    d.label(20, 396, "imports", "quiet", at="left", size=12)
    d.box(
        556,
        14,
        128,
        374,
        "for all:\n\nops\nsettings\narguments\nsource_lines\nimport_hooks\nerrors",
        size=12,
    )


def launch(d):
    """What happens from a line that launches to its result."""
    d.lane(50, "host")
    d.lane(216, "worker")
    d.box(74, 36, 110, 28, "kernel[...](a, b)", "blue", size=12)
    d.box(188, 36, 130, 28, "find code, queue it", "blue", size=12)
    d.box(322, 36, 90, 28, "goes on", "green", size=12)
    d.box(416, 36, 120, 28, "synchronize", "orange", size=12)
    d.box(540, 36, 130, 28, "result, or error", "green", size=12)
    d.box(74, 112, 74, 46, "store", "quiet", size=12)
    d.arrow((210, 66), (130, 110), "blue")
    d.label(144, 86, "by key", "quiet", at="right", size=12)
    d.box(172, 112, 124, 46, "not there:\ncompile, and keep", "violet", size=12)
    d.arrow((170, 135), (150, 135), "violet")
    d.arrow((312, 66), (312, 212), "blue")
    d.label(322, 135, "the launch, in the stream's queue", "blue", at="left", size=12)
    d.box(314, 202, 222, 28, "runs blocks on cores or fibers", "green", size=12)
    d.arrow((536, 200), (540, 66), "green")
    d.label(680, 250, "time", "quiet", at="right", size=12)


def job_memory(d):
    """What is mapped where in a PE of the cpu backend."""
    files = (
        ("board", "state of job and PEs, verdict", "orange"),
        ("control memory", "teams, lines and boxes of each PE", "violet"),
        ("heap of PE 0", "", "quiet"), ("heap of PE 1", "", "blue"), ("heap of PE 2", "", "quiet"),
    )  # fmt: skip
    mapped = (
        "board", "control memory", "base: segment of PE 0", "base + stride: own segment",
        "base + 2 stride: segment of PE 2",
    )  # fmt: skip
    d.label(150, 18, "files in memory, without names", bold=True)
    d.label(550, 18, "address space of PE 1", bold=True)
    d.box(410, 32, 280, 234)
    for k, ((name, what, colour), where) in enumerate(zip(files, mapped, strict=True)):
        y = 40 + 44 * k
        d.box(20, y, 260, 36, f"{name}\n{what}" if what else name, colour, size=12)
        d.box(420, y, 260, 36, where, colour, size=12)
        d.line((282, y + 18), (418, y + 18), colour)
    d.label(350, 282, "peer address  =  my address + (pe - my_pe) * stride", "blue")


FIGURES = {"rooms": (408, rooms), "launch": (260, launch), "job-memory": (298, job_memory)}

if __name__ == "__main__":
    write(FIGURES)
