"""The style of all figures: a fixed colour, marker and dash per scheme; and rendering to files.

A scheme has the same colour in every report. The colours are the colour-blind-safe set of Okabe and Ito, some
darkened for contrast; marker and dash repeat the information. On the page, colours become CSS variables, so
that figures follow the light or dark preference of the browser; files are light. There is no global state,
hence no pyplot; and no `savefig`, which draws every figure twice.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from cfel.report.load import name_scheme

INK, MUTED, GRID, SURFACE = "#1b1f24", "#59636e", "#d8dde3", "#ffffff"
_DARK = {INK: "#e8ebee", MUTED: "#a3adb8", GRID: "#39424d", SURFACE: "#171c22"}
_WIDTH_INCHES, _FONT_POINTS = 5.0, 10.5
# A column of a two-column paper, and type that is still readable there.
_PAPER_WIDTH_INCHES, _PAPER_FONT_POINTS = 3.5, 8.0
_PNG_DPI = 160
_SHORT = 18


@dataclass(frozen=True, slots=True, eq=False)
class Drawing:
    """A figure and the numbers that it shows, as rows of a table; a number may be None."""

    figure: Figure
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True, slots=True)
class SchemeStyle:
    """A scheme's name, its colour on light and dark ground, and Matplotlib's marker and dash."""

    label: str
    colour: str
    dark: str
    marker: str
    dash: str

    @property
    def short(self) -> str:
        """A short name for labels: the function of "module:function", the value of "key=value", cut off."""
        # Of a setting in a sweep, its values: the keys are the same for all.
        values = (part.rpartition("=")[2].strip() for part in self.label.rpartition(":")[2].split(","))
        name = ", ".join(values)
        return name if len(name) <= _SHORT else f"{name[: _SHORT - 1]}…"


_SCHEME_STYLES = {
    "hcef": ("#0072b2", "#58aee6", "o", "-"),
    "hcef_plus": ("#c24a00", "#ff8a4c", "D", "-"),
    "cef": ("#4d5560", "#c3c9d1", "s", "--"),
    "cef_c": ("#b57a00", "#f0b83c", "^", "-."),
    "cef_f": ("#008a65", "#3cc79d", "v", "-."),
    "mll_sgd": ("#b5568b", "#e79cc6", "P", ":"),
}
_SPARE_STYLES = (
    ("#6a51a3", "#ab96e0", "X", "-"),
    ("#2b8fbd", "#7cc7f2", "*", "--"),
    ("#7a6a00", "#d9cb52", "<", "-."),
    ("#a0302c", "#ee8480", ">", ":"),
    ("#00798c", "#4fc4d6", "h", "-"),
    ("#8c564b", "#d3a297", "d", "--"),
    ("#3f7d20", "#86c95f", "p", "-."),
    ("#33539e", "#8fa8e8", "H", ":"),
)


def assign_styles(schemes: Sequence[str]) -> dict[str, SchemeStyle]:
    """A style for each scheme; others take the spare styles in turn, then those of absent schemes."""
    known = {scheme: scheme.lower().replace("-", "_") for scheme in schemes}
    absent = (style for name, style in _SCHEME_STYLES.items() if name not in known.values())
    spare = cycle((*_SPARE_STYLES, *absent))
    return {
        scheme: SchemeStyle(name_scheme(scheme), *(_SCHEME_STYLES.get(name) or next(spare)))
        for scheme, name in known.items()
    }


def list_colours() -> Iterator[tuple[str, str]]:
    """All colours of figures on a light background, with their counterparts on a dark one."""
    yield from _DARK.items()
    for light, dark, *_ in (*_SCHEME_STYLES.values(), *_SPARE_STYLES):
        yield light, dark


@contextmanager
def use_style(name: str, *, paper: bool = False) -> Iterator[None]:
    """Applies the Matplotlib settings while a figure is drawn; `name` makes its SVG ids unique.

    On paper, a figure is as wide as a column, and its lines and type are smaller.
    """
    points = _PAPER_FONT_POINTS if paper else _FONT_POINTS
    width = _PAPER_WIDTH_INCHES if paper else _WIDTH_INCHES
    settings: dict[Any, Any] = {
        "figure.figsize": (width, width),
        "font.family": ["DejaVu Sans"],
        "font.size": points,
        "axes.edgecolor": MUTED,
        "axes.labelcolor": INK,
        "axes.titlesize": points,
        "axes.titlelocation": "left",
        "axes.titlecolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": GRID,
        "grid.linewidth": 0.7,
        "text.color": INK,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "figure.facecolor": SURFACE,
        "axes.facecolor": SURFACE,
        "savefig.facecolor": SURFACE,
        "lines.linewidth": 1.4 if paper else 2.0,
        "lines.markersize": 3.5 if paper else 5.0,
        # Text stays text: it can be selected, and files are smaller.
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        # Publishers ask for TrueType.
        "pdf.fonttype": 42,
    }
    with mpl.rc_context(settings):
        yield


def new_figure(rows: int, panel_inches: float) -> tuple[Figure, list[Axes]]:
    """A figure with panels of this height in a column, narrow enough for a phone."""
    width = mpl.rcParams["figure.figsize"][0]
    figure = Figure(figsize=(width, rows * panel_inches * width / _WIDTH_INCHES), layout="constrained")
    return figure, list(figure.subplots(rows, 1, squeeze=False)[:, 0])


def render_svg(figure: Figure) -> str:
    """The figure as an SVG file; equal figures give equal text."""
    buffer = io.StringIO()
    FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})  # type: ignore[no-untyped-call]
    return buffer.getvalue()


def render_png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.set_dpi(_PNG_DPI)
    FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})  # type: ignore[no-untyped-call]
    return buffer.getvalue()


def render_pdf(figure: Figure) -> bytes:
    """The figure as a PDF file; equal figures give equal bytes."""
    buffer = io.BytesIO()
    unset = dict.fromkeys(("CreationDate", "Creator", "Producer"))
    FigureCanvasPdf(figure).print_pdf(buffer, metadata=unset)  # type: ignore[no-untyped-call]
    return buffer.getvalue()


def render_csv(drawing: Drawing) -> str:
    """The numbers of the figure as a CSV file with names like `seconds_realised`; empty cells are unknown."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([re.sub(r"[^\w.]+", "_", name) for name in drawing.columns])
    writer.writerows([[_shorten(cell) for cell in row] for row in drawing.rows])
    return buffer.getvalue()


def _shorten(cell: object) -> object:
    """Rounds are means over seeds, but 3 reads better than 3.0."""
    return int(cell) if isinstance(cell, float) and cell.is_integer() else cell


def inline_svg(svg: str, name: str, description: str) -> str:
    """Turns an SVG file into an element of the page: no URLs, unique ids, colours as CSS variables.

    The name must be unique on the page; the description is for screen readers, and escaped already.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = svg.replace("xlink:href", "href")
    # All figures share one document, so their ids must differ.
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"'DejaVu Sans'(, [^;\"]*)?", "system-ui, sans-serif", svg)
    # Without a fixed size the figure fills its column.
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    for colour, _ in list_colours():
        svg = svg.replace(colour, f"var({css_variable(colour)})")
    return svg.replace("<svg", f'<svg role="img" aria-label="{description}"', 1)


def css_variable(colour: str) -> str:
    return f"--c{colour.removeprefix('#')}"
