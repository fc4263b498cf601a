"""The summary as an HTML table and as a sentence; formatting of seconds, joules, percentages and gains."""

from collections.abc import Mapping
from html import escape
from typing import Any

from cfel.report.style import SchemeStyle, css_variable

_NOTHING = "–"
_NO_BREAK = "\N{NO-BREAK SPACE}"


def format_seconds(value: float | None, half_width: float | None = None) -> str:
    """Seconds, with half the width of their confidence interval if given."""
    return _format_interval(value, half_width, 1.0, "s")


def format_joules(value: float | None, half_width: float | None = None) -> str:
    """Joules, kilojoules or megajoules."""
    for size, unit in ((1e6, "MJ"), (1e3, "kJ")):
        if value is not None and abs(value) >= 10 * size:
            return _format_interval(value, half_width, size, unit)
    return _format_interval(value, half_width, 1.0, "J")


def format_percent(value: float | None, half_width: float | None = None) -> str:
    """An accuracy or a share as a percentage."""
    return _format_interval(value, half_width, 0.01, "%", digits=1)


def format_gain(value: float | None, interval: tuple[float, float] | None = None) -> str:
    """A gain as a factor, with the ends of its interval if given."""
    text = _format_interval(value, None, 1.0, "×", digits=2)
    return text if value is None or interval is None else f"{text} ({interval[0]:.2f}–{interval[1]:.2f})"


def _format_interval(
    value: float | None, half_width: float | None, size: float, unit: str, digits: int | None = None
) -> str:
    if value is None:
        return _NOTHING
    places = digits if digits is not None else _decimals(value / size)
    text = f"{value / size:,.{places}f}"
    if half_width:
        text += f" ± {half_width / size:,.{places}f}"
    # A number must not be separated from its unit at the end of a line.
    return f"{text}{unit}" if unit == "×" else f"{text}{_NO_BREAK}{unit}"


def _decimals(value: float) -> int:
    """Decimal places for about three significant digits."""
    return 2 if abs(value) < 10 else 1 if abs(value) < 1000 else 0


def render_summary_table(summary: Mapping[str, Any], styles: Mapping[str, SchemeStyle]) -> str:
    """The summary as a table; on a phone each scheme becomes a block."""
    target = summary["target"]
    to_target = "to target" if target is None else f"to {format_percent(target)}"
    headings = (
        f"Time {to_target}",
        f"Energy {to_target}",
        "Gain in time",
        "Gain in energy",
        "Final accuracy",
        "Time used",
        "Energy used",
    )
    rows = "".join(
        _render_row(styles[scheme], headings, values) for scheme, values in summary["schemes"].items()
    )
    return _render_table(headings, rows)


def render_work_table(summary: Mapping[str, Any], styles: Mapping[str, SchemeStyle]) -> str:
    """What was planned beside what was done, traffic, single devices, and what the run itself took.

    A column that no scheme has a value for is left out.
    """
    headings = (
        "Steps planned",
        "Steps taken",
        "Uploads planned",
        "Uploads sent",
        "Backhaul",
        "Devices: mean",
        "Worst tenth",
        "Spread",
        "Own models: mean",
        "Worst tenth",
        "Spread",
        "Real time",
        "Peak memory",
    )
    cells = {scheme: _format_work(values) for scheme, values in summary["schemes"].items()}
    # Most runs do not record the accuracy of single devices.
    shown = [place for place in range(len(headings)) if any(row[place] != _NOTHING for row in cells.values())]
    kept = tuple(headings[place] for place in shown)
    rows = "".join(
        _render_cells(styles[scheme], kept, tuple(row[place] for place in shown))
        for scheme, row in cells.items()
    )
    return _render_table(kept, rows)


def render_metrics_table(summary: Mapping[str, Any], styles: Mapping[str, SchemeStyle]) -> str:
    """The task's further metrics under their own names; empty without any."""
    schemes = summary["schemes"]
    names = tuple(dict.fromkeys(name for values in schemes.values() for name in values["metrics"]))
    rows = "".join(
        _render_cells(styles[scheme], names, tuple(_format_metric(values["metrics"].get(n)) for n in names))
        for scheme, values in schemes.items()
    )
    return (
        f'<h2>Metrics of the task</h2><div class="card">{_render_table(names, rows)}</div>' if names else ""
    )


def _format_metric(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.4g}"


def _format_work(values: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        _format_count(values["steps_planned"]),
        _format_count(values["steps_taken"]),
        *(format_bytes(values[name]) for name in ("upload_bytes_planned", "upload_bytes", "backhaul_bytes")),
        *(
            format_percent(values[f"{whose}_accuracy_{name}"])
            for whose in ("device", "personal")
            for name in ("mean", "worst", "spread")
        ),
        format_seconds(values["wall_seconds"]),
        format_bytes(values["peak_memory_bytes"]),
    )


def _format_count(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:,.0f}"


def format_bytes(value: float | None) -> str:
    """Bytes in powers of 1000."""
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value is not None and value >= size:
            return _format_interval(value, None, size, unit)
    return _format_interval(value, None, 1.0, "B", digits=0)


def _render_table(headings: tuple[str, ...], rows: str) -> str:
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in ("Scheme", *headings))
    return f'<table class="summary"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _render_row(style: SchemeStyle, headings: tuple[str, ...], values: Mapping[str, Any]) -> str:
    half = values["confidence"]
    texts = (
        format_seconds(values["seconds_to_target"], half["seconds_to_target"]),
        format_joules(values["joules_to_target"], half["joules_to_target"]),
        format_gain(values["gain_seconds"], values["interval"]["gain_seconds"]),
        format_gain(values["gain_joules"], values["interval"]["gain_joules"]),
        format_percent(values["final_accuracy"], half["final_accuracy"]),
        _add_budget_share(format_seconds(values["seconds"]), values["seconds"], values["seconds_budget"]),
        _add_budget_share(format_joules(values["joules"]), values["joules"], values["joules_budget"]),
    )
    return _render_cells(style, headings, texts)


def _render_cells(style: SchemeStyle, headings: tuple[str, ...], texts: tuple[str, ...]) -> str:
    cells = "".join(
        f'<td data-label="{escape(heading)}">{escape(text)}</td>'
        for heading, text in zip(headings, texts, strict=True)
    )
    swatch = f'<span class="swatch" style="background:var({css_variable(style.colour)})"></span>'
    return f'<tr><th scope="row">{swatch}{escape(style.label)}</th>{cells}</tr>'


def _add_budget_share(text: str, value: float | None, budget: float | None) -> str:
    return text if value is None or not budget else f"{text} ({100 * value / budget:.0f}{_NO_BREAK}%)"


def compose_headline(summary: Mapping[str, Any], styles: Mapping[str, SchemeStyle]) -> str:
    """The result in one sentence: which scheme reaches the target first, and its gain."""
    reached = {
        scheme: values
        for scheme, values in summary["schemes"].items()
        if values["seconds_to_target"] is not None
    }
    if not reached:
        return "" if summary["target"] is None else "No scheme reached the target with every seed."
    best = min(reached, key=lambda scheme: float(reached[scheme]["seconds_to_target"]))
    values = reached[best]
    text = (
        f"{styles[best].label} reaches {format_percent(summary['target'])} first: after "
        f"{format_seconds(values['seconds_to_target'])} and {format_joules(values['joules_to_target'])}"
    )
    if values["gain_seconds"] is None or values["gain_seconds"] == 1.0:
        return f"{text}."
    return (
        f"{text}, a gain over CEF of {format_gain(values['gain_seconds'])} in time and "
        f"{format_gain(values['gain_joules'])} in energy."
    )
