"""Workers that take turns, with the bare loop and with workers that fail."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cfel.bench.peers.race import Entrant, find_descendants, run_race
from cfel.bench.peers.workload import SMALL
from cfel.errors import DeploymentError

TINY = replace(SMALL, model="mlp", users=4, cohort=2, samples=4, batch=2)
BARE = "cfel.bench.peers.bare_worker"


@pytest.mark.long
def test_workers_take_turns_and_end() -> None:
    entrants = [Entrant(name, Path(sys.executable), BARE, 1) for name in ("one", "other")]
    standings = run_race(TINY, entrants, rounds=3)
    assert [each.name for each in standings] == ["one", "other"]
    for each in standings:
        assert len(each.seconds) == 3
        assert 0 < each.median < each.start_seconds
        assert each.peak_bytes > 2**20


@pytest.mark.parametrize(
    ("module", "words"), [("json.tool", "never connected"), ("no_such_worker", "No module")]
)
def test_a_worker_that_fails_is_named_with_its_last_words(module: str, words: str) -> None:
    with pytest.raises(DeploymentError, match="broken: ") as failure:
        run_race(TINY, [Entrant("broken", Path(sys.executable), module, 1)], rounds=1)
    assert words in str(failure.value)


def test_a_process_is_among_its_own_descendants() -> None:
    assert 1 in find_descendants(1)
    assert len(find_descendants(1)) > 1
