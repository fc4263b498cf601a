"""`cfel reproduce --report-only`: tables, summaries and copies, from logs written by hand."""

import json
import tomllib
from pathlib import Path

import pytest

from cfel.api.runs import PlannedRun
from cfel.cli.reproduce import describe_forecast
from cfel.report.landed import land_study
from cfel.report.load import load_runs
from cfel.reproduce.items import ReproductionRequest, load_base_experiment
from cfel.reproduce.reproduction import count_rounds_left
from tests.cli.conftest import Answer, Run
from tests.report.conftest import record, write_run

TARGET = 0.7
"""Of CIFAR-10 in the paper."""
SECONDS = {("hcef", 0): 100.0, ("hcef", 1): 125.0, ("cef", 0): 300.0, ("cef", 1): 310.0}


def write(place: Path, accuracy: float = 0.85, early: tuple[float, float] = (0.3, 0.6)) -> Path:
    """Two schemes, two seeds, three rounds; the target is reached in the third."""
    for (scheme, seed), seconds in SECONDS.items():
        lines = [
            record(number, reached, 1e2 * seconds * number, seconds * number)
            for number, reached in ((1, early[0]), (2, early[1]), (3, accuracy))
        ]
        write_run(place / scheme / f"seed-{seed}", scheme, seed, lines)
    return place


def reproduce(run: Run, item: str, out: Path, *more: object) -> Answer:
    answer = run(
        "reproduce", item, "--dataset", "cifar10", "--data", out, "--out", out, "--report-only", *more
    )
    assert answer.code == 0, answer.err
    return answer


def whole(text: str) -> None:
    """Nothing is cut off in 80 columns; the path of the report may be as long as it is."""
    table, _, _ = text.partition("report:")
    assert max(map(len, table.splitlines())) <= 80
    assert "…" not in table


@pytest.mark.usefixtures("no_figures")
def test_intervals_are_whole(run: Run, tmp_path: Path) -> None:
    """The seeds gain 3 and 2.48: mean √(3 · 2.48) = 2.73, and 12.706 · ln(3/2.48)/2 is a factor of 3.35."""
    out = write(tmp_path / "out")
    answer = reproduce(run, "table1", out, "--scale", "full")
    assert answer.out.count("2.73 (0.81–9.14)") >= 2
    whole(answer.out)
    document = json.loads((out / "summary.json").read_text())
    assert (document["item"], document["target"]) == ("table1", TARGET)
    assert document["learning_rate"] == {"hcef": 0.05, "cef": 0.05}
    assert [point["round"] for point in document["estimates"]["cef"]] == [1, 2, 3]
    page = (out / "report.html").read_text(encoding="utf-8")
    for words in ("2.73 (0.81–9.14)", "Full scale", "paper-seconds", "Gains beside the paper"):
        assert words in page


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(("accuracy", "shown"), [(0.1, False), (0.11, True)])
def test_no_table_at_an_accuracy_of_chance(run: Run, tmp_path: Path, accuracy: float, shown: bool) -> None:
    """Ten classes: 10 % is what guessing reaches, so times to it say nothing."""
    out = write(tmp_path / "out", accuracy, (0.05, 0.08))
    answer = reproduce(run, "table1", out, "--scale", "smoke")
    page = (out / "report.html").read_text(encoding="utf-8")
    assert ("which every scheme reached" in answer.out) == ("which every scheme reached" in page) == shown
    assert ("is not above chance" in page) == (not shown)


@pytest.mark.usefixtures("no_figures")
def test_only_the_seeds_and_schemes_named(run: Run, tmp_path: Path) -> None:
    out = write(tmp_path / "out")
    options = ("--json", "--scale", "reduced")
    named = reproduce(run, "table1", out, "--seeds", "0", *options).document["schemes"]
    assert {name: list(row["per_seed"]) for name, row in named.items()} == {"hcef": ["0"], "cef": ["0"]}
    assert named["hcef"]["gain_seconds"] == pytest.approx(3.0)
    assert list(reproduce(run, "table1", out, "--schemes", "cef", *options).document["schemes"]) == ["cef"]
    every = reproduce(run, "table1", out, *options).document["schemes"]
    assert list(every["hcef"]["per_seed"]) == ["0", "1"]
    words = ("reproduce", "table1", "--dataset", "cifar10", "--data", out, "--out", out, "--report-only")
    wrong = run(*words, "--seeds", "7")
    assert (wrong.code, wrong.out) == (1, "")
    assert "holds no run of the requested schemes and seeds, only hcef with" in " ".join(wrong.err.split())


@pytest.mark.usefixtures("no_figures")
def test_estimates(run: Run, tmp_path: Path) -> None:
    """σ² = 2/round and G² = 1/round."""
    answer = reproduce(run, "estimates", write(tmp_path / "out"))
    rows = [line.split() for line in answer.out.splitlines() if line.split()[:1] == ["hcef"]]
    assert rows == [["hcef", "1", "2", "1"], ["hcef", "2", "1", "0.5"], ["hcef", "3", "0.6667", "0.3333"]]


def test_a_sweep_of_what_is_there(run: Run, tmp_path: Path) -> None:
    """Two of its four settings, in one of which nobody reached the target; in the other after 2.4 rounds."""
    out = tmp_path / "out"
    write(out / "0.1", accuracy=0.65)
    write(out / "1")
    answer = reproduce(run, "noniid", out, "--scale", "full")
    whole(answer.out)
    document = json.loads((out / "summary.json").read_text())
    assert list(document["values"]) == ["0.1", "1"]
    assert document["values"]["0.1"]["schemes"]["cef"]["seconds_to_target"] is None
    assert document["values"]["1"]["schemes"]["cef"]["seconds_to_target"] == pytest.approx(2.4e2 * 305)
    assert (out / "figures" / "sweep.svg").is_file()


def test_rates(run: Run, tmp_path: Path) -> None:
    """The rate with the best closing accuracy: mean of 0.3, 0.6 and 0.9 against 0.3, 0.6 and 0.5."""
    out = tmp_path / "out"
    write(out / "0.05", accuracy=0.9)
    write(out / "0.1", accuracy=0.5)
    answer = reproduce(run, "rates", out, "--scale", "full", "--json")
    assert answer.document["chosen"] == {"hcef": 0.05, "cef": 0.05}
    assert answer.document["held_out"]["cef"] == pytest.approx({"0.05": 0.6, "0.1": 1.4 / 3})
    assert tomllib.loads((out / "rates.toml").read_text()) == {
        "cifar10": {"full": {"hcef": 0.05, "cef": 0.05}}
    }
    assert "learning rates: " in reproduce(run, "rates", out, "--scale", "full").out


@pytest.mark.usefixtures("no_figures")
def test_landed_runs_are_the_runs(run: Run, tmp_path: Path) -> None:
    out, place = write(tmp_path / "out"), tmp_path / "landed"
    answer = reproduce(run, "table1", out, "--land", place)
    files = [path for path in place.rglob("*") if path.is_file()]
    assert f"landed in {len(files)} files: {place}" in answer.out
    assert [each.records for each in load_runs(place)] == [each.records for each in load_runs(out)]
    content = {file: file.read_bytes() for file in files}
    assert land_study(out, place) == land_study(out, place)
    assert {file: file.read_bytes() for file in files} == content
    shown = [reproduce(run, "table1", each, "--json").document for each in (out, place)]
    assert shown[0] == shown[1]
    assert all(str(tmp_path).encode() not in file.read_bytes() for file in files)


def test_rounds_left(tmp_path: Path) -> None:
    """Three of 200 rounds are done, or all where the run ended at its target or over its budget."""
    out = write(tmp_path / "out")

    def left(place: str, *changes: str) -> int:
        request = ReproductionRequest(
            "table1", "cifar10", tmp_path, "full", changes=("rounds.global=200", *changes)
        )
        return count_rounds_left(PlannedRun("x", load_base_experiment(request), out / place))

    assert left("cef/seed-0", "rounds.stop=rounds") == 197
    assert left("cef/seed-0", "rounds.stop=target") == 0
    assert left("cef/seed-0", "rounds.stop=budget") == 0
    assert left("nowhere") == 200
    request = ReproductionRequest("table1", "cifar10", tmp_path, "full", changes=("rounds.global=3",))
    planned = [PlannedRun("x", load_base_experiment(request), out / "cef/seed-0")]
    assert describe_forecast(planned) == "nothing left to run: 1 run finished"
