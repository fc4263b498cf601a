"""report.html: one self-contained file without scripts that needs no network.

It shows the result first, then the figures, then how each run was made. Everything that comes from a run
directory is escaped. The page follows the light or dark preference of the browser and fits a phone.
"""

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cfel.durable import replace_file
from cfel.report.load import Run, find_target, group_by_scheme, load_runs
from cfel.report.pictures import Picture, draw_pictures, write_pictures
from cfel.report.style import SchemeStyle, assign_styles, css_variable, list_colours
from cfel.report.summary import describe_overruns, summarise
from cfel.wording import plural

Settings = Mapping[str, Mapping[str, Any]]
"""The values of each setting of a sweep, by key; the settings have the same keys."""

NO_SETTINGS: Settings = MappingProxyType({})
"""For runs that are not a sweep."""

_NOTHING = "–"
_NO_BREAK = "\N{NO-BREAK SPACE}"
_DEVICES_FOOTNOTE = (
    " Devices: accuracy on test samples like their own (simulation.device_accuracy), mean, mean of the worst "
    "tenth, and standard deviation."
)
_OWN_MODELS_FOOTNOTE = " Own models: the same of models that devices keep to themselves."
_MOST_OVERRUNS = 8


def write_report(path: Path, target: float | None = None) -> Path:
    """Writes `report.html` and `figures/` into a run directory or a tree of them; returns the page's path.

    The target is by default that of an existing summary, or of the experiments.

    Raises:
        StorageError: there is no run, or a file cannot be written.
    """
    runs = load_runs(path)
    target = target if target is not None else find_target(path, runs)
    pictures = draw_pictures(runs, target)
    write_pictures(path / "figures", pictures)
    page = path / "report.html"
    replace_file(page, render_page(runs, summarise(runs, target), pictures).encode())
    return page


def render_page(runs: tuple[Run, ...], summary: Mapping[str, Any], pictures: tuple[Picture, ...]) -> str:
    """The page as HTML."""
    groups = group_by_scheme(runs)
    styles = assign_styles(tuple(groups))
    settings = {run.scheme: run.setting for run in runs if run.setting}
    headline = compose_headline(summary, styles)
    if settings:
        headline = f"{name_most_accurate(summary, styles)} {headline}".strip()
    # Figures that compare schemes come first, figures of one scheme after them.
    shared = [picture for picture in pictures if not picture.about]
    single = [picture for picture in pictures if picture.about]
    return render_document(
        runs[0].name,
        "cfel report",
        f'<p class="muted">{escape(_render_subtitle(runs, summary["target"]))}</p>'
        f'<p class="headline">{escape(headline)}</p>'
        f'<div class="card">{render_summary_table(summary, styles, settings)}</div>'
        f'<p class="muted">{escape(_render_footnote(runs, summary))}</p>'
        f"{render_overruns(runs, styles)}"
        f"{render_metrics_table(summary, styles, settings)}"
        f"<h2>Figures</h2>{render_gallery(shared)}"
        f"{'<h2>Devices by scheme</h2>' + render_gallery(single) if single else ''}"
        f'<h2>Planned and done</h2><div class="card">{render_work_table(summary, styles, settings)}</div>'
        f'<p class="muted">{escape(_render_work_footnote(summary))}</p>'
        f"{render_provenance(runs, styles)}",
    )


def render_document(title: str, kind: str, body: str) -> str:
    """A whole page: its title, which is escaped here, what kind of page it is, and its HTML."""
    title = escape(title)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{title} · {kind}</title><style>{_render_stylesheet()}</style></head><body><main>"
        f"<h1>{title}</h1>{body}</main></body></html>\n"
    )


def _render_stylesheet() -> str:
    """For light and dark mode; paper is light."""
    light = "".join(f"{css_variable(colour)}:{colour};" for colour, _ in list_colours())
    dark = "".join(f"{css_variable(colour)}:{other};" for colour, other in list_colours())
    rules = files("cfel.report").joinpath("page.css").read_text(encoding="utf-8")
    return (
        f":root{{--ground:#f4f6f8;{light}}}\n"
        f"@media screen and (prefers-color-scheme: dark){{:root{{--ground:#0f1317;{dark}}}}}\n{rules}"
    )


def _render_subtitle(runs: tuple[Run, ...], target: float | None) -> str:
    rounds = max((len(run.records) for run in runs), default=0)
    fleet = runs[0].fleet
    schemes, keys = len(group_by_scheme(runs)), runs[0].setting
    parts = [
        f"{plural(fleet.devices, 'device')} in {plural(fleet.clusters, 'cluster')}",
        f"{plural(schemes, 'setting')} of {' and '.join(keys)}" if keys else plural(schemes, "scheme"),
        plural(len({run.seed for run in runs}), "seed"),
        f"up to {plural(rounds, 'global round')}",
    ]
    if target is not None:
        parts.append(f"target {format_percent(target)}")
    return " · ".join(parts)


def _render_footnote(runs: tuple[Run, ...], summary: Mapping[str, Any]) -> str:
    gains = any(values["gain_seconds"] is not None for values in summary["schemes"].values())
    parts = ["In brackets: share of the budget. – : not reached, or not known."]
    if gains:
        parts.insert(0, "Gain: over CEF, to the target.")
    if len({run.seed for run in runs}) > 1:
        compared = "; gains are compared seed by seed" if gains else ""
        parts.insert(0, f"Means over seeds, with 95 % confidence intervals{compared}.")
    return " ".join(parts)


def _render_work_footnote(summary: Mapping[str, Any]) -> str:
    def is_known(name: str) -> bool:
        return any(values[name] is not None for values in summary["schemes"].values())

    devices = _DEVICES_FOOTNOTE if is_known("device_accuracy_mean") else ""
    own = _OWN_MODELS_FOOTNOTE if is_known("personal_accuracy_mean") else ""
    return f"Of a whole run, all devices together.{devices}{own}"


def render_overruns(runs: Sequence[Run], styles: Mapping[str, SchemeStyle]) -> str:
    """What runs broke: budgets, and caps of single rounds; empty if all were kept. Long lists are folded."""
    items = [
        f"<li>{escape(f'{styles[run.scheme].label}, seed {run.seed}: {sentence}')}</li>"
        for run in runs
        for sentence in describe_overruns(run)
    ]
    if not items:
        return ""
    whole = f"<ul>{''.join(items)}</ul>"
    if len(items) > _MOST_OVERRUNS:
        broken = len({run.directory.path for run in runs if describe_overruns(run)})
        label = f"{broken} of {plural(len(runs), 'run')}"
        whole = f'<details class="list"><summary>{label}</summary>{whole}</details>'
    return f"<h2>Budgets and caps that were broken</h2>{whole}"


def render_gallery(pictures: Sequence[Picture]) -> str:
    """The figures in a grid."""
    return f'<div class="grid">{"".join(map(_render_figure, pictures))}</div>'


def _render_figure(picture: Picture) -> str:
    return (
        f'<figure id="{picture.name}"><h3>{escape(picture.title)}</h3>{picture.inline}'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )


def render_provenance(runs: Sequence[Run], styles: Mapping[str, SchemeStyle]) -> str:
    """How each run was made, in collapsed sections."""
    return f"<h2>How this was made</h2>{''.join(_render_run(run, styles) for run in runs)}"


def _render_run(run: Run, styles: Mapping[str, SchemeStyle]) -> str:
    environment = run.environment
    changed = " with uncommitted changes" if environment.modified else ""
    facts = {
        "seed": str(run.seed),
        "rounds": str(len(run.records)),
        "command": " ".join(environment.command) or "–",
        "started": environment.started or "–",
        "commit": f"{environment.commit}{changed}" if environment.commit else "–",
        "python": environment.python,
        "packages": ", ".join(f"{name} {number}" for name, number in environment.packages.items()),
        "machine": f"{environment.cpu}, {plural(environment.cores, 'core')}, {environment.platform}",
        "budgets": "; ".join(describe_overruns(run)) or "kept, every cap met",
    }
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items())
    return (
        f"<details><summary>{escape(styles[run.scheme].label)}, seed {run.seed}</summary><dl>{items}</dl>"
        f"<pre>{escape(run.experiment_toml)}</pre></details>"
    )


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


def render_summary_table(
    summary: Mapping[str, Any], styles: Mapping[str, SchemeStyle], settings: Settings = NO_SETTINGS
) -> str:
    """The summary as a table; on a phone each scheme becomes a block. Each key of a sweep gets a column."""
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
        "Backhaul, J",
        "Downloads",
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
        scheme: tuple(_format_number(values["metrics"].get(name), ".4g") for name in names)
        for scheme, values in schemes.items()
    }
    table = _render_table(names, rows, styles, settings, keep=names)
    return f'<h2>Metrics of the task</h2><div class="card">{table}</div>' if names else ""


def _format_work(values: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        *(_format_number(values[name], ",.0f") for name in ("steps_planned", "steps_taken")),
        *(format_bytes(values[name]) for name in ("upload_bytes_planned", "upload_bytes", "backhaul_bytes")),
        _format_number(values["backhaul_joules"], ",.0f"),
        format_bytes(values["download_bytes"]),
        *(
            format_percent(values[f"{whose}_accuracy_{name}"])
            for whose in ("device", "personal")
            for name in ("mean", "worst", "spread")
        ),
        format_seconds(values["wall_seconds"]),
        format_bytes(values["peak_memory_bytes"]),
    )


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
    return render_table(
        (*(keys or ["Scheme"]), *shown),
        [
            f"{_render_name(styles[scheme], settings.get(scheme, {}))}"
            f"{render_cells(shown, [texts[place] for place in wanted])}"
            for scheme, texts in rows.items()
        ],
    )


def render_table(headings: Sequence[str], rows: Sequence[str]) -> str:
    """A table of rows that are HTML already."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<table class="summary"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _render_name(style: SchemeStyle, setting: Mapping[str, Any]) -> str:
    """The first cell of a row: the name of the scheme; or the cells with the values of a setting."""
    swatch = f'<span class="swatch" style="background:var({css_variable(style.colour)})"></span>'
    if not setting:
        return f'<th scope="row">{swatch}{escape(style.label)}</th>'
    (key, value), *others = setting.items()
    # A phone has no room for headings: there the key stands beside its value.
    label = f'<span class="key">{escape(key)}: </span>{escape(str(value))}'
    cells = render_cells([name for name, _ in others], [str(each) for _, each in others])
    return f'<th scope="row">{swatch}{label}</th>{cells}'


def render_cells(headings: Sequence[str], texts: Sequence[str]) -> str:
    """Cells that a phone shows with their headings."""
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


def format_bytes(value: float | None) -> str:
    """Bytes in powers of 1000."""
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value is not None and value >= size:
            return _format_interval(value, None, size, unit)
    return _format_interval(value, None, 1.0, "B", digits=0)


def _format_number(value: float | None, form: str) -> str:
    return _NOTHING if value is None else format(value, form)
