"""The tree of errors and the sentence about unknown names."""

from copy import copy

import pytest

from cfel import errors
from cfel.control import SolverDefectError


@pytest.mark.parametrize("kind", [errors.FleetFileError, errors.ExperimentError])
def test_wrong_input_is_also_a_value_error(kind: type[Exception]) -> None:
    assert issubclass(kind, errors.InputError)
    assert issubclass(kind, ValueError)


@pytest.mark.parametrize(
    "kind",
    [
        errors.InputError,
        errors.DashboardError,
        errors.RunDirectoryError,
        errors.StorageError,
        SolverDefectError,
    ],
)
def test_one_root(kind: type[Exception]) -> None:
    assert issubclass(kind, errors.CfelError)


@pytest.mark.parametrize(
    "kind", [errors.DashboardError, errors.StorageError, errors.DivergedError, SolverDefectError]
)
def test_failures_are_not_wrong_input(kind: type[Exception]) -> None:
    assert not issubclass(kind, errors.InputError)


def test_a_run_directory_fails_as_storage_does() -> None:
    """One `except` covers a failing disk and a damaged run."""
    assert issubclass(errors.RunDirectoryError, errors.StorageError)
    assert not issubclass(errors.StorageError, errors.RunDirectoryError)


def test_divergence_says_where_and_why() -> None:
    """Global rounds are counted from 1 in the log, edge rounds from 0 in the plans."""
    error = errors.DivergedError("the loss is nan", device=7, global_round=2, edge_round=0, learning_rate=1e6)
    assert "at device 7 in global round 3, edge round 0 " in str(error)
    assert str(error).endswith("the loss is nan; most likely local.learning_rate = 1e+06 is too large")
    more = error.add_details(cluster=3).add_details(advice=". Do this")
    assert "at device 7 of cluster 3 in global round 3" in str(more)
    assert str(more).endswith("too large. Do this")


def test_divergence_survives_the_way_from_another_process() -> None:
    """Copying takes the same way as sending."""
    error = errors.DivergedError("nan", device=7, global_round=2, edge_round=0, learning_rate=1.0, cluster=1)
    assert str(copy(error)) == str(error)
    assert copy(error).device == 7


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("rng", "kind: unknown 'rng'; did you mean 'ring'? (allowed: line, ring, star)"),
        ("zzz", "kind: unknown 'zzz' (allowed: line, ring, star)"),
        ("RING ", "kind: unknown 'RING '; did you mean 'ring'? (allowed: line, ring, star)"),
        (5, "kind: unknown 5 (allowed: line, ring, star)"),
        (["ring"], "kind: unknown ['ring']; did you mean 'ring'? (allowed: line, ring, star)"),
    ],
)
def test_unknown_name(name: object, sentence: str) -> None:
    assert errors.unknown_name("kind", name, ("star", "ring", "line")) == sentence


@pytest.mark.parametrize(
    ("given", "meant"), [("HCEF+", "hcef_plus"), ("hcef+", "hcef_plus"), ("CEF-C", "cef_c")]
)
def test_names_as_texts_spell_them(given: str, meant: str) -> None:
    assert f"did you mean {meant!r}?" in errors.unknown_name(
        "scheme", given, ("cef", "cef_c", "hcef", "hcef_plus")
    )


def test_nothing_is_allowed() -> None:
    assert errors.unknown_name("options", "mu", ()) == "options: unknown 'mu' (allowed: none)"
