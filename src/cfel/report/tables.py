"""Numbers for people: the summary as an HTML table, and how seconds, joules and shares are written."""

from collections.abc import Mapping
from html import escape
from typing import Any

from cfel.report.style import SchemeStyle, css_variable

_NOTHING = "–"
_NO_BREAK = "\N{NO-BREAK SPACE}"


def seconds_text(value: float | None, half_width: float | None = None) -> str:
    """Seconds, with the half width of their confidence interval if there is one."""
    return _with_interval(value, half_width, 1.0, "s")


def joules_text(value: float | None, half_width: float | None = None) -> str:
    """Joules, kilojoules or megajoules."""
    for size, unit in ((1e6, "MJ"), (1e3, "kJ")):
        if value is not None and abs(value) >= 10 * size:
            return _with_interval(value, half_width, size, unit)
    return _with_interval(value, half_width, 1.0, "J")


def share_text(value: float | None, half_width: float | None = None) -> str:
    """An accuracy or a share as a percentage."""
    return _with_interval(value, half_width, 0.01, "%", digits=1)


def gain_text(value: float | None, half_width: float | None = None) -> str:
    """A gain over the reference scheme."""
    return _with_interval(value, half_width, 1.0, "×", digits=2)


def _with_interval(
    value: float | None, half_width: float | None, size: float, unit: str, digits: int | None = None
) -> str:
    if value is None:
        return _NOTHING
    places = digits if digits is not None else _places(value / size)
    text = f"{value / size:,.{places}f}"
    if half_width:
        text += f" ± {half_width / size:,.{places}f}"
    return f"{text}{unit}" if unit == "×" else f"{text}{_NO_BREAK}{unit}"


def _places(value: float) -> int:
    """Decimals that leave about three significant digits."""
    return 2 if abs(value) < 10 else 1 if abs(value) < 1000 else 0


def summary_table(summary: Mapping[str, Any], styles: Mapping[str, SchemeStyle]) -> str:
    """The summary document as a table; on a phone each scheme becomes a block of its own."""
    target = summary["target"]
    to_target = "to target" if target is None else f"to {share_text(target)}"
    headings = (
        f"Time {to_target}",
        f"Energy {to_target}",
        "Gain in time",
        "Gain in energy",
        "Final accuracy",
        "Time used",
        "Energy used",
    )
    rows = "".join(_row(styles[scheme], headings, values) for scheme, values in summary["schemes"].items())
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in ("Scheme", *headings))
    return f'<table class="summary"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _row(style: SchemeStyle, headings: tuple[str, ...], values: Mapping[str, Any]) -> str:
    half = values["confidence"]
    texts = (
        seconds_text(values["seconds_to_target"], half["seconds_to_target"]),
        joules_text(values["joules_to_target"], half["joules_to_target"]),
        gain_text(values["gain_seconds"], half["gain_seconds"]),
        gain_text(values["gain_joules"], half["gain_joules"]),
        share_text(values["final_accuracy"], half["final_accuracy"]),
        _used(seconds_text(values["seconds"]), values["seconds"], values["seconds_budget"]),
        _used(joules_text(values["joules"]), values["joules"], values["joules_budget"]),
    )
    cells = "".join(
        f'<td data-label="{escape(heading)}">{escape(text)}</td>'
        for heading, text in zip(headings, texts, strict=True)
    )
    swatch = f'<span class="swatch" style="background:var({css_variable(style.colour)})"></span>'
    return f'<tr><th scope="row">{swatch}{escape(style.label)}</th>{cells}</tr>'


def _used(text: str, value: float | None, budget: float | None) -> str:
    return text if value is None or not budget else f"{text} ({100 * value / budget:.0f}{_NO_BREAK}%)"


def headline(summary: Mapping[str, Any], styles: Mapping[str, SchemeStyle]) -> str:
    """The result in one sentence: the scheme that reached the target first, and what it gained."""
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
        f"{styles[best].label} is first to reach {share_text(summary['target'])}: after "
        f"{seconds_text(values['seconds_to_target'])} and {joules_text(values['joules_to_target'])}"
    )
    if values["gain_seconds"] is None or values["gain_seconds"] == 1.0:
        return f"{text}."
    return (
        f"{text}, a gain over CEF of {gain_text(values['gain_seconds'])} in time and "
        f"{gain_text(values['gain_joules'])} in energy."
    )
