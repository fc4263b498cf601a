"""Per-device figures of one run: ρ and θ over rounds, and the slowest clusters and devices."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from cfel.arrays import FloatArray, IndexArray
from cfel.report.load import Run
from cfel.report.style import GRID, INK, MUTED, SURFACE, Drawing, SchemeStyle, new_figure
from cfel.runlog import PlanTable

_MAX_ROUNDS = 200
_MAX_ROWS = 256
_MAX_BARS = 8


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
