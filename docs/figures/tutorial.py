"""The figures of the tutorial and of other pages: `python docs/figures/tutorial.py` writes them."""

from drawing import write

COLOURS = ("blue", "orange", "green", "violet")


def hello(d):
    """PE 1 writes its number to all PEs."""
    for pe in range(4):
        x = 20 + 170 * pe
        d.label(x + 75, 24, f"PE {pe}", bold=True)
        d.box(x, 40, 150, 96)
        d.label(x + 12, 60, "seen", code=True, at="left", size=12)
        values = ["0", "10", "20", "30"]
        d.cells(x + 9, 84, 34, 34, values, ["blue" if k == 1 else None for k in range(4)])
        d.arrow((275, 216), (x + 59, 122), "blue", bend=0)
    d.box(200, 216, 150, 40, "threads 0 to 3 of PE 1", "blue", size=12)
    d.label(362, 236, "thread k writes 10 to seen[1] of PE k", "blue", at="left")


def relay(d):
    """The array goes from PE to PE."""
    for pe in range(4):
        y, x = 36 + 62 * pe, 80 + 145 * pe
        d.lane(y, f"PE {pe}")
        if pe:
            d.box(82, y - 13, x - 88, 26, "waits for its signal", "orange", size=12)
        d.box(x, y - 13, 76, 26, f"adds {pe}", "green", size=12)
        if pe < 3:
            d.arrow((x + 78, y + 2), (x + 143, y + 48), "blue")
            d.label(x + 146, y + 34, "data, then signal", "blue", at="left", size=12)
    d.label(680, 258, "time", "quiet", at="right", size=12)


def rounds(d):
    """Boxes of a ring of four PEs, and where each has come from."""
    for k in range(4):
        d.label(155 + 160 * k, 20, f"box {k}", bold=True)
        if k:
            d.label(75 + 160 * k, 20, f"round {k}", "quiet", size=12)
    for pe in range(4):
        y = 40 + 52 * pe
        d.label(58, y + 16, f"PE {pe}", at="right", bold=True)
        for k in range(4):
            owner = (pe - k) % 4
            d.box(110 + 160 * k, y, 90, 32, f"from PE {owner}", COLOURS[owner], size=12)
            if k < 3 and pe < 3:
                d.arrow((203 + 160 * k, y + 18), (267 + 160 * k, y + 66), COLOURS[owner])
            elif k < 3:
                d.arrow((203 + 160 * k, y + 20), (230 + 160 * k, y + 42), COLOURS[owner], head="-")
                d.arrow((240 + 160 * k, 38), (267 + 160 * k, 52), COLOURS[owner])
    d.label(350, 262, "PE 3 sends to PE 0: its arrows go on at the top", "quiet", size=12)


def halo(d):
    """A rod cut among PEs, and what happens in a step."""
    for pe in range(3):
        x = 25 + 225 * pe
        d.label(x + 100, 18, f"PE {pe}", bold=True)
        d.cells(x, 44, 29, 34, [""] * 7, [None, "blue", "green", "green", "green", "blue", None])
        if pe < 2:
            d.arrow((x + 158, 80), (x + 238, 80), "blue", bend=0.4)
            d.arrow((x + 267, 42), (x + 187, 42), "blue", bend=0.4)
    d.box(30, 122, 18, 14, "", "blue")
    d.label(54, 129, "edge: is sent", at="left", size=12)
    d.box(190, 122, 18, 14, "", "green")
    d.label(214, 129, "inside: needs no neighbour", at="left", size=12)
    d.box(430, 122, 18, 14, "", "quiet", dashed=True, filled=False)
    d.label(454, 129, "copy of the neighbour's edge", at="left", size=12)
    d.lane(190, "PE")
    d.box(74, 176, 100, 28, "send edges", "blue", size=12)
    d.box(178, 176, 250, 28, "compute the inside", "green", size=12)
    d.box(432, 176, 90, 28, "wait", "orange", size=12)
    d.box(526, 176, 130, 28, "compute the edges", "green", size=12)
    d.lane(236, "link")
    d.box(140, 223, 230, 26, "the edges travel", "blue", dashed=True, size=12)


def all_reduce(d):
    """Each PE has a box for each PE, and sums its boxes."""
    for pe in range(4):
        x = 20 + 170 * pe
        d.label(x + 75, 20, f"PE {pe}", bold=True)
        d.box(x + 40, 34, 70, 30, "x", COLOURS[pe], code=True)
        d.cells(x + 2, 138, 38, 32, ["0", "1", "2", "3"], COLOURS, code=True)
        d.arrow((95, 66), (x + 19, 136), "blue")
        d.arrow((x + 75, 174), (x + 75, 204))
        d.box(x + 10, 206, 130, 30, "sum, in order", "quiet", size=12)
    d.label(
        350,
        256,
        "PE 0 sends x to box 0 of all PEs; the others do the same with theirs",
        "quiet",
        size=12,
    )


def fused(d):
    """A product after its all-gather, and a product that multiplies what has come."""
    d.label(20, 20, "First all rows, then the product:", at="left")
    d.lane(54, "link")
    d.lane(92, "PE")
    d.cells(74, 40, 80, 28, [f"rows of {k}" for k in (1, 2, 3)], COLOURS[1:], size=12)
    d.box(74, 78, 237, 28, "wait", "quiet", dashed=True, filled=False, size=12)
    d.cells(314, 78, 80, 28, ["rows 0", "rows 1", "rows 2", "rows 3"], COLOURS, size=12)
    d.label(20, 142, "In one kernel, each product when its rows have come:", at="left")
    d.lane(176, "link")
    d.lane(214, "PE")
    d.cells(74, 162, 80, 28, [f"rows of {k}" for k in (1, 2, 3)], COLOURS[1:], size=12)
    d.cells(74, 200, 80, 28, ["rows 0", "rows 1", "rows 2", "rows 3"], COLOURS, size=12)
    d.arrow((631, 218), (398, 218), "green")
    d.label(514, 206, "saved", "green", size=12)


def gpus(d):
    """One file, and what it becomes on each backend."""
    d.box(250, 16, 200, 40, "one Python file", "blue", bold=True)
    d.arrow((300, 58), (190, 84))
    d.arrow((400, 58), (510, 84))
    rows = (
        ("a PE is", "a process", "a process with a GPU"),
        ("kernels become", "code of the CPU", "code of the GPU"),
        ("a put is", "a copy in shared memory", "NVSHMEM: NVLink, PCIe, RDMA"),
        ("mistakes are", "checked and reported", "not checked: it may hang"),
    )
    d.label(245, 100, "backend cpu", "green", bold=True)
    d.label(540, 100, "backend nvshmem", "orange", bold=True)
    for k, (what, cpu, gpu) in enumerate(rows):
        y = 118 + 40 * k
        d.label(118, y + 16, what, "quiet", at="right", size=12)
        d.box(130, y, 230, 32, cpu, "green", size=12)
        d.box(420, y, 250, 32, gpu, "orange", size=12)


def layers(d):
    """From the user's kernel down to the machine."""
    d.box(
        20,
        14,
        660,
        46,
        "your kernel:  @shmem.jit, cuda.threadIdx, shmem.put_signal_block(...)",
        "blue",
    )
    d.box(20, 72, 660, 46, "operations:  one table of names, arguments and effects", "violet")
    columns = (
        ("backend cpu", "checks, reports, weak memory", "threads of a CPU, shared memory", "green"),
        ("backend nvshmem", "NVSHMEM's device functions", "GPUs, NVLink, PCIe, RDMA", "orange"),
    )
    for k, (name, what, machine, colour) in enumerate(columns):
        x = 20 + 335 * k
        d.box(x, 130, 325, 58, f"{name}\n{what}", colour)
        d.box(x, 200, 325, 46, machine, "quiet")
    for y in (60, 118, 188):
        for x in (182, 517):
            d.arrow((x, y), (x, y + 12), "quiet")


def heap(d):
    """The same array at the same offset on each PE, at another address."""
    bases = ("0x7f10...", "0x7f52...", "0x7f9c...")
    for pe, base in enumerate(bases):
        x = 150 + 190 * pe
        d.label(x + 70, 20, f"PE {pe}", bold=True)
        d.box(x, 56, 140, 184)
        d.label(x + 70, 44, f"base {base}", "quiet", size=12)
        d.box(x + 8, 64, 124, 34, "src", "green", code=True)
        d.box(x + 8, 122, 124, 48, "dst", "blue", code=True)
        d.box(x + 8, 180, 124, 26, "signal", "orange", code=True)
    d.label(136, 64, "offset 0", "quiet", at="right", size=12)
    d.label(136, 122, "offset 0x1000", "quiet", at="right", size=12)
    d.label(136, 182, "offset 0x3000", "quiet", at="right", size=12)
    d.line((142, 122), (650, 122), dashed=True)
    d.arrow((282, 82), (346, 140), "blue")
    d.label(350, 262, "dst on PE 1  =  base of PE 1 + (my dst - my base)", "blue")


def put_signal(d):
    """What put_signal orders: data before its signal."""
    for y, pe in ((50, 0), (170, 1)):
        d.lane(y, f"PE {pe}")
    d.box(80, 36, 130, 28, "put_signal", "blue", code=True, size=12)
    d.box(214, 36, 150, 28, "goes on", "green", size=12)
    d.box(80, 156, 296, 28, "signal_wait_until", "orange", code=True, size=12)
    d.box(420, 156, 160, 28, "reads the data", "green", size=12)
    d.arrow((150, 66), (250, 154), "blue")
    d.arrow((190, 66), (376, 154), "orange")
    d.label(150, 112, "data", "blue", at="right")
    d.label(330, 112, "signal, after the data", "orange", at="left")
    d.label(372, 50, "its source may be changed", "quiet", at="left", size=12)
    d.label(680, 206, "time", "quiet", at="right", size=12)


def epochs(d):
    """Two slots, used in turns; a signal has the number of the call."""
    d.label(112, 22, "call", at="right", bold=True)
    for slot in range(2):
        y = 46 + 84 * slot
        d.label(112, y + 18, f"slot {slot}", at="right", bold=True)
        d.label(112, y + 54, "its signal", "quiet", at="right", size=12)
    for epoch in range(1, 6):
        x, slot = 20 + 110 * epoch, epoch % 2
        d.label(x + 48, 22, str(epoch), bold=True)
        for k in range(2):
            y, last = 46 + 84 * k, epoch - (epoch - k) % 2
            used = k == slot
            d.box(
                x, y, 96, 36, f"box of call {epoch}" if used else "", "blue" if used else "quiet",
                filled=used, dashed=not used, size=12,
            )  # fmt: skip
            d.label(x + 48, y + 54, str(max(last, 0)), "orange" if used else "quiet", code=True)
    d.label(
        380, 226,
        "A PE writes to a slot again two calls later. In the call between it has heard from\n"
        "the other PE, which had finished the call before by then: so the slot has been read.",
        "quiet", size=12,
    )  # fmt: skip


def engine(d):
    """Three ways to run a kernel."""
    columns = (
        (
            "it never waits",
            "loops",
            "for each block\nfor each thread\nrun the kernel",
            "vectorised; all cores",
            "green",
        ),
        (
            "it waits",
            "lockstep",
            "for thread: part 1\nbarrier\nfor thread: part 2",
            "vectorised from wait\nto wait; all cores",
            "blue",
        ),
        (
            "one thread a block, put_warp,\n--check, weak memory",
            "fibers",
            "thread 0 | waits\nthread 1 | runs\nthread 2 | waits",
            "a stack for each thread;\na waiting one switches",
            "orange",
        ),
    )
    d.box(250, 12, 200, 34, "a kernel and its launch", "quiet")
    for k, (when, name, code, what, colour) in enumerate(columns):
        x = 20 + 225 * k
        d.arrow((350, 48), (x + 105, 76), "quiet")
        d.label(x + 105, 98, when, size=12)
        d.box(x, 122, 210, 30, name, colour, bold=True)
        d.box(x, 156, 210, 82, code, colour, filled=False, code=True, size=12)
        d.label(x + 105, 264, what, "quiet", size=12)


def watch(d):
    """A deadlock is found in two looks."""
    lanes = (44, 100, 156)
    for pe, y in enumerate(lanes):
        d.lane(y, f"PE {pe}")
    for y, until in zip(lanes, (150, 220, 190), strict=True):
        d.box(74, y - 13, until - 74, 26, "runs", "green", size=12)
        d.box(until + 3, y - 13, 495 - until, 26, "waits", "orange", size=12)
    for x, text in ((290, "first look"), (410, "second look")):
        d.line((x, 26), (x, 182), "blue", dashed=True)
        d.label(x, 14, text, "blue", size=12)
    d.line((501, 6), (501, 182), "red")
    d.label(510, 14, "deadlock: the job ends", "red", at="left", size=12)
    d.label(
        360, 212,
        "In each look, each PE tests the conditions of all its waits again. If all are false, and\n"
        "nobody has moved between the two, nothing can ever change: a proof, not a time limit.",
        "quiet", size=12,
    )  # fmt: skip


FIGURES = {
    "hello": (270, hello), "relay": (270, relay), "rounds": (276, rounds), "halo": (266, halo),
    "all-reduce": (270, all_reduce), "fused": (264, fused), "gpus": (290, gpus),
    "layers": (260, layers), "heap": (280, heap), "put-signal": (220, put_signal),
    "epochs": (250, epochs), "engine": (290, engine), "watch": (236, watch),
}  # fmt: skip

if __name__ == "__main__":
    write(FIGURES)
