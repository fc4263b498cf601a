"""What faults cost: how it is computed and printed; one coordinator is killed for real."""

import asyncio
import json

import pytest

from benchmarks import resilience as command
from benchmarks.__main__ import main
from benchmarks.federations import build_kill_experiment, build_slow_link_experiment
from benchmarks.resilience import GoneServer, SlowLink, Vacancies, compute_loss, measure_vacancies
from cfel.deployment.payloads import model_size


def test_loss_is_what_rounds_took_longer_than_usual() -> None:
    """Usually 2 s; then 13, 1, 3 and 2 s: 11 and 1 s are lost, the short round makes up for nothing."""
    found = compute_loss([1.0, 2.0, 9.0], [13.0, 1.0, 3.0, 2.0], 10.0, coordinated=True)
    assert found == GoneServer(True, 10.0, 2.0, 12.0, 13.0)


def test_experiments_have_the_model_and_the_deadlines_asked_for() -> None:
    slow = build_slow_link_experiment(3, 60.0)
    assert 0.99e6 < model_size(slow.build_world().start) <= 1e6
    assert slow.deployment.round_seconds == 60.0
    kill = build_kill_experiment()
    assert (kill.deployment.gone_seconds, kill.deployment.election_seconds) == (10.0, 0.7)
    assert kill.build_world().setting.fleet.clusters == 3


def test_what_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")

    async def measure_slow_link(rounds: int) -> SlowLink:
        return SlowLink(
            10**6, 1.2e6, 48.0, 60.0, (51.0,) * rounds, (True,) * (rounds - 1) + (False,), "a relay"
        )

    async def measure_gone(*, coordinated: bool) -> GoneServer:
        return GoneServer(coordinated, 10.0, 0.7, 10.4, 11.1)

    async def measure(kills: int) -> Vacancies:
        return Vacancies((0.8,) * (kills - 1) + (1.9,))

    monkeypatch.setattr(command, "measure_slow_link", measure_slow_link)
    monkeypatch.setattr(command, "measure_gone", measure_gone)
    monkeypatch.setattr(command, "measure_vacancies", measure)
    assert main(["resilience"]) == 0
    text = capsys.readouterr().out
    assert "The link was shaped by a relay." in text
    headings, row = (text.splitlines()[at] for at in (1, 2))
    for heading, value in (
        ("sent MB", "1.20"),
        ("deadline s", "60"),
        ("took part", "7 of 8"),
        ("goal", "all"),
    ):
        assert headings.index(heading) + len(heading) == row.index(value) + len(value)
    assert text.count("10.40") == 4
    assert all(word in text for word in ("the coordinator", "another edge server", "≤ 13"))
    assert " ".join(text.splitlines()[-2].split()) == "100 0.80 < 1.0 1.90 < 2"
    assert main(["resilience", "--quick", "--json", "--only", "coordinator"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["slow_link"], document["gone"]) == (None, [])
    found = document["coordinator"]
    assert (len(found["seconds"]), found["median"], found["longest"]) == (10, 0.8, 1.9)


@pytest.mark.long
def test_a_coordinator_is_killed_and_another_one_elected() -> None:
    """Nobody votes while the dead one was heard of in the last 0.7 s, heartbeats every 0.1 s included."""
    (seconds,) = asyncio.run(measure_vacancies(1)).seconds
    assert 0.5 < seconds < 30
