"""The summary as an HTML table and as a sentence; formatting of seconds, joules, percentages and gains."""

from collections.abc import Mapping, Sequence
from html import escape
from types import MappingProxyType
from typing import Any

from cfel.report.style import SchemeStyle, css_variable

Settings = Mapping[str, Mapping[str, Any]]
"""The values of each setting of a sweep, by key; the settings have the same keys."""

NO_SETTINGS: Settings = MappingProxyType({})
"""For runs that are not a sweep."""

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


def render_summary_table(
    summary: Mapping[str, Any], styles: Mapping[str, SchemeStyle], settings: Settings = NO_SETTINGS
) -> str:
    """The summary as a table; on a phone each scheme becomes a block.

    Args:
        summary: from `summarise`.
        styles: style of each scheme.
        settings: of a sweep, the values of each setting; each key gets a column.
    """
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
    rows = {scheme: _format_summary(values) for scheme, values in summary["schemes"].items()}
    # That nobody reached the target is a result. Without a target, or without CEF, there is nothing to say.
    keep = headings[:2] if target is not None else ()
    return _render_table(headings, rows, styles, settings, keep)


def render_work_table(
    summary: Mapping[str, Any], styles: Mapping[str, SchemeStyle], settings: Settings = NO_SETTINGS
) -> str:
    """What was planned beside what was done, traffic, single devices, and what the run itself took.

    What was not recorded has no column.
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
    rows = {scheme: _format_work(values) for scheme, values in summary["schemes"].items()}
    return _render_table(headings, rows, styles, settings)


def render_metrics_table(
    summary: Mapping[str, Any], styles: Mapping[str, SchemeStyle], settings: Settings = NO_SETTINGS
) -> str:
    """The task's further metrics under their own names; empty without any."""
    schemes = summary["schemes"]
    names = tuple(dict.fromkeys(name for values in schemes.values() for name in values["metrics"]))
    rows = {
        scheme: tuple(_format_metric(values["metrics"].get(name)) for name in names)
        for scheme, values in schemes.items()
    }
    table = _render_table(names, rows, styles, settings, keep=names)
    return f'<h2>Metrics of the task</h2><div class="card">{table}</div>' if names else ""


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


def _render_table(
    headings: Sequence[str],
    rows: Mapping[str, Sequence[str]],
    styles: Mapping[str, SchemeStyle],
    settings: Settings,
    keep: Sequence[str] = (),
) -> str:
    """A table with a row per scheme or setting; columns without any value are left out, unless in `keep`."""
    wanted = [
        place
        for place, heading in enumerate(headings)
        if heading in keep or any(texts[place] != _NOTHING for texts in rows.values())
    ]
    shown = [headings[place] for place in wanted]
    keys = list(next(iter(settings.values()), ()))
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in (*(keys or ["Scheme"]), *shown))
    body = "".join(
        f"<tr>{_render_name(styles[scheme], settings.get(scheme, {}))}"
        f"{_render_cells(shown, [texts[place] for place in wanted])}</tr>"
        for scheme, texts in rows.items()
    )
    return f'<table class="summary"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _render_name(style: SchemeStyle, setting: Mapping[str, Any]) -> str:
    """The first cell of a row: the name of the scheme; or the cells with the values of a setting."""
    swatch = f'<span class="swatch" style="background:var({css_variable(style.colour)})"></span>'
    if not setting:
        return f'<th scope="row">{swatch}{escape(style.label)}</th>'
    (key, value), *others = setting.items()
    # A phone has no room for headings: there the key stands beside its value.
    label = f'<span class="key">{escape(key)}: </span>{escape(str(value))}'
    cells = _render_cells([name for name, _ in others], [str(each) for _, each in others])
    return f'<th scope="row">{swatch}{label}</th>{cells}'


def _render_cells(headings: Sequence[str], texts: Sequence[str]) -> str:
    return "".join(
        f'<td data-label="{escape(heading)}">{escape(text)}</td>'
        for heading, text in zip(headings, texts, strict=True)
    )


def _format_summary(values: Mapping[str, Any]) -> tuple[str, ...]:
    half = values["confidence"]
    return (
        format_seconds(values["seconds_to_target"], half["seconds_to_target"]),
        format_joules(values["joules_to_target"], half["joules_to_target"]),
        format_gain(values["gain_seconds"], values["interval"]["gain_seconds"]),
        format_gain(values["gain_joules"], values["interval"]["gain_joules"]),
        format_percent(values["final_accuracy"], half["final_accuracy"]),
        _add_budget_share(format_seconds(values["seconds"]), values["seconds"], values["seconds_budget"]),
        _add_budget_share(format_joules(values["joules"]), values["joules"], values["joules_budget"]),
    )


def _add_budget_share(text: str, value: float | None, budget: float | None) -> str:
    return text if value is None or not budget else f"{text} ({100 * value / budget:.0f}{_NO_BREAK}%)"


def compose_headline(summary: Mapping[str, Any], styles: Mapping[str, SchemeStyle]) -> str:
    """The result in one sentence: which scheme reaches the target first, and its gain."""
    reached = {
        scheme: values
        for scheme, values in summary["schemes"].items()
        if values["seconds_to_target"] is not None
    }
    alone = len(summary["schemes"]) == 1
    if not reached:
        missed = "The target was not reached" if alone else "No scheme reached the target"
        seeds = max(len(values["per_seed"]) for values in summary["schemes"].values())
        return "" if summary["target"] is None else f"{missed}{' with every seed' if seeds > 1 else ''}."
    best = min(reached, key=lambda scheme: float(reached[scheme]["seconds_to_target"]))
    values = reached[best]
    text = (
        f"{styles[best].label} reaches {format_percent(summary['target'])} {'' if alone else 'first: '}after "
        f"{format_seconds(values['seconds_to_target'])} and {format_joules(values['joules_to_target'])}"
    )
    if values["gain_seconds"] is None or values["gain_seconds"] == 1.0:
        return f"{text}."
    return (
        f"{text}, a gain over CEF of {format_gain(values['gain_seconds'])} in time and "
        f"{format_gain(values['gain_joules'])} in energy."
    )


def name_most_accurate(summary: Mapping[str, Any], styles: Mapping[str, SchemeStyle]) -> str:
    """Which setting of a sweep has the best final accuracy, as a sentence; empty if none was evaluated."""
    known = {
        scheme: float(values["final_accuracy"])
        for scheme, values in summary["schemes"].items()
        if values["final_accuracy"] is not None
    }
    if not known:
        return ""
    best = max(known, key=known.__getitem__)
    return f"{styles[best].label} has the best final accuracy: {format_percent(known[best])}."
