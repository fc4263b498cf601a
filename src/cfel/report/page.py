"""report.html: one self-contained file without scripts that needs no network.

It shows the result first, then the figures, then how each run was made. Everything that comes from a run
directory is escaped. The page follows the light or dark preference of the browser and fits a phone.
"""

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from cfel.durable import replace_file
from cfel.report.load import Run, find_target, group_by_scheme, load_runs
from cfel.report.overruns import describe_overruns
from cfel.report.pictures import Picture, draw_pictures, write_pictures
from cfel.report.style import SchemeStyle, assign_styles, css_variable, list_colours
from cfel.report.summary import summarise
from cfel.report.tables import (
    Settings,
    compose_headline,
    format_percent,
    name_most_accurate,
    render_metrics_table,
    render_summary_table,
    render_work_table,
)
from cfel.wording import plural

_DEVICES_FOOTNOTE = (
    " Devices: accuracy on test samples like their own (simulation.device_accuracy), mean, mean of the worst "
    "tenth, and standard deviation."
)
_OWN_MODELS_FOOTNOTE = " Own models: the same of models that devices keep to themselves."
_MOST_OVERRUNS = 8


def write_report(path: Path, target: float | None = None) -> Path:
    """Writes `report.html` and `figures/` into a run directory or a tree of them.

    Args:
        path: the directory.
        target: accuracy to reach; None for that of an existing summary, or of the experiments.

    Returns:
        The path of the page.

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
    """The page as HTML.

    Args:
        runs: the runs it shows.
        summary: their summary, from `summarise`.
        pictures: the figures.
    """
    groups = group_by_scheme(runs)
    styles = assign_styles(tuple(groups))
    settings = {run.scheme: run.setting for run in runs if run.setting}
    title = escape(runs[0].name)
    # Figures that compare schemes come first, figures of one scheme after them.
    shared = [picture for picture in pictures if not picture.about]
    single = [picture for picture in pictures if picture.about]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{title} · cfel report</title><style>{render_stylesheet()}</style></head><body><main>"
        f'<h1>{title}</h1><p class="muted">{escape(_render_subtitle(runs, summary["target"]))}</p>'
        f'<p class="headline">{escape(_compose_headline(summary, styles, settings))}</p>'
        f'<div class="card">{render_summary_table(summary, styles, settings)}</div>'
        f'<p class="muted">{escape(_render_footnote(runs, summary))}</p>'
        f"{render_overruns(runs, styles)}"
        f"{render_metrics_table(summary, styles, settings)}"
        f"<h2>Figures</h2>{render_gallery(shared)}"
        f"{'<h2>Devices by scheme</h2>' + render_gallery(single) if single else ''}"
        f'<h2>Planned and done</h2><div class="card">{render_work_table(summary, styles, settings)}</div>'
        f'<p class="muted">{escape(_render_work_footnote(summary))}</p>'
        f"<h2>How this was made</h2>{''.join(render_provenance(run, styles) for run in runs)}"
        "</main></body></html>\n"
    )


def render_stylesheet() -> str:
    """The style sheet for light and dark mode; paper is light."""
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
    parts = [
        f"{plural(fleet.devices, 'device')} in {plural(fleet.clusters, 'cluster')}",
        _count_settings(runs) if runs[0].setting else plural(len(group_by_scheme(runs)), "scheme"),
        plural(len({run.seed for run in runs}), "seed"),
        f"up to {plural(rounds, 'global round')}",
    ]
    if target is not None:
        parts.append(f"target {format_percent(target)}")
    return " · ".join(parts)


def _count_settings(runs: tuple[Run, ...]) -> str:
    return f"{plural(len(group_by_scheme(runs)), 'setting')} of {' and '.join(runs[0].setting)}"


def _compose_headline(
    summary: Mapping[str, Any], styles: Mapping[str, SchemeStyle], settings: Settings
) -> str:
    first = compose_headline(summary, styles)
    return f"{name_most_accurate(summary, styles)} {first}".strip() if settings else first


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


def render_provenance(run: Run, styles: Mapping[str, SchemeStyle]) -> str:
    """How one run was made, in a collapsed section."""
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
