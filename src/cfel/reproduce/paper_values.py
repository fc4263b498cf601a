"""The paper's results, read from `paper_values.toml`, the only place with these numbers."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

REFERENCE = "cef"


@dataclass(frozen=True, slots=True)
class PaperValues:
    """The paper's results on one data set.

    Attributes:
        source: the table of the paper.
        target: accuracy to reach.
        seconds, joules: until the target was reached, by scheme.
        note: a known misprint, or empty.
    """

    source: str
    target: float
    seconds: Mapping[str, float]
    joules: Mapping[str, float]
    note: str

    def gain_seconds(self, scheme: str) -> float | None:
        """CEF's time divided by that of the scheme, or None if the paper does not report it."""
        return self.seconds[REFERENCE] / self.seconds[scheme] if scheme in self.seconds else None

    def gain_joules(self, scheme: str) -> float | None:
        """CEF's energy divided by that of the scheme, or None."""
        return self.joules[REFERENCE] / self.joules[scheme] if scheme in self.joules else None


def load_paper_values(dataset: str) -> PaperValues:
    """The paper's results on "cifar10" or "femnist"."""
    text = files("cfel.reproduce").joinpath("paper_values.toml").read_text(encoding="utf-8")
    document = tomllib.loads(text)
    table = document[dataset]
    return PaperValues(document["source"], table["target"], table["seconds"], table["joules"], table["note"])
