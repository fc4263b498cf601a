"""Broken budgets and caps, on runs small enough to check by hand. The budgets are 1000 s and 100 J."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cfel.report import load_run
from cfel.report.load import Run
from cfel.report.summary import describe_overruns, find_missed_caps, find_overruns, list_overruns
from cfel.runlog import RoundRecord

MakeRun = Callable[..., None]
MakeRecord = Callable[..., RoundRecord]
Build = Callable[..., Run]
STRETCHED = "cluster 0: time cap 5 s is out of reach, stretched to the least makespan 9 s"


@pytest.fixture
def build(tmp_path: Path, make_run: MakeRun) -> Build:
    """A run of these rounds, loaded."""

    def call(*records: RoundRecord, scheme: str = "hcef") -> Run:
        make_run(tmp_path / "run", scheme, 0, records)
        return load_run(tmp_path / "run")

    return call


def test_a_run_that_kept_everything(build: Build, make_record: MakeRecord) -> None:
    """A budget filled to the last bit, and a bit of rounding, is kept."""
    run = build(make_record(1, 0.5, 500, 50), make_record(2, 0.5, 1000 * (1 + 1e-9), 100))
    assert (find_overruns(run), find_missed_caps(run), describe_overruns(run)) == ((), None, ())
    assert list_overruns([run]) == {}


def test_a_run_without_rounds(build: Build) -> None:
    assert describe_overruns(build()) == ()


def test_a_cap_out_of_reach(build: Build, make_record: MakeRecord) -> None:
    """Missed from round 2 on; the budget is broken by a quarter, since round 3."""
    missed = {"feasible": False, "violations": ("energy cap 1 J is below the 2 J", STRETCHED)}
    rounds = [(400, 10), (900, 20), (1250, 30)]
    run = build(
        *(
            make_record(number, 0.5, seconds, joules, **(missed if number > 1 else {}))
            for number, (seconds, joules) in enumerate(rounds, start=1)
        )
    )
    (overrun,) = find_overruns(run)
    assert (overrun.resource, overrun.account, overrun.since_round) == ("seconds", "counted", 3)
    assert overrun.share == pytest.approx(0.25)
    assert describe_overruns(run) == (
        "time exceeds its budget by 25 % (1,250 of 1,000 s), since round 3: caps could not be met in 2 "
        f"rounds, first in round 2: {STRETCHED} (scheme.on_unreachable = 'stretch')",
    )
    assert list_overruns([run])["0"]["missed_caps"]["since_round"] == 2


def test_a_cap_that_was_made_up_for(build: Build, make_record: MakeRecord) -> None:
    late = make_record(1, 0.5, 600, 60, feasible=False, violations=(STRETCHED,))
    (sentence,) = describe_overruns(build(late, make_record(2, 0.5, 1000, 100)))
    assert sentence.startswith("caps could not be met in 1 round, first in round 1: cluster 0")
    assert sentence.endswith("; the budgets were kept")


def test_a_scheme_without_caps(build: Build, make_record: MakeRecord) -> None:
    run = build(make_record(1, 0.5, 900, 300), scheme="cef")
    assert describe_overruns(run) == (
        "energy exceeds its budget by 200 % (300 of 100 J), since round 1: cef plans without caps",
    )


def test_steps_at_random(build: Build, make_record: MakeRecord) -> None:
    """Kept as expected, broken by what the rounds really took; or the other way round."""
    (sentence,) = describe_overruns(build(make_record(1, 0.5, 1000, 100, seconds_realised=1300)))
    assert sentence.startswith("realised time exceeds its budget by 30 % (1,300 of 1,000 s)")
    assert "counts expected time" in sentence


def test_rounds_that_took_longer_than_planned(build: Build, make_record: MakeRecord) -> None:
    (sentence,) = describe_overruns(build(make_record(1, 0.5, 1200, 100, seconds_expected=900)))
    assert sentence.endswith("rounds took more time than their plans expected")
