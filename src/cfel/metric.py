"""A metric: what a task measures, under which name, in which unit, and which direction is better.

Logs hold the numbers as the task computes them. Tables and pages show them by `format`, and targets are
checked by `reaches`, so that a squared error is never called an accuracy.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cfel.errors import InputError, unknown_name
from cfel.wording import NO_BREAK, NOTHING, format_amount, show

DIRECTIONS = ("larger", "smaller")


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a task.

    Attributes:
        name: what it is called, as in "accuracy" or "squared error".
        unit: what its numbers are in, as in "kWh"; "%" for a share, which is shown times 100; "" for none.
        better: "larger" or "smaller".
        function: (outputs, targets) of a batch → one number per sample; None where it was read from a file.
    """

    name: str = "accuracy"
    unit: str = "%"
    better: str = "larger"
    function: Callable[[Any, Any], Any] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for key in ("name", "unit"):
            value = getattr(self, key)
            if not isinstance(value, str) or not value.isprintable() or (key == "name" and not value.strip()):
                raise InputError(f"metric: {key} = {show(value)}: must be text on one line")
        if self.better not in DIRECTIONS:
            raise InputError(unknown_name("metric: better", str(self.better), DIRECTIONS))
        if self.function is not None and not callable(self.function):
            raise InputError(f"metric {self.name!r}: function is a {type(self.function).__name__}")

    def __call__(self, outputs: Any, targets: Any) -> Any:  # noqa: ANN401 — tensors, which this layer does not know
        if self.function is None:
            raise InputError(f"metric {self.name!r}: has no function; give one to compute it")
        return self.function(outputs, targets)

    @property
    def scale(self) -> float:
        """What a number is multiplied by where it is shown."""
        return 100.0 if self.unit == "%" else 1.0

    @property
    def title(self) -> str:
        """Name and unit, for headings and axes of numbers that do not repeat the unit."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    def format(self, value: float | None, half_width: float | None = None) -> str:
        """A number with its unit, and with half the width of its interval if given: "95.7 ± 0.3 %"."""
        if value is None:
            return NOTHING
        write = self.format_plain
        text = write(value) if not half_width else f"{write(value)} ± {write(half_width)}"
        return f"{text}{NO_BREAK}{self.unit}" if self.unit else text

    def format_target(self, target: float) -> str:
        """A target as it was given, with the unit: "92 %"."""
        return f"{self.scale * target:g}{NO_BREAK if self.unit else ''}{self.unit}"

    @property
    def difference_unit(self) -> str:
        """The unit of differences; that of percentages is points."""
        return "points" if self.unit == "%" else self.unit

    def format_difference(self, value: float) -> str:
        """A difference between two numbers, with its sign and without its unit."""
        # Below one point with another digit, or numbers shown as 94.7 and 94.6 could differ by "0.0".
        small = self.unit == "%" and 0 < abs(value) < 0.01
        text = f"{100 * abs(value):.2f}" if small else self.format_plain(abs(value))
        return f"{'−' if value < 0 else '+'}{text}" if text.strip("0.") else text

    def format_plain(self, value: float) -> str:
        return f"{100 * value:.1f}" if self.unit == "%" else format_amount(value)

    def reaches(self, value: float, target: float) -> bool:
        """Whether a number is as good as a target, or better."""
        return value >= target if self.better == "larger" else value <= target

    def sort_key(self, value: float) -> float:
        """Smaller for a better number."""
        return -value if self.better == "larger" else value


ACCURACY = Metric()
"""The metric of classification, and of every task that names no other."""


def describe_metric(function: Callable[..., Any]) -> Metric:
    """The description of a metric that may be a plain function: then larger is better, and it has no unit."""
    if isinstance(function, Metric):
        return function
    words = getattr(function, "__name__", "metric").strip("_").replace("_", " ")
    return Metric("metric" if "lambda" in words else words, unit="", function=function)
