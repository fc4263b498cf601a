"""All figures of a report, each drawn once for the page and its files, and again for paper (PDF)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from os import PathLike
from pathlib import Path

from cfel.durable import make_directory, replace_file
from cfel.errors import InputError, unknown_name
from cfel.report.figures import (
    MAX_LINES,
    Groups,
    Styles,
    choose_lines,
    draw_accuracy,
    draw_backhaul,
    draw_budget,
    draw_costs_by_key,
    draw_decisions,
    draw_estimates,
    draw_quality_by_key,
    draw_stragglers,
    read_field,
)
from cfel.report.load import Run, find_baseline, find_target, group_by_row, list_settings, load_runs
from cfel.report.style import (
    Drawing,
    assign_styles,
    inline_svg,
    render_csv,
    render_pdf,
    render_png,
    render_svg,
    use_style,
)
from cfel.report.summary import summarise
from cfel.report.table import TABLE_FORMATS, check_formats, write_table
from cfel.wording import plural

FORMATS = ("svg", "png", "csv", "pdf")
"""The files that a figure can be written to: CSV has the numbers that it shows, PDF the width of a column."""


BAND = "Bands and bars: 95 % confidence intervals over seeds, as in the table."


@dataclass(frozen=True, slots=True, repr=False)
class Picture:
    """One figure, drawn.

    Attributes:
        name: file name and HTML id: letters, digits and hyphens.
        title: a few words.
        caption: one sentence that explains the figure.
        about: the scheme it shows; empty if it shows all of them.
        svg, png, csv: the files; CSV has the numbers that the figure shows.
        inline: the SVG element of the page.
        draw_pdf: draws it again as PDF, in the width and type of a paper's column.
    """

    name: str
    title: str
    caption: str
    about: str
    svg: str
    png: bytes
    csv: str
    inline: str
    draw_pdf: Callable[[], bytes]

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the figure to a file, .svg, .png or .pdf, or the numbers that it shows to a .csv file.

        Raises:
            InputError: the file has another suffix.
        """
        suffix = Path(path).suffix.lower()
        if suffix[1:] not in FORMATS:
            raise InputError(unknown_name(f"{path}: suffix", suffix, [f".{name}" for name in FORMATS]))
        content = {"svg": self.svg.encode(), "png": self.png, "csv": self.csv.encode()}
        replace_file(Path(path), content.get(suffix[1:]) or self.draw_pdf())

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"<Picture {self.name!r}: {self.title}>"


@dataclass(frozen=True, slots=True)
class FigureSpec:
    """A figure to draw; attributes as in `Picture`, and `draw` returns None if there is nothing to show."""

    name: str
    title: str
    caption: str
    draw: Callable[[], Drawing | None]
    about: str = ""


def draw_pictures(runs: tuple[Run, ...], target: float | None) -> tuple[Picture, ...]:
    """Draws all figures that these runs have data for; of a sweep only those that compare its settings."""
    figures = _list_figures(group_by_row(runs), target)
    # A sweep may have hundreds of settings: the plans of each would take most of the page, and of the time.
    return draw_all(spec for spec in figures if not (spec.about and runs[0].setting))


def draw_all(specs: Iterable[FigureSpec]) -> tuple[Picture, ...]:
    """Draws the figures that there is something to show for."""
    return tuple(picture for spec in specs if (picture := _draw(spec)) is not None)


def draw_one(groups: Groups, name: str, target: float | None) -> Picture:
    """Draws one figure of the runs of each scheme, or of each setting of a sweep."""
    specs = {spec.name: spec for spec in _list_figures(groups, target)}
    if name not in specs:
        raise InputError(unknown_name("figure", name, specs))
    picture = _draw(specs[name])
    if picture is None:
        raise InputError(f"figure {name!r}: these runs have no data for it")
    return picture


def _list_figures(groups: Groups, target: float | None) -> tuple[FigureSpec, ...]:
    styles = assign_styles(tuple(groups))
    runs = tuple(run for members in groups.values() for run in members)
    shown = group_by_row(choose_lines(runs)) if runs[0].setting else groups
    fleet = runs[0].fleet
    servers = plural(fleet.clusters, "edge server")
    return (
        *_list_setting_figures(runs, target),
        *_list_accuracy_figures(shown, styles, target),
        FigureSpec(
            "budget",
            "Budget burn-down",
            "Share of the time and energy budgets left after each round, as realised. Below zero the budget "
            "is overrun.",
            partial(draw_budget, shown, styles),
        ),
        FigureSpec(
            "estimates",
            "Gradient noise and norm",
            "The estimates of σ² and G² used for planning, on a logarithmic scale.",
            partial(draw_estimates, shown, styles),
        ),
        *_list_scheme_figures(groups, styles),
        FigureSpec(
            "backhaul",
            "Backhaul",
            f"{servers} and the links; the width of a link is its mixing weight.",
            partial(draw_backhaul, fleet),
        ),
    )


def write_pictures(
    directory: Path, pictures: Sequence[Picture], formats: Sequence[str] = ("svg", "png")
) -> tuple[Path, ...]:
    """Writes every figure into `directory`, which is created if missing; returns the files."""
    make_directory(directory)
    files = [(picture, directory / f"{picture.name}.{name}") for picture in pictures for name in formats]
    for picture, file in files:
        picture.save(file)
    return tuple(file for _, file in files)


def export_results(
    path: Path, to: Path, formats: Sequence[str] = ("svg", "png", "csv"), target: float | None = None
) -> tuple[Path, ...]:
    """Writes figures and main table of a run, a comparison or a sweep into a directory; returns the files."""
    check_formats(formats, tuple(dict.fromkeys((*FORMATS, *TABLE_FORMATS))))
    runs = load_runs(path)
    aim = find_target(path, runs) if target is None else target
    summary = summarise(runs, aim, find_baseline(path))
    wanted = tuple(name for name in dict.fromkeys(formats) if name in FORMATS)
    pictures = write_pictures(to, draw_pictures(runs, aim), wanted) if wanted else ()
    return (*pictures, *write_table(to, summary, formats, list_settings(runs)))


def _draw(spec: FigureSpec) -> Picture | None:
    with use_style(spec.name):
        drawing = spec.draw()
        if drawing is None:
            return None
        svg = render_svg(drawing.figure)
        # Layout takes as long as drawing, and the first one is still valid.
        drawing.figure.set_layout_engine("none")
        png = render_png(drawing.figure)
    description = escape(f"{spec.title}. {spec.caption}")
    inline = inline_svg(svg, spec.name, description)
    texts = (spec.name, spec.title, spec.caption, spec.about)
    return Picture(*texts, svg, png, render_csv(drawing), inline, partial(_draw_pdf, spec))


def _draw_pdf(spec: FigureSpec) -> bytes:
    with use_style(spec.name, paper=True):
        drawing = spec.draw()
        assert drawing is not None  # noqa: S101 — it was drawn before
        return render_pdf(drawing.figure)


def _list_accuracy_figures(groups: Groups, styles: Styles, target: float | None) -> Iterator[FigureSpec]:
    band = f" {BAND}" if any(len(runs) > 1 for runs in groups.values()) else ""
    first = next(iter(groups.values()))[0]
    metric = first.fleet.metrics[0].name
    if len(groups) == MAX_LINES and first.setting:
        band += f" At most the {MAX_LINES} settings with the best {metric} within the budgets."
    # What a clock and a power meter would show, whichever account the budget counts.
    for name, field, words, label in (
        ("seconds", "seconds_realised", "time, as realised", "seconds, realised"),
        ("joules", "joules_realised", "energy of all devices, as realised", "joules, realised"),
        ("round", "round", "rounds", "global round"),
    ):
        yield FigureSpec(
            f"accuracy-{name}",
            f"{metric[0].upper()}{metric[1:]} over {words.split()[0].rstrip(',')}",
            f"On test samples, over {words}.{band}",
            partial(draw_accuracy, groups, styles, partial(read_field, field), label, target),
        )


def _list_scheme_figures(groups: Groups, styles: Styles) -> Iterator[FigureSpec]:
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


def _list_setting_figures(runs: tuple[Run, ...], target: float | None) -> Iterator[FigureSpec]:
    lines = "; one line per combination of the other keys" if len(runs[0].setting) > 1 else ""
    metric = runs[0].fleet.metrics[0].name
    for number, key in enumerate(runs[0].setting):
        yield FigureSpec(
            f"by-key-{number}",
            f"{metric[0].upper()}{metric[1:]} within the budgets by {key}",
            f"Of the last model before the first budget is used up{lines}. {BAND}",
            partial(draw_quality_by_key, runs, key),
        )
        if target is not None:
            yield FigureSpec(
                f"costs-by-key-{number}",
                f"Time and energy to the target by {key}",
                f"Realised costs to the target{lines}. Left out: not reached. {BAND}",
                partial(draw_costs_by_key, runs, key, target),
            )
