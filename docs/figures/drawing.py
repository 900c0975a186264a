"""What figures are drawn with: boxes, cells, arrows, labels and lanes, in a light and a dark theme.

Lengths are pixels of a figure that is 700 wide; y goes downwards. A colour is a name, which each
theme gives a value: `ink`, `quiet`, `blue`, `orange`, `green`, `violet`, `red`. A box is filled
with a tint of its colour.
"""

import logging
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

HERE = Path(__file__).parent
WIDTH, PER_INCH, POINTS = 700, 96, 0.75  # points of a pixel
THEMES = {
    "light": {
        "ink": "#1f2328", "quiet": "#57606a", "blue": "#0550ae", "orange": "#953800",
        "green": "#116329", "violet": "#6639ba", "red": "#a40e26",
    },
    "dark": {
        "ink": "#e6edf3", "quiet": "#a5afba", "blue": "#79c0ff", "orange": "#ffa657",
        "green": "#7ee787", "violet": "#d2a8ff", "red": "#ff9a94",
    },
}  # fmt: skip
TINT = 0.1  # the opacity of a fill
FONTS = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
    "font.monospace": ["Menlo", "Consolas", "DejaVu Sans Mono"],
    "svg.fonttype": "none",
    "svg.hashsalt": "gpushmem",
}


@dataclass
class Drawing:
    """A figure in one theme, `height` pixels high."""

    theme: str
    height: int
    figure: Any = field(init=False)
    axes: Any = field(init=False)

    def __post_init__(self) -> None:
        self.figure = Figure(figsize=(WIDTH / PER_INCH, self.height / PER_INCH))
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(0, WIDTH), ylim=(self.height, 0))
        self.axes.axis("off")

    def label(
        self, x, y, text, colour="ink", *, size=13, at="center", code=False, bold=False
    ):  # fmt: skip
        """Write `text`; (x, y) is its middle, or the middle of its left or right end (`at`)."""
        self.axes.text(
            x, y, text, color=THEMES[self.theme][colour], fontsize=size * POINTS, ha=at,
            va="center" if "\n" in text else "center_baseline",
            family="monospace" if code else "sans-serif", weight="bold" if bold else "normal",
            linespacing=1.4,
        )  # fmt: skip

    def box(
        self, x, y, width, height, text="", colour="quiet", *, dashed=False, filled=True, **options
    ):
        """Draw a box with its upper left corner at (x, y), and `text` in its middle."""
        line = THEMES[self.theme][colour]
        style = {"boxstyle": "round,pad=0,rounding_size=4", "mutation_aspect": 1}
        if filled:
            self.axes.add_patch(
                FancyBboxPatch((x, y), width, height, fc=line, ec="none", alpha=TINT, **style)
            )
        self.axes.add_patch(
            FancyBboxPatch(
                (x, y), width, height, fc="none", ec=line, lw=1, ls="--" if dashed else "-", **style
            )
        )
        if text:
            self.label(x + width / 2, y + height / 2, text, **options)

    def cells(self, x, y, width, height, texts, colours, **options):
        """Draw boxes side by side; one without a colour has a dashed line, and no fill."""
        for k, (text, colour) in enumerate(zip(texts, colours, strict=True)):
            self.box(
                x + k * width, y, width - 3, height, text, colour or "quiet", filled=bool(colour),
                dashed=not colour, **options,
            )  # fmt: skip

    def arrow(self, start, end, colour="ink", *, bend=0.0, dashed=False, head="-|>"):
        """Draw an arrow between two points; `bend` curves it."""
        self.axes.add_patch(
            FancyArrowPatch(
                start, end, arrowstyle=head, mutation_scale=10, lw=1.4, shrinkA=0, shrinkB=0,
                color=THEMES[self.theme][colour], connectionstyle=f"arc3,rad={bend}",
                ls=(0, (4, 3)) if dashed else "-",
            )
        )  # fmt: skip

    def line(self, start, end, colour="quiet", *, dashed=False):
        """Draw a line between two points."""
        self.arrow(start, end, colour, dashed=dashed, head="-")

    def lane(self, y, name, left=70, right=WIDTH - 20):
        """Draw a line of time below boxes with their middle at `y`, and its name on the left."""
        self.label(left - 12, y, name, at="right", bold=True)
        self.arrow((left, y + 19), (right, y + 19), "quiet")


def write(figures):
    """Write figures in both themes: by name, the height and a function that gets the drawing."""
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # fonts that are not here
    with mpl.rc_context(FONTS):
        for (name, (height, draw)), theme in product(figures.items(), THEMES):
            drawing = Drawing(theme, height)
            draw(drawing)
            drawing.figure.savefig(
                HERE / f"{name}-{theme}.svg", transparent=True, metadata={"Date": None}
            )
