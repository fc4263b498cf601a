"""Several runs as one object: a comparison of schemes."""

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cfel.api.results import FIGURE, FORMATS, RunResult, draw, export, load_result
from cfel.extras import explain_missing_extra
from cfel.report.load import find_runs, find_target
from cfel.report.summary import measure, summarise

if TYPE_CHECKING:
    from cfel.report.pictures import Picture


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Comparison:
    """Runs of several schemes and seeds.

    Attributes:
        path: the directory that contains them.
        runs: one result per scheme and seed.
        target: accuracy to reach, or None.
    """

    path: Path
    runs: tuple[RunResult, ...]
    target: float | None

    @property
    def summary(self) -> dict[str, Any]:
        """The content of `summary.json`: means over seeds, intervals, gains over CEF."""
        return summarise([each.run for each in self.runs], self.target)

    @property
    def table(self) -> pa.Table:
        """One row per run: scheme, seed, time and energy to the target, final accuracy, costs, budgets."""
        rows = [
            {"scheme": each.run.scheme, "seed": each.run.seed, **measure(each.run, self.target)}
            for each in self.runs
        ]
        return pa.Table.from_pylist(rows)

    def plot(self, figure: str = FIGURE) -> "Picture":
        """Draws a figure of the report with one line per scheme; see `RunResult.plot`."""
        return draw([each.run for each in self.runs], figure, self.target)

    def report(self) -> Path:
        """Writes `report.html` and its figures into the directory; returns the page's path."""
        with explain_missing_extra():
            from cfel.report import write_report

        return write_report(self.path, self.target)

    def export_figures(self, to: str | PathLike[str], formats: Sequence[str] = FORMATS) -> tuple[Path, ...]:
        """Writes every figure of the report into the directory `to`; returns the files.

        Args:
            to: receives the files; created if missing.
            formats: "svg", "png", and "csv" for the numbers that a figure shows.

        Raises:
            InputError: there is no such format.
        """
        return export([each.run for each in self.runs], to, formats, self.target)

    def __repr__(self) -> str:
        schemes = dict.fromkeys(each.run.scheme for each in self.runs)
        return f"<Comparison {str(self.path)!r}: {len(self.runs)} runs of {', '.join(schemes)}>"


def load_comparison(path: Path, target: float | None = None) -> Comparison:
    """The comparison in a directory."""
    runs = tuple(map(load_result, find_runs(path)))
    known = find_target(path, tuple(each.run for each in runs)) if target is None else target
    return Comparison(path, runs, known)
