"""The tables of a reproduction as words: measured values, and the paper's beside them."""

from collections.abc import Mapping
from typing import Any

from cfel.report.reproduction import TextTable
from cfel.reproduce.paper_values import PaperValues

NOTHING = "–"


def comparison_table(document: Mapping[str, Any], paper: PaperValues) -> TextTable:
    """Table 1, measured and the paper's, scheme by scheme.

    The paper's times and energies stand for its own target, whatever the one measured here.
    """
    headings = ("scheme", "10⁴ s", "paper", "kJ", "paper", "acc %")
    rows = tuple(
        (
            name,
            number(row["seconds_to_target"], 1e4),
            number(paper.seconds.get(name), 1e4, digits=1),
            number(row["joules_to_target"], 1e3),
            number(paper.joules.get(name), 1e3, digits=1),
            number(row["final_accuracy"], 0.01, digits=1),
        )
        for name, row in document["schemes"].items()
    )
    return TextTable(f"Time and energy to {_aims(document, paper)}", headings, rows)


def gain_table(document: Mapping[str, Any], paper: PaperValues) -> TextTable:
    """How many times less each scheme needs than CEF, measured and the paper's."""
    headings = ("scheme", "time gain", "paper", "energy gain", "paper")
    rows = tuple(
        (
            name,
            interval(row, "gain_seconds"),
            number(paper.gain_seconds(name)),
            interval(row, "gain_joules"),
            number(paper.gain_joules(name)),
        )
        for name, row in document["schemes"].items()
    )
    return TextTable(f"Gain over CEF, to {_aims(document, paper)}", headings, rows)


def _aims(document: Mapping[str, Any], paper: PaperValues) -> str:
    aim = "no target" if document["target"] is None else f"{100 * document['target']:.4g} %"
    return f"{aim} (the paper's: to {100 * paper.target:g} %)"


def common_table(document: Mapping[str, Any]) -> TextTable:
    """The same at the accuracy that every scheme reached with every seed."""
    common = document["at_common_accuracy"]
    rows = tuple(
        (
            name,
            number(row["seconds_to_target"], 1e4),
            number(row["joules_to_target"], 1e3),
            interval(row, "gain_seconds"),
            interval(row, "gain_joules"),
        )
        for name, row in common["schemes"].items()
    )
    aim = NOTHING if common["target"] is None else f"{100 * common['target']:.1f} %"
    title = f"At {aim}, which every scheme reached with every seed"
    return TextTable(title, ("scheme", "10⁴ s", "kJ", "time gain", "energy gain"), rows)


def sweep_table(document: Mapping[str, Any]) -> TextTable:
    """Time and energy to the target, setting by setting."""
    rows = tuple(
        (
            value,
            name,
            number(row["seconds_to_target"], 1e4),
            number(row["joules_to_target"], 1e3),
            interval(row, "gain_seconds"),
            interval(row, "gain_joules"),
            number(row["final_accuracy"], 0.01, digits=1),
        )
        for value, summary in document["values"].items()
        for name, row in summary["schemes"].items()
    )
    aim = "no target" if document["target"] is None else f"{100 * document['target']:g} %"
    headings = (document["key"], "scheme", "10⁴ s", "kJ", "time gain", "energy gain", "acc %")
    return TextTable(f"Time and energy to {aim}, and gain over CEF in each setting", headings, rows)


def rates_table(document: Mapping[str, Any]) -> TextTable:
    """Held-out accuracy of every learning rate, and the one chosen."""
    grid = list(document["values"])
    rows = tuple(
        (
            name,
            *(number(tried.get(rate), 0.01, digits=1) for rate in grid),
            f"{document['chosen'][name]:g}",
        )
        for name, tried in document["held_out"].items()
    )
    title = "Accuracy on held-out training samples (%), by learning rate"
    return TextTable(title, ("scheme", *grid, "chosen"), rows)


def estimates_table(document: Mapping[str, Any]) -> TextTable:
    """σ² and G² at the beginning, in the middle and at the end of a run."""
    rows = tuple(
        (name, f"{point['round']}", f"{point['sigma2']:.4g}", f"{point['g2']:.4g}")
        for name, points in document["estimates"].items()
        for point in points
    )
    return TextTable("σ² and G² (first seed)", ("scheme", "round", "σ²", "G²"), rows)


def number(value: float | None, unit: float = 1.0, digits: int = 2) -> str:
    """A value in a unit, or a dash."""
    return NOTHING if value is None else f"{value / unit:.{digits}f}"


def interval(row: Mapping[str, Any], key: str) -> str:
    """A value with the half width of its 95 % interval, where it has one."""
    half = row["confidence"][key]
    text = number(row[key])
    return text if row[key] is None or not half else f"{text}±{half:.2f}"
