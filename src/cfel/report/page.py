"""report.html: one file that opens anywhere, without a network and without scripts.

The result first, then figures with a sentence each, then what made them. Everything that comes from a run
directory is escaped. The page follows the reader's light or dark preference and fits a phone.
"""

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from cfel.durable import replace_file
from cfel.report.load import Run, by_scheme, load_runs, stated_target
from cfel.report.pictures import Picture, draw_pictures, write_pictures
from cfel.report.style import SchemeStyle, colour_pairs, css_variable, scheme_styles
from cfel.report.summary import summarise
from cfel.report.tables import headline, share_text, summary_table


def write_report(path: Path, target: float | None = None) -> Path:
    """Writes `report.html` and `figures/` into a run directory or a tree of them.

    Args:
        path: the directory.
        target: accuracy to reach; None takes the one an earlier summary or the experiments state.

    Returns:
        The page.

    Raises:
        StorageError: there is nothing to report on, or the system refused.
    """
    runs = load_runs(path)
    target = target if target is not None else stated_target(path, runs)
    pictures = draw_pictures(runs, target)
    write_pictures(path / "figures", pictures)
    page = path / "report.html"
    replace_file(page, render_page(runs, summarise(runs, target), pictures).encode())
    return page


def render_page(runs: tuple[Run, ...], summary: Mapping[str, Any], pictures: tuple[Picture, ...]) -> str:
    """The page as text.

    Args:
        runs: what it is about.
        summary: what `summarise` says of them.
        pictures: figures to show.
    """
    groups = by_scheme(runs)
    styles = scheme_styles(tuple(groups))
    title = escape(runs[0].name)
    shared = [picture for picture in pictures if not picture.about]
    single = [picture for picture in pictures if picture.about]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{title} · cfel report</title><style>{stylesheet()}</style></head><body><main>"
        f'<h1>{title}</h1><p class="muted">{escape(_subtitle(runs, summary["target"]))}</p>'
        f'<p class="headline">{escape(headline(summary, styles))}</p>'
        f'<div class="card">{summary_table(summary, styles)}</div>'
        f'<p class="muted">{escape(_footnote(runs))}</p>'
        f"<h2>Figures</h2>{gallery(shared)}"
        f"{'<h2>Devices, scheme by scheme</h2>' + gallery(single) if single else ''}"
        f"<h2>How this was made</h2>{''.join(made(run, styles) for run in runs)}"
        "</main></body></html>\n"
    )


def stylesheet() -> str:
    """The page's style, for light and dark."""
    light = "".join(f"{css_variable(colour)}:{colour};" for colour, _ in colour_pairs())
    dark = "".join(f"{css_variable(colour)}:{other};" for colour, other in colour_pairs())
    rules = files("cfel.report").joinpath("page.css").read_text(encoding="utf-8")
    return (
        f":root{{--ground:#f4f6f8;{light}}}\n"
        f"@media (prefers-color-scheme: dark){{:root{{--ground:#0f1317;{dark}}}}}\n{rules}"
    )


def _subtitle(runs: tuple[Run, ...], target: float | None) -> str:
    schemes = len(by_scheme(runs))
    seeds = len({run.seed for run in runs})
    rounds = max((len(run.records) for run in runs), default=0)
    fleet = runs[0].fleet
    parts = [
        f"{fleet.devices:,} devices in {fleet.clusters} clusters",
        f"{schemes} scheme{'s' * (schemes != 1)}",
        f"{seeds} seed{'s' * (seeds != 1)}",
        f"up to {rounds} global rounds",
    ]
    if target is not None:
        parts.append(f"target {share_text(target)}")
    return " · ".join(parts)


def _footnote(runs: tuple[Run, ...]) -> str:
    text = "Gains are over CEF, at the target. Brackets: share of the budget. – : not reached, or not known."
    if len({run.seed for run in runs}) > 1:
        text = f"Means over seeds ± half the width of the 95 % confidence interval. {text}"
    return text


def gallery(pictures: Sequence[Picture]) -> str:
    """Figures side by side."""
    return f'<div class="grid">{"".join(map(_figure, pictures))}</div>'


def _figure(picture: Picture) -> str:
    return (
        f'<figure id="{picture.name}"><h3>{escape(picture.title)}</h3>{picture.inline}'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )


def made(run: Run, styles: Mapping[str, SchemeStyle]) -> str:
    """What one run was made with, folded away."""
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
        "machine": f"{environment.cpu}, {environment.cores} cores, {environment.platform}",
        "overrun": _unmet(run),
    }
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items())
    return (
        f"<details><summary>{escape(styles[run.scheme].label)}, seed {run.seed}</summary><dl>{items}</dl>"
        f"<pre>{escape(run.experiment_toml)}</pre></details>"
    )


def _unmet(run: Run) -> str:
    rounds = sum(not record.feasible for record in run.records)
    if not rounds:
        return "every plan met its caps"
    words = next((record.violations[0] for record in run.records if record.violations), "no reason given")
    return f"{rounds} of {len(run.records)} rounds could not meet a cap; first: {words}"
