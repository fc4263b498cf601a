"""report.html: one self-contained file without scripts that needs no network.

It shows the result first, then the figures, then how each run was made. Everything that comes from a run
directory is escaped. The page follows the light or dark preference of the browser and fits a phone.
"""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from cfel.durable import replace_file
from cfel.metric import Metric
from cfel.report.figures import Picture, draw_pictures, write_pictures
from cfel.report.load import Run, find_baseline, find_target, group_by_row, list_settings, load_runs
from cfel.report.style import SchemeStyle, assign_styles, css_variable, list_colours
from cfel.report.summary import describe_overruns, find_interval, read_metric, summarise
from cfel.report.table import NO_SETTINGS, Settings, build_table
from cfel.wording import NOTHING, format_bytes, format_gain, format_joules, format_seconds, plural

_DEVICES_FOOTNOTE = (
    " Devices: on test samples like their own (simulation.device_accuracy), mean, mean of the worst tenth, "
    "and standard deviation."
)
_OWN_MODELS_FOOTNOTE = " Own models: the same of models that devices keep to themselves."
_MOST_OVERRUNS = 8
# A longer table scrolls in its card.
_MOST_ROWS = 20


def write_report(path: Path, target: float | None = None) -> Path:
    """Writes `report.html` and `figures/` into a run directory or a tree of them; returns the page's path.

    The target is by default that of an existing summary, or of the experiments.
    """
    runs = load_runs(path)
    target = target if target is not None else find_target(path, runs)
    pictures = draw_pictures(runs, target)
    write_pictures(path / "figures", pictures)
    page = path / "report.html"
    summary = summarise(runs, target, find_baseline(path))
    replace_file(page, render_page(runs, summary, pictures).encode())
    return page


def render_page(runs: tuple[Run, ...], summary: Mapping[str, Any], pictures: tuple[Picture, ...]) -> str:
    groups = group_by_row(runs)
    styles = assign_styles(tuple(groups))
    settings = list_settings(runs)
    table = build_table(summary, settings)
    # Figures that compare schemes come first, figures of one scheme after them.
    shared = [picture for picture in pictures if not picture.about]
    single = [picture for picture in pictures if picture.about]
    return render_document(
        runs[0].name,
        "cfel report",
        f'<p class="muted">{escape(_render_subtitle(runs, summary["target"]))}</p>'
        f'<p class="headline">{escape(compose_headline(summary))}</p>'
        f"{_render_card(render_summary_table(summary, styles, settings))}"
        f'<p class="muted">{escape(" ".join(table.notes))}</p>'
        f"{render_overruns(runs, styles)}"
        f"{render_metrics_table(runs, summary, styles, settings)}"
        f"<h2>Figures</h2>{render_gallery(shared)}"
        f"{'<h2>Devices by scheme</h2>' + _fold_by_scheme(single, styles) if single else ''}"
        f"<h2>Planned and done</h2>{_render_card(render_work_table(summary, styles, settings))}"
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
    schemes, keys = len(group_by_row(runs)), runs[0].setting
    parts = [
        f"{plural(fleet.devices, 'device')} in {plural(fleet.clusters, 'cluster')}",
        f"{plural(schemes, 'setting')} of {' and '.join(keys)}" if keys else plural(schemes, "scheme"),
        plural(len({run.seed for run in runs}), "seed"),
        f"up to {plural(rounds, 'global round')}",
    ]
    if target is not None:
        parts.append(f"target {runs[0].fleet.metrics[0].format_target(target)}")
    return " · ".join(parts)


def _render_card(table: str) -> str:
    """A table in its card, which scrolls if the table is very long."""
    long = " long" if table.count("<tr>") > _MOST_ROWS + 1 else ""
    return f'<div class="card{long}">{table}</div>'


def _fold_by_scheme(pictures: Sequence[Picture], styles: Mapping[str, SchemeStyle]) -> str:
    """The figures of each scheme; of several, each in a section that opens on a click."""
    by_scheme: dict[str, list[Picture]] = {}
    for picture in pictures:
        by_scheme.setdefault(picture.about, []).append(picture)
    if len(by_scheme) == 1:
        return render_gallery(pictures)
    sections = ((styles[scheme].label, render_gallery(own)) for scheme, own in by_scheme.items())
    return "".join(
        f'<details class="list"><summary>{escape(label)}</summary>{figures}</details>'
        for label, figures in sections
    )


def _render_work_footnote(summary: Mapping[str, Any]) -> str:
    def is_known(name: str) -> bool:
        return any(values[name] is not None for values in summary["schemes"].values())

    devices = _DEVICES_FOOTNOTE if is_known("device_accuracy_mean") else ""
    own = _OWN_MODELS_FOOTNOTE if is_known("personal_accuracy_mean") else ""
    return (
        "Of a whole run, all devices together. At the end: after the last round, whatever was used by then. "
        "Expected: by the plans, before devices drew their steps. "
        f"Uploads planned: shares of a full model; sent: with the positions of their entries.{devices}{own}"
    )


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
    figures = "".join(
        f'<figure id="{each.name}"><h3>{escape(each.title)}</h3>{each.inline}'
        f"<figcaption>{escape(each.caption)}</figcaption></figure>"
        for each in pictures
    )
    return f'<div class="grid">{figures}</div>'


def render_provenance(runs: Sequence[Run], styles: Mapping[str, SchemeStyle]) -> str:
    """How each run was made, in collapsed sections."""
    return f"<h2>How this was made</h2>{''.join(_render_run(run, styles[run.scheme].label) for run in runs)}"


def _render_run(run: Run, label: str) -> str:
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
        f"<details><summary>{escape(label)}, seed {run.seed}</summary><dl>{items}</dl>"
        f"<pre>{escape(run.experiment_toml)}</pre></details>"
    )


def compose_headline(summary: Mapping[str, Any]) -> str:
    """The result in words: the best quality within the budgets, then who reaches the target first."""
    return f"{_name_best(summary)} {_name_fastest(summary)}".strip()


def _name_best(summary: Mapping[str, Any]) -> str:
    """Which row has the best quality within the budgets; empty if there is only one, or none is known.

    Rows whose difference could be chance are not ranked.
    """
    metric, rows = read_metric(summary), summary["schemes"]
    known = [row for row in rows.values() if row["quality_within_budgets"] is not None]
    if not known or len(rows) == 1:
        return ""
    best, *others = sorted(known, key=lambda row: metric.sort_key(float(row["quality_within_budgets"])))
    quality = metric.format(best["quality_within_budgets"], best["confidence"]["quality_within_budgets"])
    text = f"{best['label']} has the best {metric.name} within the budgets, {quality}"
    if len(best["per_seed"]) == 1:
        return f"{text}, with one seed."
    return f"{text}{_name_close(best, others, 'quality_within_budgets')}."


def _name_close(best: Mapping[str, Any], others: Sequence[Mapping[str, Any]], name: str) -> str:
    """Which rows several seeds cannot tell from the best one, by one of their values; empty without any."""
    close = [row["label"] for row in others if not _are_apart(best, row, name)]
    if not close or len(best["per_seed"]) == 1:
        return ""
    return f"; {plural(len(best['per_seed']), 'seed')} cannot tell it from {_join_names(close)}"


def _are_apart(one: Mapping[str, Any], other: Mapping[str, Any], name: str) -> bool:
    """Whether the 95 % interval of the difference of two rows, seed by seed, leaves out zero."""
    differences = [
        None
        if values[name] is None or (same := other["per_seed"].get(seed, {}).get(name)) is None
        else values[name] - same
        for seed, values in one["per_seed"].items()
    ]
    ends = find_interval(differences)
    return ends is not None and not ends[0] <= 0 <= ends[1]


def _join_names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _name_fastest(summary: Mapping[str, Any]) -> str:
    """Which row reaches the target first, after how much, and whether its gain may be chance."""
    target, rows = summary["target"], summary["schemes"]
    if target is None:
        return ""
    reached = [row for row in rows.values() if row["seconds_to_target"] is not None]
    alone, seeds = len(rows) == 1, max(len(row["per_seed"]) for row in rows.values())
    aim = read_metric(summary).format_target(target)
    if not reached:
        missed = f"{aim} was not reached" if alone else f"Nothing reached {aim}"
        return f"{missed}{' with every seed' if seeds > 1 else ''}."
    best, *others = sorted(reached, key=lambda row: float(row["seconds_to_target"]))
    text = (
        f"{best['label']} reaches {aim} {'' if alone else 'first, '}after "
        f"{format_seconds(best['seconds_to_target'])} and {format_joules(best['joules_to_target'])}"
    )
    if best["gain_seconds"] is None or best is rows.get(summary["baseline"]):
        return f"{text}{_name_close(best, others, 'seconds_to_target')}."
    label = rows[summary["baseline"]]["label"]
    chance = [
        words
        for name, words in (("gain_seconds", "time"), ("gain_joules", "energy"))
        if (ends := best["interval"][name]) is not None and ends[0] <= 1 <= ends[1]
    ]
    doubt = f"; the gain in {' and in '.join(chance)} may be chance" if chance else ""
    gains = f"{format_gain(best['gain_seconds'])} in time and {format_gain(best['gain_joules'])} in energy"
    return f"{text}, a gain over {label} of {gains}{doubt}."


def render_summary_table(
    summary: Mapping[str, Any], styles: Mapping[str, SchemeStyle], settings: Settings = NO_SETTINGS
) -> str:
    """The main table; on a phone each row becomes a block. Each key of a sweep gets a column."""
    table = build_table(summary, settings)
    # A single letter is a symbol.
    headings = [
        f"{heading[0].upper()}{heading[1:]}" if heading[1:] else heading for heading in table.headings
    ]
    return render_table(
        (*table.names, *headings),
        [
            _render_name(styles[row], settings.get(row, {})) + render_cells(headings, list(map(str, cells)))
            for row, (_, cells) in table.rows.items()
        ],
    )


def render_work_table(
    summary: Mapping[str, Any], styles: Mapping[str, SchemeStyle], settings: Settings = NO_SETTINGS
) -> str:
    """What was planned beside what was done, traffic, single devices, and what the run itself took.

    What was not recorded has no column.
    """
    columns = _list_work_columns(read_metric(summary))
    rows = {
        scheme: tuple(write(values[name]) for _, name, write in columns)
        for scheme, values in summary["schemes"].items()
    }
    return _render_table([heading for heading, _, _ in columns], rows, styles, settings)


def _list_work_columns(metric: Metric) -> list[tuple[str, str, Callable[[float | None], str]]]:
    """Heading, value of the summary, and how it is written."""
    return [
        (f"{metric.name[0].upper()}{metric.name[1:]} at the end", "final_accuracy", metric.format),
        ("Time used", "seconds", format_seconds),
        ("Time expected", "expected_seconds", format_seconds),
        ("Energy used", "joules", format_joules),
        ("Energy expected", "expected_joules", format_joules),
        ("Steps planned", "steps_planned", _format_count),
        ("Steps taken", "steps_taken", _format_count),
        ("Uploads planned", "upload_bytes_planned", format_bytes),
        ("Uploads sent", "upload_bytes", format_bytes),
        ("Backhaul", "backhaul_bytes", format_bytes),
        ("Backhaul energy", "backhaul_joules", format_joules),
        ("Downloads", "download_bytes", format_bytes),
        *(
            (heading, f"{whose}_accuracy_{name}", metric.format)
            for whose, title in (("device", "Devices"), ("personal", "Own models"))
            for heading, name in ((f"{title}: mean", "mean"), ("Worst tenth", "worst"), ("Spread", "spread"))
        ),
        ("Real time", "wall_seconds", format_seconds),
        ("Peak memory", "peak_memory_bytes", format_bytes),
    ]


def _format_count(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def render_metrics_table(
    runs: Sequence[Run],
    summary: Mapping[str, Any],
    styles: Mapping[str, SchemeStyle],
    settings: Settings = NO_SETTINGS,
) -> str:
    """The task's further metrics under their own names, with their units; empty without any."""
    schemes = summary["schemes"]
    names = tuple(dict.fromkeys(name for values in schemes.values() for name in values["metrics"]))
    known = {each.name: each for run in runs for each in run.fleet.metrics[1:]}
    described = [known.get(name, Metric(name, unit="")) for name in names]
    rows = {
        scheme: tuple(each.format(values["metrics"].get(each.name)) for each in described)
        for scheme, values in schemes.items()
    }
    table = _render_table(names, rows, styles, settings, keep=names)
    return f"<h2>Metrics of the task</h2>{_render_card(table)}" if names else ""


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
        if heading in keep or any(texts[place] != NOTHING for texts in rows.values())
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
