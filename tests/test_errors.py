"""The tree of errors and the sentence about unknown names."""

import pytest

from cfel import errors
from cfel.control import SolverDefectError


@pytest.mark.parametrize("kind", [errors.FleetFileError, errors.ExperimentError])
def test_wrong_input_is_also_a_value_error(kind: type[Exception]) -> None:
    assert issubclass(kind, errors.InputError)
    assert issubclass(kind, ValueError)


@pytest.mark.parametrize(
    "kind", [errors.InputError, errors.DashboardError, errors.RunDirectoryError, SolverDefectError]
)
def test_one_root(kind: type[Exception]) -> None:
    assert issubclass(kind, errors.CfelError)


@pytest.mark.parametrize("kind", [errors.DashboardError, errors.RunDirectoryError, SolverDefectError])
def test_failures_are_not_wrong_input(kind: type[Exception]) -> None:
    assert not issubclass(kind, errors.InputError)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("rng", "kind: unknown 'rng'; did you mean 'ring'? (allowed: line, ring, star)"),
        ("zzz", "kind: unknown 'zzz' (allowed: line, ring, star)"),
        (5, "kind: unknown 5 (allowed: line, ring, star)"),
        (["ring"], "kind: unknown ['ring']; did you mean 'ring'? (allowed: line, ring, star)"),
    ],
)
def test_unknown_name(name: object, sentence: str) -> None:
    assert errors.unknown_name("kind", name, ("star", "ring", "line")) == sentence
