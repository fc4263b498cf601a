"""All figures of a report, each drawn once for the page and for its SVG and PNG files."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from html import escape
from os import PathLike
from pathlib import Path

from matplotlib.figure import Figure

from cfel.durable import make_directory, replace_file
from cfel.errors import InputError, unknown_name
from cfel.report.backhaul import draw_backhaul
from cfel.report.curves import draw_accuracy, draw_budget, draw_estimates, read_field
from cfel.report.devices import draw_decisions, draw_stragglers
from cfel.report.load import Run, group_by_scheme
from cfel.report.settings import draw_by_key
from cfel.report.style import SchemeStyle, assign_styles, inline_svg, render_png, render_svg, use_style
from cfel.wording import plural

Groups = Mapping[str, tuple[Run, ...]]
"""The runs behind each line of a figure."""
_Styles = Mapping[str, SchemeStyle]


@dataclass(frozen=True, slots=True, repr=False)
class Picture:
    """One figure, drawn.

    Attributes:
        name: file name and HTML id: letters, digits and hyphens.
        title: a few words.
        caption: one sentence that explains the figure.
        about: the scheme it shows; empty if it shows all of them.
        svg: the SVG file.
        png: the PNG file.
        inline: the SVG element of the page.
    """

    name: str
    title: str
    caption: str
    about: str
    svg: str
    png: bytes
    inline: str

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the figure to a file, .svg or .png.

        Raises:
            InputError: the file has another suffix.
        """
        content = {".svg": self.svg.encode(), ".png": self.png}
        suffix = Path(path).suffix.lower()
        if suffix not in content:
            raise InputError(unknown_name(f"{path}: suffix", suffix, content))
        replace_file(Path(path), content[suffix])

    def _repr_svg_(self) -> str:
        """How a notebook shows it."""
        return self.svg

    def __repr__(self) -> str:
        return f"<Picture {self.name!r}: {self.title}>"


@dataclass(frozen=True, slots=True)
class FigureSpec:
    """A figure to draw; attributes as in `Picture`, and `draw` returns None if there is nothing to show."""

    name: str
    title: str
    caption: str
    draw: Callable[[], Figure | None]
    about: str = ""


def draw_pictures(runs: tuple[Run, ...], target: float | None) -> tuple[Picture, ...]:
    """Draws all figures that these runs have data for; of a sweep only those that compare its settings.

    Args:
        runs: any number of schemes and seeds.
        target: accuracy to mark, or None.
    """
    figures = _list_figures(group_by_scheme(runs), target)
    # A sweep may have hundreds of settings: the plans of each would take most of the page, and of the time.
    wanted = [spec for spec in figures if not (spec.about and runs[0].setting)]
    pictures = map(draw_picture, wanted)
    return tuple(picture for picture in pictures if picture is not None)


def draw_one(groups: Groups, name: str, target: float | None) -> Picture:
    """Draws one figure.

    Args:
        groups: runs of each scheme, or of each setting of a sweep.
        name: which, as in the file names of a report.
        target: accuracy to mark, or None.

    Raises:
        InputError: there is no such figure, or the runs have no data for it.
    """
    specs = {spec.name: spec for spec in _list_figures(groups, target)}
    if name not in specs:
        raise InputError(unknown_name("figure", name, specs))
    picture = draw_picture(specs[name])
    if picture is None:
        raise InputError(f"figure {name!r}: these runs have no data for it")
    return picture


def _list_figures(groups: Groups, target: float | None) -> tuple[FigureSpec, ...]:
    styles = assign_styles(tuple(groups))
    runs = tuple(run for members in groups.values() for run in members)
    return (
        *_list_accuracy_figures(groups, styles, target),
        *_list_overall_figures(groups, styles),
        *_list_scheme_figures(groups, styles),
        *_list_setting_figures(runs),
        *_list_backhaul_figure(runs),
    )


def write_pictures(directory: Path, pictures: tuple[Picture, ...]) -> None:
    """Writes every figure as SVG and PNG into `directory`, which is created if missing.

    Raises:
        StorageError: a file cannot be written.
    """
    make_directory(directory)
    for picture in pictures:
        replace_file(directory / f"{picture.name}.svg", picture.svg.encode())
        replace_file(directory / f"{picture.name}.png", picture.png)


def draw_picture(spec: FigureSpec) -> Picture | None:
    """Draws a figure in all its formats; None if there is nothing to show."""
    with use_style(spec.name):
        figure = spec.draw()
        if figure is None:
            return None
        svg = render_svg(figure)
        figure.set_layout_engine("none")  # layout takes as long as drawing, and the first one is still valid
        png = render_png(figure)
    description = escape(f"{spec.title}. {spec.caption}")
    inline = inline_svg(svg, spec.name, description)
    return Picture(spec.name, spec.title, spec.caption, spec.about, svg, png, inline)


def _list_accuracy_figures(groups: Groups, styles: _Styles, target: float | None) -> Iterator[FigureSpec]:
    band = " The band shows the range over seeds." if any(len(runs) > 1 for runs in groups.values()) else ""
    # What a clock and a power meter would show, whichever account the budget counts.
    for name, field, words, label in (
        ("seconds", "seconds_realised", "time", "seconds, realised"),
        ("joules", "joules_realised", "energy of all devices", "joules, realised"),
        ("round", "round", "rounds", "global round"),
    ):
        yield FigureSpec(
            f"accuracy-{name}",
            f"Accuracy over {words.split()[0]}",
            f"Test accuracy over {words}.{band}",
            partial(draw_accuracy, groups, styles, partial(read_field, field), label, target),
        )


def _list_overall_figures(groups: Groups, styles: _Styles) -> Iterator[FigureSpec]:
    yield FigureSpec(
        "budget",
        "Budget burn-down",
        "Share of the time and energy budgets left after each round. Below zero the budget is overrun.",
        partial(draw_budget, groups, styles),
    )
    yield FigureSpec(
        "estimates",
        "Gradient noise and norm",
        "The estimates of σ² and G² used for planning, on a logarithmic scale.",
        partial(draw_estimates, groups, styles),
    )


def _list_scheme_figures(groups: Groups, styles: _Styles) -> Iterator[FigureSpec]:
    for number, (scheme, runs) in enumerate(groups.items()):
        # One seed as an example: plans of several seeds cannot be averaged device by device.
        run, label = runs[0], styles[scheme].label
        yield FigureSpec(
            f"decisions-{number}",
            f"{label}: plan of every device",
            f"ρ and θ of every device in every round (seed {run.seed}). Gaps: the device was absent.",
            partial(draw_decisions, run),
            scheme,
        )
        yield FigureSpec(
            f"stragglers-{number}",
            f"{label}: stragglers",
            f"How often each cluster and each device was the slowest (seed {run.seed}).",
            partial(draw_stragglers, run, styles[scheme]),
            scheme,
        )


def _list_setting_figures(runs: tuple[Run, ...]) -> Iterator[FigureSpec]:
    for number, key in enumerate(runs[0].setting):
        yield FigureSpec(
            f"by-key-{number}",
            f"Final accuracy by {key}",
            f"Accuracy after the last evaluated round for each value of {key}, mean and range over seeds; "
            "one line per combination of the other keys.",
            partial(draw_by_key, runs, key),
        )


def _list_backhaul_figure(runs: tuple[Run, ...]) -> Iterator[FigureSpec]:
    fleet = runs[0].fleet
    yield FigureSpec(
        "backhaul",
        "Backhaul",
        f"{plural(fleet.clusters, 'edge server')} and the links; the width of a link is its mixing weight.",
        partial(draw_backhaul, fleet),
    )
