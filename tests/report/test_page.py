"""The page as text: what it says, what it must not contain."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cfel.errors import StorageError
from cfel.report.load import Run, load_runs
from cfel.report.page import compose_headline, write_report
from cfel.report.summary import summarise
from cfel.runlog import RoundRecord
from cfel.wording import format_gain, format_joules, format_seconds

MakeRun = Callable[..., None]
MakeRecord = Callable[..., RoundRecord]
VOID = {"meta", "path", "use", "image", "rect", "line", "br"}


class Balance(HTMLParser):
    """Counts that every element that is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        """Remembers an element unless it has no end."""
        del attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Takes it back."""
        if tag not in VOID:
            assert self.open.pop() == tag


def test_the_page_needs_nothing_from_outside(comparison_page: str) -> None:
    assert re.findall(r"<script|<link|@import|\bsrc=", comparison_page) == []
    addresses = re.findall(r'href="([^"]*)', comparison_page)
    assert all(address.startswith(("#", "data:image/png;base64,")) for address in addresses)
    without_pictures = re.sub(r'href="data:[^"]*"', "", comparison_page)
    assert re.findall(r"https?:|//[a-z]", without_pictures) == []


def test_the_page_is_balanced(comparison_page: str) -> None:
    parser = Balance()
    parser.feed(comparison_page)
    parser.close()
    assert parser.open == []


def test_the_result_comes_first(comparison_page: str) -> None:
    places = [
        comparison_page.index(words)
        for words in ("HCEF reaches", '<table class="summary"', "<figure", "<details>")
    ]
    assert places == sorted(places)
    assert comparison_page.count("<figure") == 12
    assert comparison_page.count("<details>") == 6
    assert "cfel compare tiny.toml" in comparison_page


def test_files_lie_beside_the_page(comparison: Path, comparison_page: str) -> None:
    assert comparison_page
    assert (comparison / "figures" / "accuracy-seconds.svg").exists()
    assert (comparison / "figures" / "backhaul.png").exists()


def test_what_comes_from_files_is_escaped(tmp_path: Path, make_run: MakeRun, make_record: MakeRecord) -> None:
    """Name, scheme, command line and reasons all try to be a script."""
    evil = "<script>alert(1)</script> $\\frac{$"
    line = make_record(1, 0.5, 1.0, 1.0, feasible=False, violations=(evil,), straggler=1, slowest_cluster=0)
    make_run(
        tmp_path, evil.replace("\\", "\\\\"), 0, [line], name="a & <script>alert(2)</script>", plans=True
    )
    text = write_report(tmp_path, 0.5).read_text(encoding="utf-8")
    assert "<script" not in text
    assert "a &amp; &lt;script&gt;" in text


def test_a_page_that_cannot_be_written_is_a_clear_error(tmp_path: Path, make_run: MakeRun) -> None:
    make_run(tmp_path, "cef", 0, [])
    (tmp_path / "report.html").mkdir()
    with pytest.raises(StorageError, match=r"cannot write .*report\.html"):
        write_report(tmp_path)
    (tmp_path / "figures").rename(tmp_path / "old")
    (tmp_path / "figures").write_text("")
    with pytest.raises(StorageError, match=r"cannot create .*figures"):
        write_report(tmp_path)


def test_numbers_for_people() -> None:
    assert format_seconds(27334.4, 811.2) == "27,334 ± 811\N{NO-BREAK SPACE}s"
    assert format_seconds(None) == "–"
    assert format_joules(24_800.0) == "24.8\N{NO-BREAK SPACE}kJ"
    assert format_joules(9_999.0) == "9,999\N{NO-BREAK SPACE}J"
    assert format_joules(1.5e7) == "15.0\N{NO-BREAK SPACE}MJ"
    assert format_joules(0.0663) == "0.0663\N{NO-BREAK SPACE}J"
    assert format_seconds(0.0996) == "0.0996\N{NO-BREAK SPACE}s"
    assert format_gain(1.888) == "1.89×"


def test_the_headline_says_who_was_first_and_what_it_gained(
    tmp_path: Path, make_run: MakeRun, make_record: MakeRecord
) -> None:
    """`hcef` needs 50 s and 4 J where `cef` needs 100 s and 12 J: 2 and 3 times."""
    for scheme, seconds, joules in (("hcef", 50.0, 4.0), ("cef", 100.0, 12.0)):
        make_run(tmp_path / scheme, scheme, 0, [make_record(1, 0.6, seconds, joules)])
    runs = load_runs(tmp_path)

    def compose(runs: tuple[Run, ...], target: float | None) -> str:
        return compose_headline(summarise(runs, target)).replace("\N{NO-BREAK SPACE}", " ")

    best = "HCEF has the best accuracy within the budgets, 60.0 %, with one seed."
    assert compose(runs, 0.5) == (
        f"{best} HCEF reaches 50 % first, after 50.0 s and 4.00 J, "
        "a gain over CEF of 2.00× in time and 3.00× in energy."
    )
    assert compose(runs, 0.9) == f"{best} Nothing reached 90 %."
    assert compose(runs[1:], 0.9) == "90 % was not reached."
    assert compose(runs[1:], None) == ""
    assert compose(runs[1:], 0.5) == "CEF reaches 50 % after 100 s and 12.0 J."


def test_the_headline_ranks_only_what_the_seeds_tell_apart(
    tmp_path: Path, make_run: MakeRun, make_record: MakeRecord
) -> None:
    """`hcef` is better by 0.1 and 0.1 (apart), or by −0.1 and 0.3 (not); gains of 1 and 4 may be chance."""
    for name, second in (("apart", 0.5), ("close", 0.3)):
        for scheme, qualities in (("hcef", (0.6, 0.6)), ("cef", (0.5 if name == "apart" else 0.7, second))):
            for seed, quality in enumerate(qualities):
                seconds = 40.0 if scheme == "cef" and seed else 10.0
                record = make_record(1, quality, seconds, 1.0 if scheme == "hcef" else 2.0)
                make_run(tmp_path / name / scheme / f"seed-{seed}", scheme, seed, [record])
    texts = {
        name: compose_headline(summarise(load_runs(tmp_path / name), 0.2)) for name in ("apart", "close")
    }
    assert "cannot tell" not in texts["apart"]
    assert "2 seeds cannot tell it from CEF." in texts["close"]
    assert texts["apart"].endswith("; the gain in time may be chance.")


def list_headings(page: str) -> list[str]:
    return re.findall(r'<th scope="col">([^<]*)', page)


def test_what_was_not_recorded_has_no_column(
    tmp_path: Path, make_run: MakeRun, make_record: MakeRecord
) -> None:
    """Accuracy of single devices and of their own models, gains without CEF, costs to no target."""
    make_run(tmp_path, "hcef", 0, [make_record(1, 0.5, 1.0, 1.0)])
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert list_headings(page)[:4] == ["Scheme", "Accuracy within budgets", "Time used", "Energy used"]
    assert not {"Devices: mean", "Worst tenth", "Spread", "Own models: mean"} & set(list_headings(page))
    assert "Devices: on test samples" not in page
    assert "Gain" not in page
    # That the target was not reached is a result.
    missed = write_report(tmp_path, 0.9).read_text(encoding="utf-8")
    assert list_headings(missed)[2:4] == [f"{word} to 90\N{NO-BREAK SPACE}%" for word in ("Time", "Energy")]


def test_what_one_scheme_recorded_has_its_column(
    tmp_path: Path, make_run: MakeRun, make_record: MakeRecord
) -> None:
    known = {"device_accuracy_mean": 0.4, "device_accuracy_worst": 0.2, "device_accuracy_spread": 0.1}
    make_run(tmp_path / "a", "hcef", 0, [make_record(1, 0.5, 1.0, 1.0, **known)])
    make_run(tmp_path / "b", "cef", 0, [make_record(1, 0.5, 1.0, 1.0)])
    page = write_report(tmp_path).read_text(encoding="utf-8")
    headings = list_headings(page)
    assert headings.count("Worst tenth") == 1
    assert "Own models: mean" not in headings
    assert "Devices: on test samples" in page
    assert "Own models:" not in page
    assert '<td data-label="Devices: mean">40.0\N{NO-BREAK SPACE}%</td>' in page
    assert '<td data-label="Devices: mean">–</td>' in page


def test_a_long_list_of_overruns_is_folded(
    tmp_path: Path, make_run: MakeRun, make_record: MakeRecord
) -> None:
    """Every seed breaks both budgets of 1000 s and 100 J: 4 seeds are 8 lines, 5 are 10."""
    for seed in range(5):
        make_run(tmp_path / str(seed), "cef", seed, [make_record(1, 0.5, 2000.0, 200.0)])
        folded = "<summary>5 of 5 runs</summary>" in write_report(tmp_path).read_text(encoding="utf-8")
        assert folded == (seed == 4)
