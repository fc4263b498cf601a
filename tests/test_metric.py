"""Metrics: their names, units and directions."""

import pytest

from cfel.errors import InputError
from cfel.metric import ACCURACY, Metric, describe_metric


def plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


def test_numbers_have_their_unit() -> None:
    error = Metric("squared error", unit="kWh²", better="smaller")
    assert plain(ACCURACY.format(0.957)) == "95.7 %"
    assert plain(ACCURACY.format(0.957, 0.003)) == "95.7 ± 0.3 %"
    assert plain(ACCURACY.format_target(0.92)) == "92 %"
    assert plain(error.format(57.8)) == "57.8 kWh²"
    assert Metric("loss", unit="").format(0.0123) == "0.0123"
    assert (ACCURACY.format(None), error.title, ACCURACY.title) == ("–", "squared error, kWh²", "accuracy, %")


def test_differences_have_a_sign() -> None:
    found = [ACCURACY.format_difference(each) for each in (0.018, -0.026, 0.0, 0.0007, -0.00003)]
    assert found == ["+1.8", "−2.6", "0.0", "+0.07", "0.00"]


def test_directions() -> None:
    error = Metric("error", unit="", better="smaller")
    assert (ACCURACY.reaches(0.5, 0.5), ACCURACY.reaches(0.4, 0.5)) == (True, False)
    assert (error.reaches(0.5, 0.5), error.reaches(0.4, 0.5), error.reaches(0.6, 0.5)) == (True, True, False)
    assert sorted([0.1, 0.3, 0.2], key=error.sort_key) == [0.1, 0.2, 0.3]
    assert sorted([0.1, 0.3, 0.2], key=ACCURACY.sort_key) == [0.3, 0.2, 0.1]


def test_a_plain_function_is_named_after_itself() -> None:
    def word_accuracy(outputs: object, targets: object) -> object:
        return outputs, targets

    found = describe_metric(word_accuracy)
    assert (found.name, found.unit, found.better) == ("word accuracy", "", "larger")
    assert found(1, 2) == (1, 2)
    assert describe_metric(lambda outputs, _: outputs).name == "metric"
    assert describe_metric(ACCURACY) is ACCURACY


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"better": "smallest"}, "metric: better: unknown 'smallest'; did you mean 'smaller'"),
        ({"name": ""}, "metric: name = ''"),
        ({"unit": 3}, "metric: unit = 3"),
        ({"function": 3}, "function is a int"),
    ],
)
def test_what_is_not_a_metric(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Metric(**changes)  # type: ignore[arg-type]


def test_a_metric_without_a_function_cannot_be_computed() -> None:
    with pytest.raises(InputError, match="has no function"):
        ACCURACY(1, 2)
