"""All figures of a report: which there are, what each shows, and the files that it is written to.

A curve is one line per scheme. Seeds are combined round by round: the line shows the mean, its band the 95 %
confidence interval of the mean, the same as in the table. Times and energies are realised. Each figure is
drawn once for the page and its files, and again for paper (PDF).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import (
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    PercentFormatter,
)

from cfel.arrays import FloatArray, IndexArray
from cfel.durable import make_directory, replace_file
from cfel.errors import InputError, unknown_name
from cfel.metric import Metric
from cfel.report.load import (
    Run,
    find_baseline,
    find_target,
    group_by_row,
    list_settings,
    load_runs,
    name_setting,
    name_value,
)
from cfel.report.style import (
    GRID,
    INK,
    MUTED,
    SURFACE,
    Drawing,
    SchemeStyle,
    assign_styles,
    inline_svg,
    new_figure,
    render_csv,
    render_pdf,
    render_png,
    render_svg,
    use_style,
)
from cfel.report.summary import confidence_half_width, find_quality_within_budgets, measure, summarise
from cfel.report.table import TABLE_FORMATS, check_formats, write_table
from cfel.runlog import FleetDescription, PlanTable, RoundRecord
from cfel.wording import plural

Groups = Mapping[str, tuple[Run, ...]]
"""The runs behind each line of a figure."""
Styles = Mapping[str, SchemeStyle]
Value = Callable[[RoundRecord, Run], float | None]
_MAX_DRAWN = 1e100
_LABEL_DISTANCE = 0.085
# What fits into a figure: columns and rows of a heat map, bars, names and links of edge servers.
_MAX_ROUNDS, _MAX_ROWS = 200, 256
_MAX_BARS = 8
_MAX_NAMES, _MAX_LINKS = 40, 5000

MAX_LINES = 12
"""A figure of a sweep shows at most so many lines: more cannot be told apart."""
MAX_PLAIN_SPAN = 100.0
"""A logarithmic axis has plain numbers as labels up to this ratio of its ends."""
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
    inline = inline_svg(svg, spec.name, escape(f"{spec.title}. {spec.caption}"))
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


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """The line of one scheme: means over its seeds, and the ends of their 95 % intervals."""

    style: SchemeStyle
    # x and y: the line.
    x: FloatArray
    y: FloatArray
    # low and high: the band; the line itself with one seed.
    low: FloatArray
    high: FloatArray
    # least and most: the smallest and the largest y of all seeds, which the axes make room for. With two or
    # three seeds the band is often far wider, and is cut off there.
    least: float
    most: float
    seeds: int


RANGE = ("mean", "low", "high", "seeds")
"""Columns of what a curve shows over seeds: the mean and the ends of its 95 % interval."""


def make_curve(style: SchemeStyle, x: FloatArray, seeds: FloatArray) -> Curve:
    mean = seeds.mean(axis=0)
    half = np.array([confidence_half_width(column) or 0.0 for column in seeds.T.tolist()])
    return Curve(
        style, x, mean, mean - half, mean + half, float(seeds.min()), float(seeds.max()), seeds.shape[0]
    )


def tabulate_curves(curves: Sequence[Curve], *cells: object) -> list[tuple[object, ...]]:
    """The points of curves as rows: `cells`, the name of the line, x, and the columns of `RANGE`."""
    return [
        (*cells, line.style.label, *map(float, point), line.seeds)
        for line in curves
        for point in zip(line.x, line.y, line.low, line.high, strict=True)
    ]


def build_curve(style: SchemeStyle, runs: Sequence[Run], x: Value, y: Value) -> Curve | None:
    """The line of one scheme with a run per seed; None if no round has both values for every seed."""
    points = [_collect_points(run, x, y) for run in runs]
    # Runs that stop at a budget differ in length; a mean over fewer seeds would bend the line.
    rounds = sorted(set.intersection(*(set(seed) for seed in points)))
    if not rounds:
        return None
    table = np.array([[seed[number] for number in rounds] for seed in points])
    xs, ys = table[..., 0], table[..., 1]
    return make_curve(style, xs.mean(axis=0), ys)


def _collect_points(run: Run, x: Value, y: Value) -> dict[int, tuple[float, float]]:
    found = {}
    for record in run.records:
        right, up = x(record, run), y(record, run)
        # Beyond this the axes overflow; NaN and infinity fail the comparison as well.
        if right is not None and up is not None and abs(right) <= _MAX_DRAWN and abs(up) <= _MAX_DRAWN:
            found[record.round] = (right, up)
    return found


def read_field(name: str, record: RoundRecord, _run: Run) -> float:
    """A field of a record; with `partial`, a `Value`."""
    return float(getattr(record, name))


def draw_curves(axes: Axes, curves: Sequence[Curve], *, named: bool = True) -> None:
    """Draws lines and bands, each with its name at the end unless there is only one anyway."""
    for line in curves:
        style = line.style
        axes.fill_between(line.x, line.low, line.high, color=style.colour, alpha=0.16, linewidth=0)
        axes.plot(line.x, line.y, color=style.colour, linestyle=style.dash)
        axes.plot(line.x[-1:], line.y[-1:], color=style.colour, marker=style.marker)
    if named:
        _name_ends(axes, curves)


def _name_ends(axes: Axes, curves: Sequence[Curve]) -> None:
    """Writes the names to the right of the panel, in the order of the line ends and without overlap."""
    to_axes = (axes.transData + axes.transAxes.inverted()).transform
    ends = sorted(((to_axes((c.x[-1], c.y[-1])), c) for c in curves), key=lambda end: float(end[0][1]))
    heights = space_apart([float(end[1]) for end, _ in ends], _LABEL_DISTANCE)
    for (end, line), height in zip(ends, heights, strict=True):
        axes.annotate(
            line.style.short,
            xy=(float(end[0]), float(end[1])),
            xytext=(1.03, height),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=line.style.colour,
            fontweight="bold",
            va="center",
            parse_math=False,
            arrowprops={
                "arrowstyle": "-",
                "color": line.style.colour,
                "alpha": 0.45,
                "linewidth": 0.8,
                "relpos": (0.0, 0.5),
            },
        )


def space_apart(heights: Sequence[float], distance: float) -> list[float]:
    """Moves sorted heights at least `distance` apart, around their mean, within [0, 1] if they fit."""
    moved: list[float] = []
    for height in heights:
        moved.append(max(height, moved[-1] + distance) if moved else height)
    if not moved:
        return []
    # The loop above only moves up; shift everything back down by as much on average.
    shift = (sum(moved) - sum(heights)) / len(moved)
    risen = [max(height - shift, place * distance) for place, height in enumerate(moved)]
    return [min(height, 1.0 - place * distance) for place, height in enumerate(risen[::-1])][::-1]


def draw_accuracy(
    groups: Groups, styles: Styles, x: Value, x_label: str, target: float | None, right: float = 0.0
) -> Drawing | None:
    """Draws accuracy over time, energy or rounds, at least up to `right`; None if no round was evaluated."""
    curves = _build_curves(groups, styles, x, lambda record, _: record.accuracy)
    if not curves:
        return None
    metric = next(run for runs in groups.values() for run in runs).fleet.metrics[0]
    figure, (axes,) = new_figure(1, 3.5)
    if target is not None:
        axes.axhline(target, color=MUTED, linewidth=1.0, linestyle=(0, (2, 2)))
        # Inside the panel it would hide the ends of lines.
        axes.set_title(f"dotted: target {metric.format_target(target)}", color=MUTED)
    axes.margins(x=0.01)
    _set_limits(axes, curves, target, right)
    _label_metric(axes, metric)
    _format_x_axis(axes, x_label)
    draw_curves(axes, curves)
    return Drawing(figure, ("line", x_label, *RANGE), tabulate_curves(curves))


def _set_limits(axes: Axes, curves: Sequence[Curve], target: float | None, right: float = 0.0) -> None:
    """Sets both axes. Must happen before names are placed, as their heights depend on it."""
    values = np.array([end for line in curves for end in (line.least, line.most)])
    values = np.append(values, target) if target is not None else values
    room = 0.05 * float(np.ptp(values)) or 0.05
    axes.set_ylim(float(values.min()) - room, float(values.max()) + room)
    rights = np.append(np.concatenate([line.x for line in curves]), right)
    axes.set_xlim(min(0.0, float(rights.min())), float(rights.max()) * 1.02 or 1.0)


def _format_x_axis(axes: Axes, label: str) -> None:
    axes.set_xlabel(label)
    if label == "global round":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        high = axes.get_xlim()[1]
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: write_tick(value, high)))
        axes.xaxis.set_major_locator(MaxNLocator(6))


def _label_metric(axes: Axes, metric: Metric) -> None:
    """Names the y axis after a metric, with its unit."""
    axes.set_ylabel(metric.title, parse_math=False)
    if metric.unit == "%":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))


def write_tick(value: float, high: float) -> str:
    """A tick of an axis that ends at `high`: 0.06, 1,600, 60k, 60M; the letter is the same for all ticks.

    Thousandths have none: "60m" could be minutes or metres.
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if high >= 10 * size:
            return f"{value / size:g}{letter if value else ''}"
    return f"{value:,.10g}"


def _build_curves(groups: Groups, styles: Styles, x: Value, y: Value) -> list[Curve]:
    # A scheme without a single value gets no line.
    found = (build_curve(styles[scheme], runs, x, y) for scheme, runs in groups.items())
    return [line for line in found if line is not None]


def draw_budget(groups: Groups, styles: Styles) -> Drawing | None:
    """Draws the share of the time and energy budgets left after each round; None without budgets."""
    left = {
        "time left": partial(_find_share_left, "seconds"),
        "energy left": partial(_find_share_left, "joules"),
    }

    def prepare(axes: Axes, title: str, curves: Sequence[Curve]) -> None:
        axes.set_title(f"{title}, share of the budget")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        _set_limits(axes, curves, 0.0)
        axes.axhline(0.0, color=MUTED, linewidth=1.2)

    return _draw_over_rounds(groups, styles, left, prepare)


def _find_share_left(name: str, record: RoundRecord, run: Run) -> float | None:
    budget = getattr(run.fleet, f"{name}_budget")
    return 1.0 - getattr(record, f"{name}_realised") / budget if budget else None


def _draw_over_rounds(
    groups: Groups,
    styles: Styles,
    values: Mapping[str, Value],
    prepare: Callable[[Axes, str, Sequence[Curve]], None],
) -> Drawing | None:
    """Draws a panel over global rounds for each value that some scheme has; `prepare` sets its axes."""
    found = {
        title: _build_curves(groups, styles, partial(read_field, "round"), value)
        for title, value in values.items()
    }
    panels = {title: curves for title, curves in found.items() if curves}
    if not panels:
        return None
    figure, all_axes = new_figure(len(panels), 2.6)
    for axes, (title, curves) in zip(all_axes, panels.items(), strict=True):
        prepare(axes, title, curves)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        draw_curves(axes, curves)
    all_axes[-1].set_xlabel("global round")
    rows = [row for title, curves in panels.items() for row in tabulate_curves(curves, title)]
    return Drawing(figure, ("panel", "line", "global round", *RANGE), rows)


def _use_plain_labels(axes: Axes, span: float) -> None:
    """Labels a logarithmic axis of few decades with numbers like 0.3 instead of 3 × 10⁻¹."""
    if span > MAX_PLAIN_SPAN:
        return
    marks = (1.0, 2.0, 5.0) if span > 3 else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    axes.yaxis.set_major_locator(LogLocator(subs=marks))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def draw_estimates(groups: Groups, styles: Styles) -> Drawing | None:
    """Draws σ² and G² over rounds on a logarithmic scale; values ≤ 0 are left out."""
    values = {
        "gradient noise σ²": partial(_read_positive, "sigma2"),
        "squared gradient norm G²": partial(_read_positive, "g2"),
    }

    def prepare(axes: Axes, title: str, curves: Sequence[Curve]) -> None:
        axes.set_title(title)
        axes.set_yscale("log")
        axes.grid(visible=True, which="minor", color=GRID, linewidth=0.3)
        low, high = min(line.least for line in curves), max(line.most for line in curves)
        # Room above and below, in the proportions of a logarithmic axis.
        axes.set_ylim(low / 1.25, high * 1.25)
        _use_plain_labels(axes, high / low)
        axes.set_xlim(0.0, max(line.x.max() for line in curves) * 1.02 or 1.0)

    return _draw_over_rounds(groups, styles, values, prepare)


def _read_positive(name: str, record: RoundRecord, run: Run) -> float | None:
    value = read_field(name, record, run)
    return value if value > 0 else None


def draw_decisions(run: Run) -> Drawing | None:
    """Draws heat maps of ρ and θ, one row per device and one column per round; None without plan tables."""
    rounds = pick_evenly(run.directory.plan_rounds(), _MAX_ROUNDS)
    if not rounds:
        return None
    # Devices of a cluster share a cap, so they are shown next to each other.
    order = np.argsort(run.fleet.cluster, kind="stable")
    # One table at a time, down to the rows to show: those of a large fleet do not fit into memory together.
    means = [_average_shares(run, number, order) for number in rounds]
    tables = {name: np.concatenate([each[name] for each in means], axis=1) for name in ("rho", "theta")}
    figure, all_axes = new_figure(2, 2.9)
    for axes, name, title in zip(
        all_axes, ("rho", "theta"), ("ρ, share of local steps", "θ, share uploaded"), strict=True
    ):
        _draw_heat_map(axes, tables[name], rounds, run)
        axes.set_title(title)
    all_axes[-1].set_xlabel("global round")
    figure.colorbar(all_axes[0].images[0], ax=all_axes, shrink=0.7, pad=0.02).outline.set_visible(False)
    columns = ("global round", "cluster", "first device", "devices", "rho", "theta")
    return Drawing(figure, columns, _tabulate_decisions(tables, rounds, run, order))


def _tabulate_decisions(
    tables: Mapping[str, FloatArray], rounds: Sequence[int], run: Run, order: IndexArray
) -> list[tuple[object, ...]]:
    """A row for each cell of the heat maps: of one device, or of neighbours whose mean it shows."""
    blocks = np.array_split(order, len(tables["rho"]))
    return [
        (number, run.fleet.cluster[block[0]], int(block[0]), len(block), *map(_leave_out_nan, cells))
        for column, number in enumerate(rounds)
        for block, *cells in zip(blocks, *(each[:, column] for each in tables.values()), strict=True)
    ]


def _leave_out_nan(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _average_shares(run: Run, global_round: int, order: IndexArray) -> dict[str, FloatArray]:
    """One column of each heat map."""
    devices = run.fleet.devices
    plan = run.directory.plan(global_round, devices)
    means = {name: average_devices(plan, name, devices) for name in ("rho", "theta")}
    return {name: average_rows(each[order, np.newaxis], _MAX_ROWS) for name, each in means.items()}


def average_devices(plan: PlanTable, name: str, devices: int) -> FloatArray:
    """Mean of a column over the edge rounds of a global round, per device; NaN if a device was absent."""
    values: FloatArray = getattr(plan, name)
    # A device has one row per edge round.
    total = np.bincount(plan.device, weights=values, minlength=devices)
    count = np.bincount(plan.device, minlength=devices)
    means = np.full(devices, np.nan)
    np.divide(total, count, out=means, where=count > 0)
    return means


def pick_evenly(numbers: Sequence[int], most: int) -> list[int]:
    """At most `most` of the numbers at even distances, including the last one."""
    step = -(-len(numbers) // most) or 1
    return list(numbers[::-1][::step][::-1])


def average_rows(table: FloatArray, most: int) -> FloatArray:
    """Averages neighbouring rows until `most` are left: a large fleet has more rows than pixels."""
    if len(table) <= most:
        return table
    blocks = np.array_split(table, most)
    # Absent devices are NaN; they must not make a whole block NaN.
    counts = [np.maximum((~np.isnan(block)).sum(axis=0), 1) for block in blocks]
    sums = [np.nansum(block, axis=0) for block in blocks]
    return np.array([total / count for total, count in zip(sums, counts, strict=True)])


def _draw_heat_map(axes: Axes, table: FloatArray, rounds: Sequence[int], run: Run) -> None:
    extent = (rounds[0] - 0.5, rounds[-1] + 0.5, run.fleet.devices - 0.5, -0.5)
    axes.imshow(table, aspect="auto", interpolation="none", vmin=0.0, vmax=1.0, cmap="cividis", extent=extent)
    axes.grid(visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    sizes = np.bincount(run.fleet.cluster, minlength=run.fleet.clusters)
    ends = np.cumsum(sizes)
    # More labels would overlap.
    if run.fleet.clusters <= 16:
        axes.set_yticks(ends - sizes / 2 - 0.5, [str(number) for number in range(run.fleet.clusters)])
        axes.hlines(ends[:-1] - 0.5, *axes.get_xlim(), color=SURFACE, linewidth=0.8)
    axes.tick_params(length=0)
    axes.set_ylabel("device, by cluster")


def draw_stragglers(run: Run, style: SchemeStyle) -> Drawing | None:
    """Draws how often each cluster and each device was the slowest; None if the log does not say."""
    panels = [
        (title, rank_most_frequent(numbers, len(run.records), word))
        for title, word, numbers in (
            ("slowest cluster, share of rounds", "cluster", [r.slowest_cluster for r in run.records]),
            ("slowest device, share of rounds", "device", [r.straggler for r in run.records]),
        )
        if any(number is not None for number in numbers)
    ]
    if not panels:
        return None
    figure, all_axes = new_figure(len(panels), 2.5)
    for axes, (title, shares) in zip(all_axes, panels, strict=True):
        _draw_bars(axes, shares, style)
        axes.set_title(title)
    rows = [(title.partition(",")[0], *bar) for title, shares in panels for bar in shares]
    return Drawing(figure, ("panel", "name", "share of rounds"), rows)


def rank_most_frequent(numbers: Sequence[int | None], rounds: int, word: str) -> list[tuple[str, float]]:
    """Shares of all rounds in descending order; the rest is combined into one bar."""
    counts = Counter(number for number in numbers if number is not None)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = len(ranked) if len(ranked) == _MAX_BARS + 1 else _MAX_BARS  # no bar for "1 others"
    bars = [(f"{word} {number}", count / rounds) for number, count in ranked[:shown]]
    if rest := ranked[shown:]:
        bars.append((f"{len(rest)} others", sum(count for _, count in rest) / rounds))
    return bars


def _draw_bars(axes: Axes, shares: Sequence[tuple[str, float]], style: SchemeStyle) -> None:
    labels, values = [label for label, _ in shares], [value for _, value in shares]
    colours = [GRID if label.endswith("others") else style.colour for label in labels]
    bars = axes.barh(labels, values, color=colours, height=0.7)
    axes.bar_label(bars, [f"{value:.0%}" for value in values], padding=3, color=MUTED)
    # The most frequent one on top.
    axes.invert_yaxis()
    axes.set_xlim(0.0, max(values) * 1.15)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0, labelcolor=INK)


def place_on_circle(count: int) -> FloatArray:
    """Points on the unit circle, clockwise from the top; one row per point."""
    angle = np.pi / 2 - 2 * np.pi * np.arange(count) / max(count, 1)
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def draw_backhaul(fleet: FleetDescription) -> Drawing | None:
    """Draws edge servers with their number of devices; the width of a link is its mixing weight.

    None if there are too many links to tell apart.
    """
    if len(fleet.edges) > _MAX_LINKS:
        return None
    figure, (axes,) = new_figure(1, 4.2)
    points = place_on_circle(fleet.clusters)
    for a, b in fleet.edges:
        weight = (fleet.mixing[a][b] + fleet.mixing[b][a]) / 2
        axes.plot(*points[[a, b]].T, color=MUTED, linewidth=0.6 + 4.0 * weight, zorder=1)
    sizes = np.bincount(fleet.cluster, minlength=fleet.clusters)
    largest = min(700.0, 140_000.0 / max(fleet.clusters, 1) ** 2)  # neighbours must not overlap
    areas = largest * sizes / max(sizes.max(initial=1), 1)
    axes.scatter(points[:, 0], points[:, 1], s=areas, color=INK, edgecolor=SURFACE, zorder=2)
    if fleet.clusters <= _MAX_NAMES:
        _draw_names(axes, points, sizes)
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.set_xlim(-1.75, 1.75)
    axes.set_ylim(-1.45, 1.45)
    return Drawing(figure, ("edge", "devices", "neighbour", "mixing weight"), _list_links(fleet, sizes))


def _list_links(fleet: FleetDescription, sizes: IndexArray) -> list[tuple[object, ...]]:
    """Every edge server with the weight of its own model, then with that of each neighbour."""
    both = {pair for a, b in fleet.edges for pair in ((a, b), (b, a))}
    own = {(edge, edge) for edge in range(fleet.clusters)}
    return [(a, int(sizes[a]), b, fleet.mixing[a][b]) for a, b in sorted(both | own)]


def _draw_names(axes: Axes, points: FloatArray, sizes: IndexArray) -> None:
    for number, (point, size) in enumerate(zip(points, sizes, strict=True)):
        x, y = point * (1.22, 1.27)
        side = "center" if abs(x) < 0.3 else "left" if x > 0 else "right"
        words = f"edge {number}\n{plural(int(size), 'device')}"
        axes.text(x, y, words, ha=side, va="center", linespacing=1.1)


Measured = Callable[[Run], float | None]
Found = dict[str, dict[Any, list[float]]]
"""What was measured: by line, by value of the key, one number per seed."""


def draw_quality_by_key(runs: Sequence[Run], key: str) -> Drawing | None:
    """Draws the quality within the budgets; see `draw_by_key`."""
    metric = runs[0].fleet.metrics[0]
    value = partial(_measure, "quality_within_budgets", None)
    return draw_by_key(runs, key, {f"{metric.name} within the budgets": value}, metric)


def draw_costs_by_key(runs: Sequence[Run], key: str, target: float | None) -> Drawing | None:
    """Draws time and energy to the target, where all seeds reached it; see `draw_by_key`."""
    both = {"seconds to the target": "seconds_to_target", "joules to the target": "joules_to_target"}
    return draw_by_key(runs, key, {title: partial(_measure, name, target) for title, name in both.items()})


def _measure(name: str, target: float | None, run: Run) -> float | None:
    return measure(run, target)[name]


def draw_by_key(
    runs: Sequence[Run], key: str, panels: dict[str, Measured], metric: Metric | None = None
) -> Drawing | None:
    """Draws one line per combination of the other keys; None if the key has one value, or none is measured.

    Values are drawn at equal distances, in the order of the sweep. Numbers are joined by lines; between names
    there is nothing to join. `metric` names the y axis.
    """
    values = list(dict.fromkeys(run.setting[key] for run in runs))
    styles = assign_styles(tuple(dict.fromkeys(_name_line(run, key) for run in choose_lines(runs))))
    drawn = {
        title: _build_lines(_collect(runs, key, value), values, styles) for title, value in panels.items()
    }
    drawn = {title: curves for title, curves in drawn.items() if curves}
    if len(values) < 2 or not drawn:
        return None
    figure, all_axes = new_figure(len(drawn), 3.5 if len(drawn) == 1 else 2.6)
    for axes, (title, curves) in zip(all_axes, drawn.items(), strict=True):
        axes.set_title(title)
        _draw_lines(axes, curves, [name_value(key, value) for value in values])
        if metric is not None:
            _label_metric(axes, metric)
    all_axes[-1].set_xlabel(key, parse_math=False)
    rows = [row for title, curves in drawn.items() for row in tabulate_curves(curves, title)]
    named = [(title, line, values[round(float(place))], *rest) for title, line, place, *rest in rows]  # type: ignore[arg-type]
    return Drawing(figure, ("panel", "line", key, *RANGE), named)


def choose_lines(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The runs of the settings with the best quality in the budgets, at most `MAX_LINES`, in their order."""
    best: dict[str, float] = {}
    for run in runs:
        quality = find_quality_within_budgets(run)
        rank = np.inf if quality is None else run.fleet.metrics[0].sort_key(quality)
        best[run.scheme] = min(best.get(run.scheme, np.inf), rank)
    kept = sorted(best, key=best.__getitem__)[:MAX_LINES]
    return tuple(run for run in runs if run.scheme in kept)


def _name_line(run: Run, key: str) -> str:
    """The values of the other keys."""
    others = {name: name_value(name, value) for name, value in run.setting.items() if name != key}
    return name_setting(others) or "all"


def _collect(runs: Sequence[Run], key: str, value: Measured) -> Found:
    """What was measured with all seeds, by value of the key, for each combination of the other keys."""
    found: dict[str, dict[Any, list[float | None]]] = {}
    for run in runs:
        found.setdefault(_name_line(run, key), {}).setdefault(run.setting[key], []).append(value(run))
    return {
        line: {
            at: [each for each in seeds if each is not None] for at, seeds in by.items() if None not in seeds
        }
        for line, by in found.items()
    }


def _build_lines(found: Found, values: Sequence[Any], styles: dict[str, SchemeStyle]) -> list[Curve]:
    curves = []
    for name, by_value in found.items():
        there = [(place, by_value[value]) for place, value in enumerate(values) if value in by_value]
        if there and name in styles:
            fewest = min(len(seeds) for _, seeds in there)
            places = np.array([float(place) for place, _ in there])
            curves.append(
                make_curve(styles[name], places, np.array([seeds[:fewest] for _, seeds in there]).T)
            )
    return curves


def _draw_lines(axes: Axes, curves: Sequence[Curve], values: Sequence[Any]) -> None:
    axes.set_xticks(range(len(values)), [str(value) for value in values], parse_math=False)
    axes.set_xlim(-0.2, len(values) - 0.8)
    ends = np.array([end for curve in curves for end in (curve.least, curve.most)])
    room = 0.05 * float(np.ptp(ends)) or 0.05 * max(abs(float(ends.max())), 1.0)
    # Before the lines are named, as the places of names depend on it.
    axes.set_ylim(float(ends.min()) - room, float(ends.max()) + room)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if numbers:
        draw_curves(axes, curves, named=len(curves) > 1)
    for place, curve in enumerate(curves):
        # Points of different lines beside each other, so that their intervals can be told apart.
        shift = 0.0 if numbers else 0.06 * (place - (len(curves) - 1) / 2)
        half, style = curve.y - curve.low, curve.style
        axes.errorbar(
            curve.x + shift,
            curve.y,
            None if numbers and len(half) > 1 else half,
            color=style.colour,
            marker=style.marker,
            linestyle="none",
            label=style.label,
        )
    if not numbers and len(curves) > 1:
        axes.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
