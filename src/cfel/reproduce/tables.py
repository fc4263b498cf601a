"""The tables of a reproduction as text: measured values beside those of the paper."""

from collections.abc import Mapping
from typing import Any

from cfel.report.reproduction import TextTable
from cfel.reproduce.paper_values import PaperValues

NOTHING = "–"


def build_comparison_table(document: Mapping[str, Any], paper: PaperValues) -> TextTable:
    """Time, realised and expected, and energy of every scheme beside those of the paper's Table 1.

    The paper's values are for its own target, even if the measured ones are for another target.
    """
    headings = ("scheme", "10⁴ s", "expected", "paper", "kJ", "paper", "acc %")
    rows = tuple(
        (
            name,
            format_number(row["seconds_to_target"], 1e4),
            format_number(row["expected_seconds_to_target"], 1e4),
            format_number(paper.seconds.get(name), 1e4, digits=1),
            format_number(row["joules_to_target"], 1e3),
            format_number(paper.joules.get(name), 1e3, digits=1),
            format_number(row["final_accuracy"], 0.01, digits=1),
        )
        for name, row in document["schemes"].items()
    )
    return TextTable(f"Time and energy to {_describe_targets(document, paper)}", headings, rows)


def build_gain_table(document: Mapping[str, Any], paper: PaperValues) -> TextTable:
    """The gain of every scheme over CEF beside that of the paper."""
    headings = ("scheme", "time gain", "paper", "energy gain", "paper")
    rows = tuple(
        (
            name,
            format_interval(row, "gain_seconds"),
            format_number(paper.gain_seconds(name)),
            format_interval(row, "gain_joules"),
            format_number(paper.gain_joules(name)),
        )
        for name, row in document["schemes"].items()
    )
    return TextTable(f"Gain over CEF, to {_describe_targets(document, paper)}", headings, rows)


def _describe_targets(document: Mapping[str, Any], paper: PaperValues) -> str:
    target = "no target" if document["target"] is None else f"{100 * document['target']:.4g} %"
    return f"{target} (paper: {100 * paper.target:g} %)"


def build_common_table(document: Mapping[str, Any]) -> TextTable:
    """Time, energy and gain to the highest accuracy that every scheme reached with every seed."""
    common = document["at_common_accuracy"]
    rows = tuple(
        (
            name,
            format_number(row["seconds_to_target"], 1e4),
            format_number(row["joules_to_target"], 1e3),
            format_interval(row, "gain_seconds"),
            format_interval(row, "gain_joules"),
        )
        for name, row in common["schemes"].items()
    )
    title = f"Time and energy to {100 * common['target']:.1f} %, which every scheme reached with every seed"
    return TextTable(title, ("scheme", "10⁴ s", "kJ", "time gain", "energy gain"), rows)


def build_sweep_table(document: Mapping[str, Any]) -> TextTable:
    """Time, energy and gain to the target in every setting of a sweep."""
    rows = tuple(
        (
            value,
            name,
            format_number(row["seconds_to_target"], 1e4),
            format_number(row["joules_to_target"], 1e3),
            format_interval(row, "gain_seconds"),
            format_interval(row, "gain_joules"),
            format_number(row["final_accuracy"], 0.01, digits=1),
        )
        for value, summary in document["values"].items()
        for name, row in summary["schemes"].items()
    )
    target = "no target" if document["target"] is None else f"{100 * document['target']:g} %"
    headings = (document["key"], "scheme", "10⁴ s", "kJ", "time gain", "energy gain", "acc %")
    return TextTable(f"Time and energy to {target}, and gain over CEF", headings, rows)


def build_rates_table(document: Mapping[str, Any]) -> TextTable:
    """Held-out accuracy of every learning rate, and the rate selected."""
    grid = list(document["values"])
    rows = tuple(
        (
            name,
            *(format_number(tried.get(rate), 0.01, digits=1) for rate in grid),
            f"{document['chosen'][name]:g}",
        )
        for name, tried in document["held_out"].items()
    )
    title = "Accuracy on held-out training samples (%), by learning rate"
    return TextTable(title, ("scheme", *grid, "chosen"), rows)


def build_estimates_table(document: Mapping[str, Any]) -> TextTable:
    """σ² and G² at several rounds of a run."""
    rows = tuple(
        (name, f"{point['round']}", f"{point['sigma2']:.4g}", f"{point['g2']:.4g}")
        for name, points in document["estimates"].items()
        for point in points
    )
    return TextTable("σ² and G² (first seed)", ("scheme", "round", "σ²", "G²"), rows)


def format_number(value: float | None, unit: float = 1.0, digits: int = 2) -> str:
    """A value divided by its unit, or a dash for None."""
    return NOTHING if value is None else f"{value / unit:.{digits}f}"


def format_interval(row: Mapping[str, Any], key: str) -> str:
    """A gain with the ends of its 95 % confidence interval, if it has one."""
    text, interval = format_number(row[key]), row["interval"][key]
    return text if interval is None else f"{text} ({interval[0]:.2f}–{interval[1]:.2f})"
