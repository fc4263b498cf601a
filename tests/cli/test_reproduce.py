"""`cfel reproduce` at its smallest scale: real loaders and models on miniature data."""

import json
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cfel.api.runs import RunOptions, run_all
from cfel.cli.reproduce import describe_forecast
from cfel.report.landed import land_study
from cfel.report.load import load_runs
from cfel.reproduce.items import ReproductionRequest, plan_runs
from cfel.reproduce.reproduction import count_rounds_left, write_results
from cfel.runlog import WALL_CLOCK_FIELDS
from tests.cli.conftest import Run
from tests.paper_data import write_cifar10, write_femnist

PAPERS = {"cef", "hcef", "cef_f", "cef_c", "mll_sgd"}


pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Both data sets, and a cache of their own."""
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CFEL_CACHE", str(folder / "cache"))
        yield {"cifar10": write_cifar10(folder / "cifar10"), "femnist": write_femnist(folder / "femnist")}


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """A directory that is removed in the end: checkpoints of the real models are large."""
    yield tmp_path / "out"
    shutil.rmtree(tmp_path / "out", ignore_errors=True)


@pytest.fixture(scope="module")
def finished(data: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Table 1 with CEF alone, as somebody with paths in the command left it."""
    place = tmp_path_factory.mktemp("finished") / "out"
    request = ReproductionRequest("table1", "cifar10", data["cifar10"], "smoke", ("cef",))
    words = ("/opt/bin/cfel", "reproduce", "--data", str(data["cifar10"]), "--set", "data.path=/x/y", "/z")
    run_all(plan_runs(request, {}, place), place, RunOptions(words, resume=True))
    write_results(request, place)
    return place


def smoke(run: Run, data: dict[str, Path], out: Path, item: str, dataset: str, *more: object) -> Any:
    """The item's document."""
    options = ("--dataset", dataset, "--data", data[dataset], "--scale", "smoke", "--out", out, "--json")
    answer = run("reproduce", item, *options, *more)
    assert answer.code == 0, answer.err
    return answer.document


def test_table1_with_every_scheme(run: Run, data: dict[str, Path], out: Path) -> None:
    """ResNet-20 on CIFAR-10, the paper's five schemes and what else there is, two global rounds each."""
    document = smoke(run, data, out, "table1", "cifar10")
    assert set(document["schemes"]) >= PAPERS
    assert document["paper"]["seconds"]["hcef"] == 22e3
    assert document["schemes"]["cef"]["final_accuracy"] is not None
    runs = load_runs(out)
    assert {len(each.records) for each in runs if each.scheme in ("cef", "mll_sgd")} == {2}
    assert {tomllib.loads(each.experiment_toml)["model"]["name"] for each in runs} == {"resnet20"}
    assert json.loads((out / "summary.json").read_text()) == document
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Smoke scale" in page
    assert "4.3" in page
    for name in ("gains", "paper-seconds", "paper-joules"):
        for kind in ("svg", "png"):
            assert (out / "figures" / f"{name}.{kind}").stat().st_size > 0


@pytest.mark.usefixtures("no_figures")
def test_femnist_with_leafs_network(run: Run, data: dict[str, Path], out: Path) -> None:
    document = smoke(run, data, out, "table1", "femnist", "--schemes", "cef,hcef")
    assert "3.1" in document["paper"]["note"]
    assert set(document["learning_rate"].values()) == {0.03}
    assert {each.fleet.devices for each in load_runs(out)} == {4}


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("item", ["noniid", "topology", "q", "tau"])
def test_sweeps(run: Run, data: dict[str, Path], out: Path, item: str) -> None:
    """The ends of the sweep, a summary of each and a page over both."""
    document = smoke(run, data, out, item, "cifar10", "--schemes", "cef")
    ends = {"noniid": ["0.1", "1"], "topology": ["0.2", "1"]}.get(item, ["2", "10"])
    assert list(document["values"]) == ends
    for value in ends:
        assert set(document["values"][value]["schemes"]) == {"cef"}
        assert (out / value / "cef" / "seed-0" / "rounds.jsonl").is_file()
    assert "cfel report" in (out / "report.html").read_text(encoding="utf-8")


def test_estimates(run: Run, data: dict[str, Path], out: Path) -> None:
    document = smoke(run, data, out, "estimates", "cifar10")
    assert list(document["estimates"]) == ["hcef"]
    assert all(point["sigma2"] > 0 for point in document["estimates"]["hcef"])
    assert (out / "figures" / "estimates.svg").is_file()


@pytest.mark.usefixtures("no_figures")
def test_rates(run: Run, data: dict[str, Path], out: Path) -> None:
    """The best of the grid by held-out accuracy, in a file that the other items take."""
    document = smoke(run, data, out, "rates", "cifar10", "--schemes", "cef")
    tried = {float(rate): value for rate, value in document["held_out"]["cef"].items()}
    assert set(tried) == {0.01, 0.05, 0.1}
    chosen = document["chosen"]["cef"]
    assert tried[chosen] == max(tried.values())
    for value in ("0.01", "0.05", "0.1"):
        experiment = tomllib.loads((out / value / "cef" / "seed-0" / "experiment.toml").read_text())
        assert experiment["data"]["held_out"] == 0.1
        assert experiment["local"]["learning_rate"] == float(value)
    table = tomllib.loads((out / "rates.toml").read_text())
    assert table == {"cifar10": {"smoke": {"cef": chosen}}}


def test_accuracy_shows_the_runs_of_table1(run: Run, data: dict[str, Path], finished: Path) -> None:
    options = ("--dataset", "cifar10", "--data", data["cifar10"], "--scale", "smoke", "--schemes", "cef")
    again = run("reproduce", "accuracy", *options, "--out", finished)
    assert again.code == 0
    assert "nothing left to run: 1 run finished" in again.err
    assert "paper" in again.out
    assert max(map(len, again.out.splitlines()[:-1])) <= 80


def test_it_resumes_where_it_stopped(data: dict[str, Path], out: Path) -> None:
    """Interrupted after its first round, then resumed: the same log as without."""
    request = ReproductionRequest("table1", "cifar10", data["cifar10"], "smoke", ("cef", "hcef"))
    cut, whole = (plan_runs(request, {}, out / way) for way in ("cut", "whole"))
    with pytest.raises(KeyboardInterrupt):
        run_all(cut, out, RunOptions(interrupted=lambda: True, resume=True))
    assert [count_rounds_left(each) for each in cut] == [1, 2]
    run_all(cut, out, RunOptions(resume=True))
    run_all(whole, out, RunOptions(resume=True))
    for pair in zip(cut, whole, strict=True):
        logs = [
            [_timeless(line) for line in (each.directory / "rounds.jsonl").read_text().splitlines()]
            for each in pair
        ]
        assert logs[0] == logs[1]
        assert count_rounds_left(pair[0]) == 0


def _timeless(line: str) -> dict[str, object]:
    return {key: value for key, value in json.loads(line).items() if key not in WALL_CLOCK_FIELDS}


def test_what_is_landed_names_no_path(finished: Path, tmp_path: Path) -> None:
    """Rounds, runs, experiment, summary and figures; a report can be drawn of them."""
    place = tmp_path / "landed"
    files = land_study(finished, place)
    wanted = {"summary.json", "rounds.parquet", "runs.json", "experiment.toml", "gains.svg"}
    assert wanted <= {file.name for file in files}
    for file in files:
        assert str(finished.parents[1]).encode() not in file.read_bytes()
    landed, source = load_runs(place)[0], load_runs(finished)[0]
    words = ("cfel", "reproduce", "--data", "DATA", "--set", "data.path=DATA", "PATH")
    assert landed.environment.command == words
    assert landed.records == source.records
    assert tomllib.loads(landed.experiment_toml)["data"]["path"] == "DATA"


def test_a_landed_summary_keeps_its_quotes(finished: Path, tmp_path: Path) -> None:
    """The backslash of a quote in JSON is not the beginning of a path."""
    summary = {"reason": 'scheme.steps = "whole" plans what happens', "log": f"see {tmp_path}/log"}
    copied = tmp_path / "quoted"
    shutil.copytree(finished, copied)
    (copied / "summary.json").write_text(json.dumps(summary))
    land_study(copied, tmp_path / "place")
    landed = json.loads((tmp_path / "place" / "summary.json").read_text())
    assert landed == {**summary, "log": "see PATH"}


def test_reports_on_what_is_there(run: Run, data: dict[str, Path], finished: Path) -> None:
    (finished / "report.html").unlink()
    document = smoke(run, data, finished, "table1", "cifar10", "--report-only")
    assert list(document["schemes"]) == ["cef"]
    assert (finished / "report.html").is_file()


def test_an_estimate_comes_first(data: dict[str, Path], out: Path) -> None:
    runs = plan_runs(ReproductionRequest("table1", "cifar10", data["cifar10"], "smoke", ("cef",)), {}, out)
    assert describe_forecast(runs).startswith("1 run, 2 global rounds left: at most about ")


def test_femnist_has_no_beta(run: Run, data: dict[str, Path], out: Path) -> None:
    answer = run("reproduce", "noniid", "--dataset", "femnist", "--data", data["femnist"], "--out", out)
    assert answer.code == 2
    assert "only for cifar10" in answer.err


def test_nothing_to_report_on(run: Run, data: dict[str, Path], out: Path) -> None:
    options = ("--dataset", "cifar10", "--data", data["cifar10"], "--out", out, "--report-only")
    answer = run("reproduce", "table1", *options)
    assert answer.code == 1
    assert "holds no run" in answer.err


def test_default_schemes_are_the_papers_and_our_own() -> None:
    """Table 1 also has schemes with single ingredients of HCEF+."""
    ingredients = {"p_fedavg", "cef+slow_clocks", "hcef+edge_gossip"}
    for item, more in (("table1", ingredients), ("tau", set())):
        names = set(ReproductionRequest(item, "cifar10", Path("x")).select_schemes())
        assert names == PAPERS | {"hcef_plus"} | more
