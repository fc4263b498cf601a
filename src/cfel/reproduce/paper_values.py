"""What the paper reports, read from `paper_values.toml`; the only place these numbers are kept."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

REFERENCE = "cef"


@dataclass(frozen=True, slots=True)
class PaperValues:
    """The paper's results on one data set.

    Attributes:
        source: where they are printed.
        target: accuracy they speak of.
        seconds, joules: until the target was reached, by scheme.
        note: what is wrong with the print, or empty.
    """

    source: str
    target: float
    seconds: Mapping[str, float]
    joules: Mapping[str, float]
    note: str

    def gain_seconds(self, scheme: str) -> float | None:
        """CEF's time over the scheme's, or None where the paper has neither."""
        return self.seconds[REFERENCE] / self.seconds[scheme] if scheme in self.seconds else None

    def gain_joules(self, scheme: str) -> float | None:
        """CEF's energy over the scheme's."""
        return self.joules[REFERENCE] / self.joules[scheme] if scheme in self.joules else None


def paper_values(dataset: str) -> PaperValues:
    """The paper's results on "cifar10" or "femnist"."""
    text = files("cfel.reproduce").joinpath("paper_values.toml").read_text(encoding="utf-8")
    document = tomllib.loads(text)
    table = document[dataset]
    return PaperValues(document["source"], table["target"], table["seconds"], table["joules"], table["note"])
