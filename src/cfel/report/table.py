"""The main table of a comparison or a sweep, for terminal, page, notebook, CSV, Markdown and LaTeX.

Every cell has its unit, times and energies are realised, and the first column is the quality within the
budgets. Where there are several seeds, a cell also has an interval.
"""

import csv
import io
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from cfel.durable import make_directory, replace_file
from cfel.errors import InputError, unknown_name
from cfel.metric import Metric
from cfel.report.load import name_scheme
from cfel.report.summary import DIFFERENCE, read_metric
from cfel.wording import (
    NO_BREAK,
    NOTHING,
    format_gain,
    format_joules,
    format_seconds,
    format_share,
)

Settings = Mapping[str, Mapping[str, Any]]
"""The values of each setting of a sweep, by key; the settings have the same keys."""

NO_SETTINGS: Settings = MappingProxyType({})
"""For runs that are not a sweep."""

CLOCK = "Times and energies are realised: with the steps that devices really took."
"""What every table says about its numbers."""
UNEQUAL = 0.005
"""Budgets that differ by a larger share than this are no equal budgets."""
_HEADING_WIDTH = 7
TABLE_FORMATS = {"csv": "csv", "markdown": "md", "latex": "tex"}
"""Formats of the table and the suffixes of their files."""
_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    NO_BREAK: r"\,",
    "±": r"$\pm$",
    "×": r"$\times$",
    "–": "--",
    "−": "$-$",
    "ρ": r"$\rho$",
    "θ": r"$\theta$",
    "τ": r"$\tau$",
    "<": "$<$",
    ">": "$>$",
}


class Cell(NamedTuple):
    """A number as text, its interval or nothing, and both in one where there is a shorter way."""

    text: str
    interval: str = ""
    both: str = ""

    def __str__(self) -> str:
        return self.both or f"{self.text} {self.interval}".strip()


@dataclass(frozen=True, slots=True)
class MainTable:
    """The table as text."""

    title: str  # what it shows
    names: tuple[str, ...]  # heading of the first columns, which name the rows
    headings: tuple[str, ...]  # of the columns with numbers
    # By name of the row, the cells that name it and the cells with numbers.
    rows: Mapping[str, tuple[tuple[str, ...], tuple[Cell, ...]]]
    notes: tuple[str, ...]  # sentences below it

    def to_markdown(self) -> str:
        """The table in Markdown, with its title and notes."""
        lines = [(*self.names, *self.headings), ("---",) * len(self.names) + ("---:",) * len(self.headings)]
        lines += [(*names, *map(str, cells)) for names, cells in self.rows.values()]
        body = "\n".join(
            f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
        )
        return f"**{self.title}**\n\n{body}\n\n{' '.join(self.notes)}\n"

    def to_latex(self) -> str:
        """The table in LaTeX; it needs the package booktabs."""
        columns = "l" * len(self.names) + "r" * len(self.headings)
        lines = [
            " & ".join(map(_escape_latex, (*names, *map(str, cells)))) + r" \\"
            for names, cells in self.rows.values()
        ]
        return "\n".join(
            [
                r"% \usepackage{booktabs}",
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{_escape_latex(self.title)}. {_escape_latex(' '.join(self.notes))}}}",
                rf"\begin{{tabular}}{{{columns}}}",
                r"\toprule",
                " & ".join((*map(_escape_latex, self.names), *map(_stack_latex, self.headings))) + r" \\",
                r"\midrule",
                *lines,
                r"\bottomrule",
                r"\end{tabular}",
                r"\end{table}",
                "",
            ]
        )

    def to_html(self) -> str:
        head = "".join(f"<th>{escape(each)}</th>" for each in (*self.names, *self.headings))
        body = "".join(
            f"<tr>{''.join(f'<th>{escape(each)}</th>' for each in names)}"
            f"{''.join(f'<td>{escape(str(each))}</td>' for each in cells)}</tr>"
            for names, cells in self.rows.values()
        )
        notes = escape(" ".join(self.notes))
        return (
            f"<p><b>{escape(self.title)}</b></p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            f"<p><small>{notes}</small></p>"
        )


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)


def fold_heading(heading: str) -> list[str]:
    """A heading in lines as short as its longest word, or a few letters more, so that tables stay narrow."""
    return textwrap.wrap(heading, max(_HEADING_WIDTH, *map(len, heading.split(" "))))


def _stack_latex(heading: str) -> str:
    lines = r" \\ ".join(map(_escape_latex, fold_heading(heading)))
    return rf"\shortstack[r]{{{lines}}}"


def build_table(summary: Mapping[str, Any], settings: Settings = NO_SETTINGS) -> MainTable:
    """The main table of a summary; columns without any value are left out. Keys of a sweep get columns."""
    rows = summary["schemes"]
    columns = {heading: [read(row) for row in rows.values()] for heading, read in _list_columns(summary)}
    kept = {
        heading: cells
        for heading, cells in columns.items()
        # That nobody reached the target is a result; that there is no budget is not.
        if any(cell.text != NOTHING for cell in cells)
        or (" to " in heading and summary["target"] is not None)
    }
    named = settings or {row: {"Scheme": values["label"]} for row, values in rows.items()}
    return MainTable(
        _compose_title(summary),
        tuple(next(iter(named.values()), ())),
        tuple(kept),
        {
            row: (tuple(map(str, named[row].values())), tuple(cells[place] for cells in kept.values()))
            for place, row in enumerate(rows)
        },
        tuple(_list_notes(summary)),
    )


def _compose_title(summary: Mapping[str, Any]) -> str:
    metric, target = read_metric(summary), summary["target"]
    aim = "" if target is None else f", and costs to {metric.format_target(target)}"
    return f"{metric.name[0].upper()}{metric.name[1:]} within the budgets{aim}"


def _list_columns(summary: Mapping[str, Any]) -> list[tuple[str, Callable[[Mapping[str, Any]], Cell]]]:
    metric, target = read_metric(summary), summary["target"]
    aim = "target" if target is None else metric.format_target(target)
    columns: list[tuple[str, Callable[[Mapping[str, Any]], Cell]]] = [
        (
            f"{metric.name} within budgets",
            lambda row: _show_mean(row, "quality_within_budgets", metric.format),
        )
    ]
    if summary["baseline"] is not None:
        unit = f", {metric.difference_unit}" if metric.difference_unit else ""
        columns += [
            (
                f"difference to {name_scheme(summary['baseline'])}{unit}",
                lambda row: _show_difference(row, metric),
            ),
            ("p", lambda row: Cell(format_p_value(row["p_value"][DIFFERENCE]))),
        ]
    columns += [
        (f"time to {aim}", lambda row: _show_mean(row, "seconds_to_target", format_seconds)),
        ("gain in time", lambda row: _show_gain(row, "gain_seconds")),
        (f"energy to {aim}", lambda row: _show_mean(row, "joules_to_target", format_joules)),
        ("gain in energy", lambda row: _show_gain(row, "gain_joules")),
        ("time used", lambda row: _show_used(row, "seconds", format_seconds)),
        ("energy used", lambda row: _show_used(row, "joules", format_joules)),
    ]
    return columns


def _show_mean(row: Mapping[str, Any], name: str, write: Callable[..., str]) -> Cell:
    half = row["confidence"][name]
    return (
        Cell(write(row[name]))
        if not half
        else Cell(write(row[name]), f"± {write(half)}", write(row[name], half))
    )


def _show_difference(row: Mapping[str, Any], metric: Metric) -> Cell:
    value, ends = row[DIFFERENCE], row["interval"][DIFFERENCE]
    text = NOTHING if value is None else metric.format_difference(value)
    if ends is None or ends[0] == ends[1]:
        return Cell(text)
    return Cell(text, f"± {metric.format_plain((ends[1] - ends[0]) / 2)}")


def _show_gain(row: Mapping[str, Any], name: str) -> Cell:
    text, ends = format_gain(row[name]), row["interval"][name]
    if ends is None or ends[0] == ends[1]:
        return Cell(text)
    shown = f"{ends[0]:.2f}–{ends[1]:.2f}"
    return Cell(text, shown, f"{text} ({shown})")


def _show_used(row: Mapping[str, Any], name: str, write: Callable[[float | None], str]) -> Cell:
    """The share of the budget; without a budget, what was used."""
    budget = row[f"{name}_budget"]
    return Cell(format_share(row[name], budget) if budget else write(row[name]))


def format_p_value(value: float | None) -> str:
    """A p-value: "0.032", "< 0.001"."""
    return NOTHING if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def _list_notes(summary: Mapping[str, Any]) -> list[str]:
    rows = list(summary["schemes"].values())
    seeds = max((len(row["per_seed"]) for row in rows), default=0)
    compared = any(row["gain_seconds"] is not None or row[DIFFERENCE] is not None for row in rows)
    metric = read_metric(summary)
    parts = [CLOCK]
    if any(row["seconds_budget"] or row["joules_budget"] for row in rows):
        parts.append("Within budgets: the last model before the first is used up. Used: of the budget.")
    parts += _compare_budgets(summary)
    if metric.better == "smaller":
        parts.append(f"A smaller {metric.name} is better.")
    if compared and summary["baseline"] is not None and len(rows) > 1:
        label = name_scheme(summary["baseline"])
        parts.append(f"Differences and gains: relative to {label}{', seed by seed' if seeds > 1 else ''}.")
    if seeds > 1:
        parts.append(f"Means over {seeds} seeds, with 95 % confidence intervals.")
    if any(row["p_value"][DIFFERENCE] is not None for row in rows):
        parts.append("p: of a paired t-test of the difference.")
    if any(row["seconds_to_target"] is None for row in rows) and summary["target"] is not None:
        parts.append(f"{NOTHING} : not reached, or not with every seed.")
    return parts


def _compare_budgets(summary: Mapping[str, Any]) -> list[str]:
    """A sentence for each row whose budgets are not the baseline's: it may win by having more."""
    rows, baseline = summary["schemes"], summary["baseline"]
    sentences = []
    for row in rows.values() if baseline in rows else ():
        pairs = [
            (row[key], rows[baseline][key], name)
            for key, name in (("seconds_budget", "time"), ("joules_budget", "energy"))
        ]
        words = [
            f"{format_gain(own / given)} the {name}"
            for own, given, name in pairs
            if own and given and abs(own / given - 1) > UNEQUAL
        ]
        if words:
            other = rows[baseline]["label"]
            sentences.append(f"Unequal budgets: {row['label']} has {' and '.join(words)} of {other}.")
    return sentences


NUMBERS = ("quality_within_budgets", "seconds_to_target", "joules_to_target", "seconds", "joules")
COMPARED = (DIFFERENCE, "gain_seconds", "gain_joules")


def list_numbers(summary: Mapping[str, Any], settings: Settings = NO_SETTINGS) -> list[dict[str, Any]]:
    """The main table as plain numbers, one mapping per row: values, ends of their intervals, p-values."""
    found = []
    for name, row in summary["schemes"].items():
        line: dict[str, Any] = {"row": row["label"], **settings.get(name, {})}
        for key in NUMBERS:
            half = row["confidence"][key]
            ends = (None, None) if half is None else (row[key] - half, row[key] + half)
            line |= {key: row[key], f"{key}_low": ends[0], f"{key}_high": ends[1]}
        for key in COMPARED:
            ends = row["interval"][key] or (None, None)
            line |= {
                key: row[key],
                f"{key}_low": ends[0],
                f"{key}_high": ends[1],
                f"{key}_p": row["p_value"][key],
            }
        budgets = {key: row[key] for key in ("seconds_budget", "joules_budget")}
        found.append(line | budgets | {"seeds": len(row["per_seed"]), "reached": row["reached"]})
    return found


def to_csv(summary: Mapping[str, Any], settings: Settings = NO_SETTINGS) -> str:
    """The main table as CSV with plain numbers; an empty cell is not known."""
    lines = list_numbers(summary, settings)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return buffer.getvalue()


def write_table(
    directory: Path, summary: Mapping[str, Any], formats: Sequence[str], settings: Settings = NO_SETTINGS
) -> tuple[Path, ...]:
    """Writes `table.csv`, `table.md` and `table.tex`, those that are asked for; returns the files."""
    make_directory(directory)
    table = build_table(summary, settings)
    write = {
        "csv": lambda: to_csv(summary, settings),
        "markdown": table.to_markdown,
        "latex": table.to_latex,
    }
    files = []
    for name in (each for each in TABLE_FORMATS if each in formats):
        file = directory / f"table.{TABLE_FORMATS[name]}"
        replace_file(file, write[name]().encode())
        files.append(file)
    return tuple(files)


def check_formats(formats: Sequence[str], allowed: Sequence[str]) -> None:
    """Raises an `InputError` for an unknown format, or for none."""
    if not formats:
        raise InputError(f"format: give at least one of {', '.join(allowed)}")
    for name in formats:
        if name not in allowed:
            raise InputError(unknown_name("format", name, allowed))
