"""Directives that put what the code says about itself on a page: tables, the help of commands, docstrings.

Each takes a dotted name, as in `{fields} cfel.runlog.RoundRecord`, or nothing.
"""

import argparse
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.resources import files
from typing import Any, ClassVar

import docstrings
from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class _Lines(SphinxDirective):
    """A directive whose content is Markdown that the code provides."""

    optional_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {"without": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """Parses the lines in place of the directive."""
        self.env.note_reread()
        parent = nodes.container()
        parent.document = self.state.document
        self.state.nested_parse(StringList(self.lines(), self.get_location()), 0, parent, match_titles=True)
        return parent.children

    def lines(self) -> list[str]:
        """The Markdown."""
        raise NotImplementedError


def make_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    cells = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in cells]


class Fields(_Lines):
    """`{fields} cfel.runlog.RoundRecord`."""

    def lines(self) -> list[str]:
        """A table of names and meanings."""
        return make_table(["Name", "Meaning"], docstrings.list_fields(docstrings.find(self.arguments[0])))


class ExperimentKeys(_Lines):
    """`{experiment-keys} cfel.control.Rounds`, `:without:` keys that are tables of their own."""

    def lines(self) -> list[str]:
        """A table of keys, values, defaults and meanings."""
        parameters = docstrings.find(self.arguments[0])
        rows = docstrings.list_keys(parameters, self.options.get("without", "").split())
        return make_table(["Key", "Values", "Default", "Meaning"], rows)


class Names(_Lines):
    """`{names} cfel.control.schemes.SCHEMES`."""

    def lines(self) -> list[str]:
        """A table of names and what they stand for."""
        return make_table(["Name", "Meaning"], docstrings.list_names(docstrings.find(self.arguments[0])))


class Constants(_Lines):
    """`{constants} cfel.launch.node`."""

    def lines(self) -> list[str]:
        """A table of values and meanings."""
        return make_table(["Value", "Meaning"], docstrings.list_constants(self.arguments[0]))


class Presets(_Lines):
    """`{presets}`."""

    def lines(self) -> list[str]:
        """A table of the keys that presets set, and to which values."""
        names = [name for name in docstrings.find("cfel.experiment.PRESETS") if name != "none"]
        folder = files("cfel").joinpath("presets")
        texts = [folder.joinpath(f"{name}.toml").read_text(encoding="utf-8") for name in names]
        values = [dict(_flatten(tomllib.loads(text))) for text in texts]
        keys = dict.fromkeys(key for each in values for key in each)
        rows = [[f"`{key}`", *(str(each.get(key, "–")) for each in values)] for key in keys if key != "name"]
        return make_table(["Key", *(f"`{name}`" for name in names)], rows)


def _flatten(table: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{place}{key}.")
        else:
            yield f"{place}{key}", value


class Metrics(_Lines):
    """`{metrics}`."""

    def lines(self) -> list[str]:
        """A table of names, types, labels and meanings."""
        from cfel.dashboard.metrics import list_families
        from cfel.status import ClusterStatus, DeviceStatus, Status

        cluster = ClusterStatus(cluster=0, size=1, devices=(DeviceStatus(device=0),))
        status = Status(node="edge-0", source="edge", clusters=(cluster,), rejected=(("reason", 1),))
        rows = [
            (
                f"`{name}`",
                kind,
                ", ".join(f"`{label}`" for sample in samples[:1] for label in sample[0]),
                words,
            )
            for name, kind, words, samples in list_families(status)
        ]
        return make_table(["Name", "Type", "Labels", "Meaning"], rows)


class Commands(_Lines):
    """`{commands}`."""

    def lines(self) -> list[str]:
        """A section per command with its help."""
        os.environ["COLUMNS"] = "80"
        return [line for name in docstrings.find("cfel.cli.dispatch.COMMANDS") for line in _help(name)]


def _help(name: str) -> list[str]:
    from cfel.cli.dispatch import build_parser

    (commands,) = build_parser(name)._subparsers._group_actions
    whole = commands.choices[name]
    sections = [(name, whole)]
    for action in whole._actions:
        if isinstance(action, argparse._SubParsersAction):
            sections += [(f"{name} {inner}", each) for inner, each in action.choices.items()]
    lines = []
    for title, each in sections:
        lines += [f"## cfel {title}", "", "```text", *each.format_help().splitlines(), "```", ""]
    return lines


class PublicNames(_Lines):
    """`{public-names} cfel`."""

    def lines(self) -> list[str]:
        """An autodoc directive per name."""
        module = self.arguments[0]
        names = [name for name in import_module(module).__all__ if not name.startswith("_")]
        blocks = []
        for name in names:
            thing = docstrings.find(f"{module}.{name}")
            kind = "class" if isinstance(thing, type) else "function" if callable(thing) else "data"
            blocks += ["```{eval-rst}", f".. auto{kind}:: {module}.{name}"]
            blocks += ["   :members:"] if kind == "class" else []
            blocks += ["```", ""]
        return blocks


DIRECTIVES = {
    "fields": Fields,
    "experiment-keys": ExperimentKeys,
    "names": Names,
    "constants": Constants,
    "presets": Presets,
    "metrics": Metrics,
    "commands": Commands,
    "public-names": PublicNames,
}


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers the directives."""
    for name, directive in DIRECTIVES.items():
        app.add_directive(name, directive)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
