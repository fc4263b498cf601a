"""`cfel compare`, `cfel demo` and `cfel report`."""

import contextlib
import io
import json
import math
import shutil
import sys
from pathlib import Path

import pytest

import cfel
from cfel.cli.compare import parse_variant
from cfel.errors import InputError
from tests.cli.conftest import Run

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"
SHORT = ("--set", "rounds.global=2", "--set", "rounds.edge=1")
COMPARE = ("compare", TINY, "--schemes", "hcef,cef", "--seeds", "0,1", "--target", "0.1", *SHORT)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Two schemes, two seeds: where they are, which nobody may change, and what was printed."""
    from cfel.cli import main

    out = tmp_path_factory.mktemp("compared") / "table"
    text = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(text):
        patch.setenv("COLUMNS", "80")
        patch.setattr(sys, "path", list(sys.path))
        assert main([str(word) for word in (*COMPARE, "--out", out)]) == 0
    return out, text.getvalue()


@pytest.fixture
def compared(printed: tuple[Path, str]) -> Path:
    return printed[0]


def tidy(text: str) -> None:
    """A table that fits, with nothing cut off; the path of the report may be as long as it is."""
    table, _, _ = text.partition("report:")
    assert max(map(len, table.splitlines())) <= 80
    assert "…" not in table


def test_what_compare_leaves_behind(compared: Path) -> None:
    assert {file.name for file in compared.iterdir()} == {
        "cef",
        "hcef",
        "comparison.json",
        "summary.json",
        "report.html",
        "figures",
    }
    for scheme in ("cef", "hcef"):
        assert {file.name for file in (compared / scheme).iterdir()} == {"seed-0", "seed-1"}


def test_means_and_intervals_over_seeds(compared: Path) -> None:
    """Half the 95 % interval of two values a and b is 12.706 · |a − b| / 2."""
    document = json.loads((compared / "summary.json").read_text())
    assert document["target"] == 0.1
    assert list(document["schemes"]) == ["hcef", "cef"]
    for row in document["schemes"].values():
        assert list(row["per_seed"]) == ["0", "1"]
        for name in ("seconds", "joules", "final_accuracy", "seconds_budget"):
            one, two = (row["per_seed"][seed][name] for seed in ("0", "1"))
            assert row[name] == pytest.approx((one + two) / 2)
            assert row["confidence"][name] == pytest.approx(12.7062 * abs(one - two) / 2)
    hcef, cef = document["schemes"]["hcef"], document["schemes"]["cef"]
    assert (cef["gain_seconds"], cef["gain_joules"]) == (1, 1)
    assert cef["seconds"] / cef["seconds_budget"] == pytest.approx(1 / 0.6)
    assert hcef["expected_joules"] <= hcef["joules_budget"] * (1 + 1e-9)
    assert [each["resource"] for each in cef["over_budget"]["1"]["overruns"]] == ["seconds", "joules"]


def test_what_compare_prints(printed: tuple[Path, str]) -> None:
    _, text = printed
    for words in (
        "Accuracy within the budgets, and costs to 10 %",
        "HCEF",
        "CEF",
        "167 %",
        "1.00×",
        "report:",
    ):
        assert words in text
    warnings = " ".join(text.split())
    assert "over budget: CEF, time by 66.7 % (worst: seed 0) and energy by 66.7 % (worst: seed" in warnings
    assert "): CEF plans without caps" in warnings
    tidy(text)


@pytest.mark.usefixtures("no_figures")
def test_compare_resumes(run: Run, compared: Path, tmp_path: Path) -> None:
    """Finished runs are not run again, and --json is the summary; without --resume they are in the way."""
    out = shutil.copytree(compared, tmp_path / "table")
    answer = run(*COMPARE, "--out", out)
    assert (answer.code, answer.out) == (1, "")
    assert "holds a run already" in answer.err
    answer = run(*COMPARE, "--out", out, "--resume", "--json")
    assert answer.document == json.loads((compared / "summary.json").read_text())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--schemes", "cef,hcf"], "scheme: unknown 'hcf'; did you mean 'hcef'?"),
        (["--schemes", ""], "compare: give at least one experiment and one scheme"),
        (["--seeds", "0,x"], "argument --seeds: '0,x': must be whole numbers separated by commas"),
        (["--target", "high"], "argument --target: 'high': must be a number"),
        (["--set", "rounds.glbal=1"], "[rounds]: unknown 'glbal'"),
    ],
)
def test_compare_rejects_at_once(run: Run, tmp_path: Path, options: list[str], message: str) -> None:
    """Before the first run begins, whichever part is wrong."""
    answer = run("compare", TINY, "--out", tmp_path / "table", *options)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
    assert not (tmp_path / "table").exists()


@pytest.mark.usefixtures("no_figures")
def test_demo(run: Run, tmp_path: Path) -> None:
    """Five schemes on 64 devices; budgets are 60 % of CEF's use, and HCEF keeps both."""
    options = ("--set", "rounds.global=2", "--set", "rounds.edge=1", "--set", "rounds.target=0.2")
    shown = run("demo", "--out", tmp_path / "demo", *options)
    found = json.loads((tmp_path / "demo" / "summary.json").read_text())["schemes"]
    assert shown.code == 0
    assert "Accuracy within the budgets, and costs to 20 %" in shown.out
    tidy(shown.out)
    assert list(found) == ["hcef_plus", "hcef", "cef", "cef_c", "cef_f", "mll_sgd"]
    assert found["cef"]["seconds"] / found["cef"]["seconds_budget"] == pytest.approx(1 / 0.6)
    assert found["cef"]["joules"] / found["cef"]["joules_budget"] == pytest.approx(1 / 0.6)
    assert found["hcef"]["expected_seconds"] <= found["hcef"]["seconds_budget"] * (1 + 1e-9)
    assert found["hcef"]["expected_joules"] <= found["hcef"]["joules_budget"] * (1 + 1e-9)
    assert all(row["final_accuracy"] > 0.1 for row in found.values())
    assert math.isfinite(found["mll_sgd"]["seconds"])
    line = next(line for line in shown.out.splitlines() if line.split()[:1] == ["CEF"])
    assert line.split()[-4:] == ["167", "%", "167", "%"]
    assert (tmp_path / "demo" / "report.html").is_file()


def test_report(run: Run, compared: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Of a comparison and of one run, from the logs alone; --tensorboard adds event files."""
    out = shutil.copytree(compared, tmp_path / "table")
    page = (out / "report.html").read_bytes()
    (out / "report.html").unlink()
    answer = run("report", out)
    assert (answer.code, answer.out, answer.err) == (0, f"{out / 'report.html'}\n", "")
    assert (out / "report.html").read_bytes() == page
    request.getfixturevalue("no_figures")
    answer = run("report", out / "cef" / "seed-0", "--target", "0.2", "--tensorboard")
    assert answer.code == 0
    first, *events = answer.out.splitlines()
    assert first == str(out / "cef" / "seed-0" / "report.html")
    assert events
    assert all(Path(event).is_file() for event in events)
    assert run("report", out, "--json").document == {"report": str(out / "report.html"), "tensorboard": []}


@pytest.mark.usefixtures("no_figures")
def test_a_target_that_nobody_reaches(run: Run, compared: Path, tmp_path: Path) -> None:
    """Dashes alone would leave one wondering."""
    out = shutil.copytree(compared, tmp_path / "table")
    answer = run(*COMPARE, "--target", "0.999", "--out", out, "--resume")
    assert answer.code == 0
    assert "nothing reached 99.9 % with every seed: try a lower --target or more rounds" in answer.out


def test_theory_of_a_comparison(run: Run, compared: Path) -> None:
    """Which of its runs is meant?"""
    answer = run("theory", compared)
    assert (answer.code, answer.out) == (2, "")
    assert f"holds a comparison; name one of its runs, as {compared / 'cef' / 'seed-0'}" in answer.err


def test_report_of_nothing(run: Run, tmp_path: Path) -> None:
    answer = run("report", tmp_path)
    assert (answer.code, answer.out) == (1, "")
    assert "holds no run" in answer.err
    assert run("report", tmp_path / "none").code == 1


@pytest.fixture(scope="module")
def varied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A scheme, and two variants of it that differ in other keys; printed and written in every form."""
    from cfel.cli import main

    out = tmp_path_factory.mktemp("varied") / "table"
    words = ("compare", TINY, *SHORT, "--schemes", "hcef_plus", "--seeds", "0,1", "--target", "0.1")
    variants = (
        "--variant",
        "slow: local.learning_rate=0.01",
        "--variant",
        "P: scheme=p_fedavg rounds.local=1",
    )
    more = ("--baseline", "slow", "--format", "csv,markdown,latex,pdf", "--out", out)
    with contextlib.redirect_stdout(io.StringIO()) as text:
        assert main([str(word) for word in (*words, *variants, *more)]) == 0
    return out, text.getvalue()


def test_rows_may_be_variants_of_any_keys(varied: tuple[Path, str]) -> None:
    out, text = varied
    document = json.loads((out / "summary.json").read_text())
    assert list(document["schemes"]) == ["hcef_plus", "slow", "P"]
    assert document["baseline"] == "slow"
    assert [row["label"] for row in document["schemes"].values()] == ["HCEF+", "slow", "P"]
    slow = document["schemes"]["slow"]
    assert (slow["quality_difference"], slow["p_value"]["quality_difference"]) == (0, None)
    rates = {name: cfel.load(out / name / "seed-0").experiment.local.learning_rate for name in ("slow", "P")}
    assert rates["slow"] == 0.01 != rates["P"]
    assert [line.split()[0] for line in text.splitlines() if line.startswith(("HCEF+", "slow", "P "))] == [
        *("HCEF+", "slow", "P")
    ]


def test_every_form_is_written(varied: tuple[Path, str]) -> None:
    out, text = varied
    for name, words in (("table.csv", "row,quality"), ("table.md", "| Scheme |"), ("table.tex", r"\toprule")):
        assert words in (out / name).read_text(encoding="utf-8")
        assert str(out / name) in text
    assert (out / "figures" / "accuracy-seconds.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.usefixtures("no_figures")
def test_a_comparison_is_loaded_as_it_was_made(varied: tuple[Path, str]) -> None:
    comparison = cfel.load(varied[0])
    assert (comparison.baseline, len(comparison.runs)) == ("slow", 6)
    assert comparison.to_latex() == (varied[0] / "table.tex").read_text(encoding="utf-8")
    assert comparison.to_csv() == (varied[0] / "table.csv").read_text(encoding="utf-8")
    assert "<table>" in comparison._repr_html_()
    assert repr(comparison).endswith("6 runs of HCEF+, slow, P>")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--variant", "mine"], "must look like"),
        (["--variant", "mine: local.rate"], "must look like"),
        (["--variant", "mine: local.learning_rat=1"], "[local]: unknown 'learning_rat'"),
        (["--schemes", "cef", "--variant", "cef: seed=1"], "two rows are called 'cef'"),
        (["--schemes", "cef,hcef", "--baseline", "hcf"], "baseline: unknown 'hcf'; did you mean 'hcef'?"),
        (["--format", "docx"], "format: unknown 'docx' (allowed: csv, latex, markdown, pdf)"),
    ],
)
def test_wrong_variants_and_formats(run: Run, tmp_path: Path, options: list[str], message: str) -> None:
    answer = run("compare", TINY, "--out", tmp_path / "table", *options)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
    assert not (tmp_path / "table").exists()


def test_a_variant_may_change_a_whole_table() -> None:
    """Both keys of the table, not only its first."""
    base = cfel.load(TINY)
    name, variant = parse_variant("mine: budget={seconds=5.0,joules=7.0}", base)
    assert (name, variant.budget.seconds, variant.budget.joules) == ("mine", 5.0, 7.0)
    with pytest.raises(InputError, match="without quotes"):
        parse_variant("mine: '\"a.b\"=1'", base)
