"""Every figure of a report, drawn once: for the page, and as SVG and PNG files."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path

from matplotlib.figure import Figure

from cfel.durable import replace_file, translate_os_errors
from cfel.report.backhaul import backhaul_figure
from cfel.report.curves import accuracy_figure, budget_figure, estimates_figure
from cfel.report.devices import decisions_figure, straggler_figure
from cfel.report.load import Run, by_scheme
from cfel.report.style import SchemeStyle, as_inline_svg, as_png, as_svg, drawing, scheme_styles


@dataclass(frozen=True, slots=True)
class Picture:
    """One figure, drawn.

    Attributes:
        name: of its files and its place on the page: letters, digits and hyphens.
        title: a few words.
        caption: one sentence saying what is seen.
        about: scheme it is about; empty when it is about all of them.
        svg: as a file.
        png: as a file.
        inline: as an element of the page.
    """

    name: str
    title: str
    caption: str
    about: str
    svg: str
    png: bytes
    inline: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A figure that is still to be drawn; attributes as in `Picture`."""

    name: str
    title: str
    caption: str
    draw: Callable[[], Figure | None]
    about: str = ""


def draw_pictures(runs: tuple[Run, ...], target: float | None) -> tuple[Picture, ...]:
    """All figures these runs have data for.

    Args:
        runs: any number of schemes and seeds.
        target: accuracy to mark, or None.
    """
    groups = by_scheme(runs)
    styles = scheme_styles(tuple(groups))
    plans = (
        *_accuracy(groups, styles, target),
        *_whole(groups, styles),
        *_each(groups, styles),
        *_backhaul(runs),
    )
    pictures = (drawn(plan) for plan in plans)
    return tuple(picture for picture in pictures if picture is not None)


def write_pictures(directory: Path, pictures: tuple[Picture, ...]) -> None:
    """Writes every figure as SVG and PNG into `directory`, which is created when missing.

    Raises:
        StorageError: the system refused.
    """
    with translate_os_errors("create", directory):
        directory.mkdir(exist_ok=True)
    for picture in pictures:
        replace_file(directory / f"{picture.name}.svg", picture.svg.encode())
        replace_file(directory / f"{picture.name}.png", picture.png)


def drawn(plan: Plan) -> Picture | None:
    """The figure in all its forms; None when there is nothing to show."""
    with drawing(plan.name):
        figure = plan.draw()
        if figure is None:
            return None
        svg = as_svg(figure)
        figure.set_layout_engine("none")  # laid out once; a second time would cost as much as the drawing
        png = as_png(figure)
    description = escape(f"{plan.title}. {plan.caption}")
    inline = as_inline_svg(svg, plan.name, description)
    return Picture(plan.name, plan.title, plan.caption, plan.about, svg, png, inline)


_Groups = Mapping[str, tuple[Run, ...]]
_Styles = Mapping[str, SchemeStyle]


def _accuracy(groups: _Groups, styles: _Styles, target: float | None) -> Iterator[Plan]:
    band = " The band spans the seeds." if any(len(runs) > 1 for runs in groups.values()) else ""
    for name, words, label in (
        ("seconds", "time since the start", "seconds"),
        ("joules", "energy all devices used", "joules"),
        ("round", "rounds", "global round"),
    ):
        yield Plan(
            f"accuracy-{name}",
            f"Accuracy over {words.split()[0]}",
            f"Test accuracy against {words}.{band}",
            partial(accuracy_figure, groups, styles, partial(_field, name), label, target),
        )


def _field(name: str, record: object, _run: Run) -> float:
    return float(getattr(record, name))


def _whole(groups: _Groups, styles: _Styles) -> Iterator[Plan]:
    yield Plan(
        "budget",
        "Budget burn-down",
        "What is left of the time and energy budgets after each round; below zero is an overrun.",
        partial(budget_figure, groups, styles),
    )
    yield Plan(
        "estimates",
        "Gradient noise and norm",
        "The estimates of σ² and G² the controller plans with, on a logarithmic scale.",
        partial(estimates_figure, groups, styles),
    )


def _each(groups: _Groups, styles: _Styles) -> Iterator[Plan]:
    for number, (scheme, runs) in enumerate(groups.items()):
        run, label = runs[0], styles[scheme].label
        yield Plan(
            f"decisions-{number}",
            f"{label}: who does how much",
            f"ρ and θ of every device in every round (seed {run.seed}); a gap is a device that was away.",
            partial(decisions_figure, run),
            scheme,
        )
        yield Plan(
            f"stragglers-{number}",
            f"{label}: who kept the others waiting",
            f"How often each cluster was the slowest and each device the one waited for (seed {run.seed}).",
            partial(straggler_figure, run, styles[scheme]),
            scheme,
        )


def _backhaul(runs: tuple[Run, ...]) -> Iterator[Plan]:
    fleet = runs[0].fleet
    yield Plan(
        "backhaul",
        "Backhaul",
        f"The {fleet.clusters} edge servers and their links; a link is as thick as its mixing weight.",
        partial(backhaul_figure, fleet),
    )
